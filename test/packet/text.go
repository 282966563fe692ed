package packet

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// line is the words of one layer. Its methods remember the first error, so
// that a layer's parser reads as the list of its words.
type line struct {
	words []word
	pos   int // of the next word
	err   error
}

type word struct {
	text   string
	column int // of its first character in the text, counted from 1
}

// split cuts text into layers, and layers into words. A word that begins with
// a quote is a Go string literal and ends where the literal does.
func split(text string) ([]*line, error) {
	lines := []*line{{}}
	for i := 0; i < len(text); {
		l := lines[len(lines)-1]
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case unicode.IsSpace(r):
			i += size
		case r == '|':
			if len(l.words) == 0 {
				return nil, fmt.Errorf("column %d: empty layer", i+1)
			}
			lines = append(lines, &line{})
			i++
		case r == '"':
			lit, err := strconv.QuotedPrefix(text[i:])
			if err != nil {
				return nil, fmt.Errorf("column %d: string without an end, or with a bad escape", i+1)
			}
			l.words = append(l.words, word{lit, i + 1})
			i += len(lit)
		default:
			n := strings.IndexFunc(text[i:], func(r rune) bool { return unicode.IsSpace(r) || r == '|' })
			if n < 0 {
				n = len(text) - i
			}
			l.words = append(l.words, word{text[i : i+n], i + 1})
			i += n
		}
	}
	if len(lines[len(lines)-1].words) == 0 {
		return nil, fmt.Errorf("column %d: empty layer", len(text)+1)
	}
	return lines, nil
}

func (l *line) more() bool { return l.err == nil && l.pos < len(l.words) }

// peek returns the next word, "" at the end.
func (l *line) peek() string {
	if !l.more() {
		return ""
	}
	return l.words[l.pos].text
}

// next takes the next word, "" at the end or after an error.
func (l *line) next() string {
	w := l.peek()
	if w != "" {
		l.pos++
	}
	return w
}

// take takes the next word if it is w.
func (l *line) take(w string) bool {
	if l.peek() != w {
		return false
	}
	l.pos++
	return true
}

// fail records what is wrong with the word to come.
func (l *line) fail(format string, args ...any) {
	if l.err != nil {
		return
	}
	what := fmt.Sprintf(format, args...)
	if l.pos >= len(l.words) {
		l.err = fmt.Errorf("after %q: %s", l.words[len(l.words)-1].text, what)
		return
	}
	w := l.words[l.pos]
	l.err = fmt.Errorf("%q (column %d): %s", w.text, w.column, what)
}

// failLast records what is wrong with the word just taken.
func (l *line) failLast(format string, args ...any) {
	if l.err == nil && l.pos > 0 {
		l.pos--
		l.fail(format, args...)
	}
}

// fields calls set with each remaining word; set returns false for a word
// that the layer doesn't know.
func (l *line) fields(layer string, set func(word string) bool) {
	for l.more() {
		w := l.next()
		if !set(w) {
			l.failLast("%s has no such word", layer)
		}
	}
}

// number takes a number of at most bits bits, decimal or 0x….
func (l *line) number(bits int) override {
	w := l.peek()
	if w == "" {
		l.fail("a number is missing")
		return override{}
	}
	v, err := strconv.ParseUint(w, 0, bits)
	if err != nil {
		l.fail("not a number below %d", uint64(1)<<bits)
		return override{}
	}
	l.pos++
	return override{set: true, value: uint32(v)}
}

func (l *line) u8() uint8   { return uint8(l.number(8).value) }
func (l *line) u16() uint16 { return uint16(l.number(16).value) }
func (l *line) u32() uint32 { return l.number(32).value }

// hex takes a word of hexadecimal digits, an even number of them.
func (l *line) hex() []byte {
	b, err := hex.DecodeString(l.peek())
	if err != nil || len(b) == 0 {
		l.fail("not an even number of hexadecimal digits")
		return nil
	}
	l.pos++
	return b
}

// arrow takes the ">" between source and destination.
func (l *line) arrow() {
	if !l.take(">") {
		l.fail(`">" is missing`)
	}
}

// override is a value that may have been written in place of the right one.
type override struct {
	set   bool
	value uint32
}

func (o override) or(right int) int {
	if o.set {
		return int(o.value)
	}
	return right
}

// sumWords is what was written about a checksum: nothing, badsum, or a value.
type sumWords struct {
	bad   bool
	value override
}

// take takes the words of a checksum, if w is one of them.
func (s *sumWords) take(l *line, w string, bits int) bool {
	switch w {
	case "badsum":
		s.bad = true
	case "sum":
		s.value = l.number(bits)
	default:
		return false
	}
	return true
}

// or16 returns the checksum to put into a packet in place of the right one.
func (s sumWords) or16(right uint16) uint16 {
	if s.bad {
		return badSum(right)
	}
	return uint16(s.value.or(int(right)))
}
