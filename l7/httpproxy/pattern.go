package httpproxy

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
)

// pattern is a regular expression that matches whole values. Those that are a literal, a prefix or an alternative of
// such need no regexp engine.
type pattern struct {
	kind    patternKind
	literal string
	oneOf   []pattern
	regexp  *regexp.Regexp
}

type patternKind uint8

const (
	matchAll patternKind = iota
	matchLiteral
	matchPrefix       // the literal, and anything after it
	matchLongerPrefix // the literal, and at least one byte after it
	matchOneOf
	matchRegexp
)

// compilePattern compiles an expression in RE2's syntax. The empty one matches everything.
func compilePattern(expression string) (pattern, error) {
	if expression == "" {
		return pattern{}, nil
	}
	parsed, err := syntax.Parse(expression, syntax.Perl)
	if err != nil {
		return pattern{}, fmt.Errorf("parse regular expression %q: %w", expression, err)
	}
	if p, ok := simplePattern(parsed.Simplify()); ok {
		return p, nil
	}
	re, err := regexp.Compile(`\A(?:` + expression + `)\z`)
	if err != nil {
		return pattern{}, fmt.Errorf("compile regular expression %q: %w", expression, err)
	}
	return pattern{kind: matchRegexp, regexp: re}, nil
}

// simplePattern is the pattern of an expression that needs no engine. No value has line feeds, so that "." is any byte.
func simplePattern(re *syntax.Regexp) (pattern, bool) {
	parts := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = re.Sub
	}
	if len(parts) > 0 && parts[0].Op == syntax.OpBeginText {
		parts = parts[1:]
	}
	if n := len(parts); n > 0 && parts[n-1].Op == syntax.OpEndText {
		parts = parts[:n-1]
	}
	if len(parts) == 1 && parts[0].Op == syntax.OpCapture {
		return simplePattern(parts[0].Sub[0])
	}
	p := pattern{kind: matchLiteral}
	if len(parts) > 0 && parts[0].Op == syntax.OpLiteral && parts[0].Flags&syntax.FoldCase == 0 {
		p.literal, parts = string(parts[0].Rune), parts[1:]
	}
	switch {
	case len(parts) == 0 || len(parts) == 1 && parts[0].Op == syntax.OpEmptyMatch:
		return p, true
	case len(parts) == 1 && parts[0].Op == syntax.OpAlternate:
		alternate, ok := simpleAlternate(parts[0])
		return alternate.after(p.literal), ok
	case len(parts) > 1 || len(parts[0].Sub) != 1 || !anyCharacter(parts[0].Sub[0]):
		return pattern{}, false
	case parts[0].Op == syntax.OpStar && p.literal == "":
		return pattern{}, true
	case parts[0].Op == syntax.OpStar:
		p.kind = matchPrefix
		return p, true
	case parts[0].Op == syntax.OpPlus:
		p.kind = matchLongerPrefix
		return p, true
	}
	return pattern{}, false
}

func simpleAlternate(re *syntax.Regexp) (pattern, bool) {
	p := pattern{kind: matchOneOf}
	for _, sub := range re.Sub {
		one, ok := simplePattern(sub)
		if !ok {
			return pattern{}, false
		}
		p.oneOf = append(p.oneOf, one)
	}
	return p, true
}

// after is the pattern behind a literal.
func (p pattern) after(literal string) pattern {
	if p.kind == matchAll {
		p.kind = matchPrefix
	}
	p.literal = literal + p.literal
	for i := range p.oneOf {
		p.oneOf[i] = p.oneOf[i].after(literal)
	}
	return p
}

func anyCharacter(re *syntax.Regexp) bool {
	return re.Op == syntax.OpAnyCharNotNL || re.Op == syntax.OpAnyChar
}

// match says whether the pattern matches the whole value.
func (p *pattern) match(value string) bool {
	switch p.kind {
	case matchAll:
		return true
	case matchLiteral:
		return value == p.literal
	case matchPrefix:
		return strings.HasPrefix(value, p.literal)
	case matchLongerPrefix:
		return len(value) > len(p.literal) && strings.HasPrefix(value, p.literal)
	case matchOneOf:
		for i := range p.oneOf {
			if p.oneOf[i].match(value) {
				return true
			}
		}
		return false
	}
	return p.regexp.MatchString(value)
}

// serverName is the regular expression of a name, or of a pattern of names as Cilium has it in serverNames: "*" is
// any number of characters of one label, "**." at the beginning any number of labels, and "*" alone any name.
func serverName(name string) (*regexp.Regexp, error) {
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	expression := strings.Builder{}
	expression.WriteString(`\A`)
	if name == "*" {
		expression.WriteString(`(?:[-a-z0-9_]+\.)*[-a-z0-9_]+`)
		name = ""
	}
	if rest, ok := strings.CutPrefix(name, "**."); ok {
		expression.WriteString(`(?:[-a-z0-9_]+\.)+`)
		name = rest
	}
	for i, literal := range strings.Split(name, "*") {
		if i > 0 {
			expression.WriteString(`[-a-z0-9_]*`)
		}
		expression.WriteString(regexp.QuoteMeta(literal))
	}
	expression.WriteString(`\z`)
	re, err := regexp.Compile(expression.String())
	if err != nil {
		return nil, fmt.Errorf("compile server name %q: %w", name, err)
	}
	return re, nil
}
