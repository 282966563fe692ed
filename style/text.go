package style

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxColumns is the width of a line. A tab has tabWidth columns.
const maxColumns = 120

// measured reports whether the rules about lines and words apply to a file: hand-written source, prose and
// configuration. Test data, licenses, generated files, and tables of words that are not to be used are exempt.
func measured(name string, text []byte) bool {
	if strings.Contains("/"+name, "/testdata/") || strings.HasPrefix(name, "LICENSES/") || isGenerated(text) ||
		name == "style/words.txt" || name == "bpf/former_names.txt" {
		return false
	}
	switch path.Ext(name) {
	case ".go", ".c", ".h", ".sh", ".md", ".yaml", ".txtar", ".proto", ".ts", ".tsx", ".tmpl", ".txt":
		return true
	}
	return path.Base(name) == "Makefile"
}

// tabWidth is the number of columns that the formatter of a language counts for a tab.
func tabWidth(name string) int {
	if ext := path.Ext(name); ext == ".c" || ext == ".h" {
		return 8
	}
	return 4
}

// lineWidth finds lines of more than maxColumns columns. Lines that cannot be wrapped are exempt: rows of tables in
// Markdown and in text files, lines without a space to break at, and in Go struct tags and lines within raw strings.
func lineWidth(name string, text []byte) []Finding {
	var raw map[int]bool
	if path.Ext(name) == ".go" {
		raw = rawLines(string(text))
	}
	var found []Finding
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimRight(line, "\n")
		columns := utf8.RuneCountInString(line) + strings.Count(line, "\t")*(tabWidth(name)-1)
		if columns <= maxColumns || raw[number] || unbreakable(name, line) {
			continue
		}
		found = append(found, Finding{"width", name, fmt.Sprintf("%d: %d columns, at most %d", number, columns,
			maxColumns)})
	}
	return found
}

// unbreakable reports whether a line is a row of a table, a directive of Go, or a single word behind the mark of a
// comment or list. Text files are tables with comments, but for the notes of a chart.
func unbreakable(name, line string) bool {
	line = strings.TrimSpace(line)
	switch path.Ext(name) {
	case ".md", ".tmpl":
		if strings.HasPrefix(line, "|") {
			return true
		}
	case ".txt":
		if !strings.HasPrefix(line, "#") && path.Base(name) != "NOTES.txt" {
			return true
		}
	case ".go":
		if strings.HasPrefix(line, "//go:") {
			return true
		}
	}
	return len(strings.Fields(strings.TrimLeft(line, "/*#-> "))) <= 1
}

// rawLines are the numbers of the lines that begin in a raw string of Go, and of those with a struct tag.
func rawLines(text string) map[int]bool {
	lines := map[int]bool{}
	for _, l := range literals(text) {
		if text[l.begin] != '`' {
			continue
		}
		first := 1 + strings.Count(text[:l.begin], "\n")
		if tag.MatchString(text[l.begin:l.end]) {
			lines[first] = true
		}
		for n := range strings.Count(text[l.begin:l.end], "\n") {
			lines[first+n+1] = true
		}
	}
	return lines
}

var tag = regexp.MustCompile("^`[a-z]+:\"[^`\n]*`$")

// mark is the beginning of a line of a comment.
var mark = regexp.MustCompile(`\n[ \t]*(//|\*|#)`)

// wordRule is a row of words.txt.
type wordRule struct {
	// Scope is where the pattern is searched: "word" in all words of a file, with identifiers split into theirs,
	// "comment" in comments and prose; what "fine" matches is ignored by both.
	Scope   string
	Pattern *regexp.Regexp
	Instead string
}

// newWord reads the fields of a row. A pattern matches whole words, in lower case.
func newWord(row []string) (wordRule, error) {
	pattern, err := regexp.Compile(`\b(?:` + row[1] + `)(?:\b|$)`)
	if strings.HasPrefix(row[1], "^") {
		pattern, err = regexp.Compile(row[1])
	}
	return wordRule{Scope: row[0], Pattern: pattern, Instead: row[2]}, err
}

// wordList are the rows of words.txt.
type wordList struct {
	list []wordRule
	any  *regexp.Regexp // matches where one of them may match
}

// newWords reads rows.
func newWords(rows [][]string) (wordList, error) {
	var words wordList
	var patterns []string
	for _, row := range rows {
		word, err := newWord(row)
		if err != nil {
			return words, err
		}
		words.list = append(words.list, word)
		if word.Scope != "fine" {
			patterns = append(patterns, strings.TrimPrefix(row[1], "^"))
		}
	}
	any, err := regexp.Compile(strings.Join(patterns, "|"))
	words.any = any
	return words, err
}

// terms finds words for which there is a standard term.
func terms(name string, text []byte, words wordList) []Finding {
	all := plain(mark.ReplaceAllString(string(text), "\n"))
	if !words.any.MatchString(all) {
		return nil
	}
	comments := comments(name, string(text))
	for _, w := range words.list {
		if w.Scope != "fine" {
			continue
		}
		all = w.Pattern.ReplaceAllString(all, "-")
		for i := range comments {
			comments[i] = w.Pattern.ReplaceAllString(comments[i], "-")
		}
	}
	var found []Finding
	for _, w := range words.list {
		var in []string
		switch w.Scope {
		case "word":
			in = []string{all}
		case "comment":
			in = comments
		}
		for _, text := range in {
			for _, at := range w.Pattern.FindAllStringIndex(text, -1) {
				context := text[max(0, at[0]-20):min(len(text), at[1]+20)]
				found = append(found, Finding{"word", name, fmt.Sprintf("%q: %s", strings.ToValidUTF8(context, ""),
					w.Instead)})
			}
		}
	}
	return found
}

// plain is a text in lower case, with one space between words, and with identifiers split into the words they consist
// of.
func plain(text string) string {
	var out strings.Builder
	previous := ' '
	for _, r := range text {
		switch {
		case r == '_' || r == '\t' || r == '\n' || r == '\r':
			r = ' '
		case r >= 'A' && r <= 'Z':
			if previous >= 'a' && previous <= 'z' || previous >= '0' && previous <= '9' {
				out.WriteByte(' ')
			}
			out.WriteRune(r + 'a' - 'A')
			previous = r
			continue
		}
		if r != ' ' || previous != ' ' {
			out.WriteRune(r)
		}
		previous = r
	}
	return out.String()
}

// comments are the comments of a source file, each in one line, or the paragraphs of prose.
func comments(name, text string) []string {
	var found []string
	switch path.Ext(name) {
	case ".go", ".c", ".h", ".proto", ".ts", ".tsx":
		found = slashComments(text)
	case ".md", ".tmpl":
		found = strings.Split(text, "\n\n")
	default:
		found = blocks(text, "#")
	}
	for i, comment := range found {
		found[i] = strings.TrimSpace(plain(comment))
	}
	return found
}

// slashComments are the comments of Go or C, without their marks. Comments in successive lines are one.
func slashComments(text string) []string {
	var found []string
	end := -1
	for _, l := range literals(text) {
		literal := text[l.begin:l.end]
		body, line := strings.CutPrefix(literal, "//")
		block, ok := strings.CutPrefix(literal, "/*")
		switch {
		case ok:
			lines := strings.Split(strings.TrimSuffix(block, "*/"), "\n")
			for i := range lines[1:] {
				lines[i+1] = strings.TrimPrefix(strings.TrimSpace(lines[i+1]), "*")
			}
			found = append(found, strings.Join(lines, "\n"))
		case line && end >= 0 && strings.TrimLeft(text[end:l.begin], " \t") == "\n":
			found[len(found)-1] += "\n" + body
		case line:
			found = append(found, body)
		}
		end = -1
		if line {
			end = l.end
		}
	}
	return found
}

// literal is a comment, a string or a character.
type literal struct{ begin, end int }

// literals finds the comments, strings and characters of Go or C, in order.
func literals(text string) []literal {
	var found []literal
	for i := 0; i < len(text); {
		end := i
		switch {
		case strings.HasPrefix(text[i:], "//"):
			end = after(text, i+2, "\n") - 1
		case strings.HasPrefix(text[i:], "/*"):
			end = after(text, i+2, "*/")
		case text[i] == '`':
			end = after(text, i+1, "`")
		case text[i] == '"' || text[i] == '\'':
			end = literalEnd(text, i)
		default:
			i++
			continue
		}
		end = min(end, len(text))
		found = append(found, literal{i, end})
		i = end
	}
	return found
}

// blocks are the texts of successive lines that begin with a mark, without the mark.
func blocks(text, mark string) []string {
	var found []string
	var block bytes.Buffer
	flush := func() {
		if block.Len() > 0 {
			found = append(found, block.String())
			block.Reset()
		}
	}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), mark)
		if !ok {
			flush()
			continue
		}
		block.WriteString(rest + "\n")
	}
	flush()
	return found
}
