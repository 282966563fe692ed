// Package pattern matches DNS names against the names and patterns of policies, as Cilium 1.19 does.
package pattern

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"myelin/policy"
)

// maxLength is that of a name in text (RFC 1035, section 2.3.4, counts the lengths of labels).
const maxLength = 255

// Pattern is a compiled policy.NamePattern.
type Pattern struct {
	// every: "*", which any name matches.
	every bool
	// many: "**." in front, one or more whole labels.
	many bool
	// labels are those after it, the last one first. A label may contain "*".
	labels []string
}

// Compile reads a name or a pattern. Case, spaces around it and a final dot do not matter.
func Compile(n policy.NamePattern) (Pattern, error) {
	text := strings.ToLower(strings.TrimSpace(n.String()))
	if text == "" || len(text) > maxLength {
		return Pattern{}, fmt.Errorf("compile name %q: want 1 to %d characters", n, maxLength)
	}
	if n.Name != "" && strings.Contains(text, "*") {
		return Pattern{}, fmt.Errorf("compile name %q: a name has no *", n)
	}
	for i := range len(text) {
		if c := text[i]; c != '.' && c != '*' && !Plain(c) {
			return Pattern{}, fmt.Errorf(`compile name %q: character %q is not of a-z, 0-9, "-_.*"`, n, c)
		}
	}
	text = strings.TrimSuffix(text, ".")
	stars := len(text) - len(strings.TrimLeft(text, "*"))
	if stars > 0 && stars == len(text) {
		return Pattern{every: true}, nil
	}
	p := Pattern{}
	if stars >= 2 && text[stars] == '.' {
		p.many, text = true, text[stars+1:]
	}
	if text == "" && !p.many {
		return p, nil // "." is the root; "**.." has an empty label, so that it matches no name
	}
	for strings.Contains(text, "**") {
		text = strings.ReplaceAll(text, "**", "*")
	}
	p.labels = strings.Split(text, ".")
	slices.Reverse(p.labels)
	return p, nil
}

// Plain reports whether a character in lower case may occur in a name that a pattern matches.
func Plain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

// Every reports whether the pattern is "*". In rules.dns, it matches names with other characters, too.
func (p Pattern) Every() bool { return p.every }

// exact reports whether only one name matches.
func (p Pattern) exact() bool {
	if p.every || p.many {
		return false
	}
	for _, label := range p.labels {
		if strings.Contains(label, "*") {
			return false
		}
	}
	return true
}

// Match reports whether a name in lower case, without the final dot, matches; the root is "".
func (p Pattern) Match(name string) bool {
	rest := []byte(name)
	if !valid(rest) {
		return false
	}
	if p.every {
		return true
	}
	more := name != ""
	for _, want := range p.labels {
		if !more {
			return false
		}
		var label []byte
		rest, label, more = cutLast(rest)
		if !glob(want, label) {
			return false
		}
	}
	return more == p.many
}

// valid reports whether a name consists of labels of plain characters.
func valid(name []byte) bool {
	last := byte('.')
	for _, c := range name {
		if !Plain(c) && (c != '.' || last == '.') {
			return false
		}
		last = c
	}
	return len(name) == 0 || last != '.'
}

// cutLast cuts the last label off. found says whether there is another one before it.
func cutLast(name []byte) (before, label []byte, found bool) {
	dot := bytes.LastIndexByte(name, '.')
	if dot < 0 {
		return nil, name, false
	}
	return name[:dot], name[dot+1:], true
}

// glob matches a label with a pattern in which "*" is any number of characters. Its time is at most the product of the
// two lengths.
func glob(pattern string, label []byte) bool {
	p, l, star, mark := 0, 0, -1, 0
	for l < len(label) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, l
			p++
		case p < len(pattern) && pattern[p] == label[l]:
			p++
			l++
		case star >= 0:
			mark++
			p, l = star+1, mark
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}
