package style

import (
	"fmt"
	"strings"
)

// license stands in the first line of each C file: the helpers of the kernel that the datapath calls are for GPL
// programs.
const license = "SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause"

// cFile finds what is wrong in one C file: its licence, conditional compilation, functions that are too long.
func cFile(name string, text []byte) []Finding {
	var found []Finding
	first, _, _ := strings.Cut(string(text), "\n")
	if !strings.Contains(first, license) {
		found = append(found, Finding{"license", name, "the first line has no " + license})
	}
	code := blank(string(text))
	found = append(found, conditionals(name, code)...)
	for _, f := range functions(code) {
		if f.lines > maxFunctionLines {
			found = append(found, Finding{"function-length", name, fmt.Sprintf("%s: %d lines, at most %d", f.name,
				f.lines, maxFunctionLines)})
		}
	}
	return found
}

// blank replaces comments, strings and characters by spaces; lines stay where they are.
func blank(text string) string {
	out := []byte(text)
	for _, l := range literals(text) {
		for i := l.begin; i < l.end; i++ {
			if out[i] != '\n' {
				out[i] = ' '
			}
		}
	}
	return string(out)
}

func after(text string, from int, mark string) int {
	if i := strings.Index(text[from:], mark); i >= 0 {
		return from + i + len(mark)
	}
	return len(text) + 1
}

func literalEnd(text string, begin int) int {
	for i := begin + 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case text[begin]:
			return i + 1
		}
	}
	return len(text)
}

// conditionals finds #if, #ifdef and #ifndef other than the guard: the first directive, an #ifndef of what the next
// defines.
func conditionals(name, code string) []Finding {
	var directives []string
	for line := range strings.Lines(code) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "#"); ok {
			directives = append(directives, strings.Join(strings.Fields(rest), " "))
		}
	}
	if len(directives) > 1 {
		guard, ok := strings.CutPrefix(directives[0], "ifndef ")
		if ok && (directives[1] == "define "+guard) {
			directives = directives[2:]
		}
	}
	var found []Finding
	for _, d := range directives {
		if strings.HasPrefix(d, "if") {
			found = append(found, Finding{"conditional", name, "#" + d})
		}
	}
	return found
}

// function is a definition in C, from the line of its name to its last brace.
type function struct {
	name  string
	lines int
}

// functions finds the braces of the outermost level that follow a parenthesis: bodies, unlike types and initializers.
func functions(code string) []function {
	var found []function
	depth, begin, previous, body := 0, 0, byte(0), false
	statement := strings.Builder{}
	line, directive := 1, false
	for i := 0; i < len(code); i++ {
		c := code[i]
		if c == '\n' {
			directive = directive && i > 0 && code[i-1] == '\\'
			line++
		}
		if c == '#' && strings.TrimSpace(code[strings.LastIndexByte(code[:i], '\n')+1:i]) == "" {
			directive = true
		}
		if directive || c == '\n' || c == ' ' || c == '\t' {
			if !directive {
				statement.WriteByte(' ')
			}
			continue
		}
		switch {
		case c == '{':
			if depth == 0 {
				body = previous == ')'
			}
			depth++
		case c == '}':
			depth--
			if depth == 0 && body {
				found = append(found, function{functionName(statement.String()), line - begin + 1})
			}
			if depth == 0 {
				statement.Reset()
			}
		case c == ';' && depth == 0:
			statement.Reset()
		case depth == 0:
			if strings.TrimSpace(statement.String()) == "" {
				begin = line
			}
			statement.WriteByte(c)
		}
		previous = c
	}
	return found
}

// functionName is the word before the last parenthesis group of a declaration.
func functionName(declaration string) string {
	depth := 0
	for i := len(declaration) - 1; i >= 0; i-- {
		switch declaration[i] {
		case ')':
			depth++
		case '(':
			if depth--; depth == 0 {
				words := strings.Fields(strings.ReplaceAll(declaration[:i], "*", " "))
				if len(words) > 0 {
					return words[len(words)-1]
				}
				return "?"
			}
		}
	}
	return "?"
}
