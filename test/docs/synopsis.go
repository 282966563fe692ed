package docstest

import (
	"fmt"
	"slices"
	"strings"
)

// Command returns the command line in a line of documentation, without prompt and trailing explanation.
func Command(line string) string {
	line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
	for _, mark := range []string{" # ", "   "} {
		if before, _, ok := strings.Cut(line, mark); ok {
			line = before
		}
	}
	return strings.TrimSpace(line)
}

// Commands joins the lines of a synopsis that continues on the next line: that line is indented and begins with a
// bracket.
func Commands(lines []string) []string {
	var joined []string
	for _, line := range lines {
		command := Command(line)
		if len(joined) > 0 && strings.HasPrefix(line, " ") && strings.HasPrefix(command, "[") {
			joined[len(joined)-1] += " " + command
		} else if command != "" {
			joined = append(joined, command)
		}
	}
	return joined
}

// expand returns the forms of a synopsis: first without options and with the first of all alternatives, then one line
// for each option and each further alternative. "[-o json]" is optional, "a|b" and "[a | b]" are alternatives, "…"
// and "..." say that more may follow.
func expand(synopsis string) ([][]string, error) {
	r := &reader{words: words(synopsis)}
	lines, err := r.sequence()
	if err != nil || len(r.words) > 0 {
		return nil, fmt.Errorf("read the synopsis %q: brackets don't match", synopsis)
	}
	for i, line := range lines {
		lines[i] = slices.DeleteFunc(slices.Clone(line), func(word string) bool { return word == "" })
	}
	return lines, nil
}

// words splits a synopsis into words, brackets, and separate bars.
func words(synopsis string) []string {
	for _, mark := range []string{",…", "…", "..."} {
		synopsis = strings.ReplaceAll(synopsis, mark, "")
	}
	for _, bracket := range []string{"[", "]"} {
		synopsis = strings.ReplaceAll(synopsis, bracket, " "+bracket+" ")
	}
	return strings.Fields(synopsis)
}

type reader struct{ words []string }

func (r *reader) peek() string {
	if len(r.words) == 0 {
		return ""
	}
	return r.words[0]
}

func (r *reader) next() string {
	word := r.peek()
	r.words = r.words[1:]
	return word
}

// sequence reads up to a closing bracket or a bar. Its first line has the first alternative of each item.
func (r *reader) sequence() ([][]string, error) {
	var items [][][]string
	for len(r.words) > 0 && r.peek() != "]" && r.peek() != "|" {
		choices, err := r.item()
		if err != nil {
			return nil, err
		}
		items = append(items, choices)
	}
	lines := [][]string{line(items, -1, 0)}
	for i, choices := range items {
		for c := range choices[1:] {
			lines = append(lines, line(items, i, c+1))
		}
	}
	return lines, nil
}

// line joins the first alternatives of all items, except for one.
func line(items [][][]string, other, choice int) []string {
	var all []string
	for i, choices := range items {
		chosen := choices[0]
		if i == other {
			chosen = choices[choice]
		}
		all = append(all, chosen...)
	}
	return all
}

// item reads a word, in which bars separate alternatives, or an optional part in brackets.
func (r *reader) item() ([][]string, error) {
	word := r.next()
	if word != "[" {
		var choices [][]string
		for choice := range strings.SplitSeq(word, "|") {
			choices = append(choices, []string{choice})
		}
		return choices, nil
	}
	choices := [][]string{nil}
	for {
		inside, err := r.sequence()
		if err != nil {
			return nil, err
		}
		choices = append(choices, inside...)
		switch {
		case r.peek() == "]":
			r.next()
			return choices, nil
		case r.peek() == "|":
			r.next()
		default:
			return nil, fmt.Errorf("a bracket that is not closed")
		}
	}
}
