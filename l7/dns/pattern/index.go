package pattern

import (
	"slices"
	"strings"
)

// Index finds which of many patterns a name matches. Patterns are a tree of labels, with the last label at the root, so
// that a lookup costs some steps for each label of the name, however many patterns there are. Only different labels
// with "*" in the same place ("a*.example.com", "b*.example.com") are compared one by one.
//
// An Index may be read by several goroutines while none changes it.
type Index struct {
	names map[string][]uint32
	every []uint32
	root  node
}

// node has the patterns that share their last labels.
type node struct {
	labels map[string]*node
	globs  []branch
	// end: patterns without further labels. many: patterns with "**." before these labels.
	end, many []uint32
}

type branch struct {
	glob string
	next *node
}

// Add lets names that match p have a value.
func (x *Index) Add(p Pattern, value uint32) {
	switch {
	case p.every:
		x.every = append(x.every, value)
		return
	case p.exact():
		if x.names == nil {
			x.names = map[string][]uint32{}
		}
		name := p.name()
		x.names[name] = append(x.names[name], value)
		return
	}
	n := &x.root
	for _, label := range p.labels {
		n = n.child(label)
	}
	if p.many {
		n.many = append(n.many, value)
		return
	}
	n.end = append(n.end, value)
}

// name is the only name that an exact pattern matches.
func (p Pattern) name() string {
	labels := slices.Clone(p.labels)
	slices.Reverse(labels)
	return strings.Join(labels, ".")
}

func (n *node) child(label string) *node {
	if !strings.Contains(label, "*") {
		if n.labels == nil {
			n.labels = map[string]*node{}
		}
		if n.labels[label] == nil {
			n.labels[label] = &node{}
		}
		return n.labels[label]
	}
	for _, b := range n.globs {
		if b.glob == label {
			return b.next
		}
	}
	next := &node{}
	n.globs = append(n.globs, branch{label, next})
	return next
}

// Append appends the values of all patterns that a name matches, in no order; one that several of its patterns give
// occurs several times. The name is as that of Pattern.Match.
func (x *Index) Append(values []uint32, name []byte) []uint32 {
	if !valid(name) {
		return values
	}
	values = append(values, x.every...)
	values = append(values, x.names[string(name)]...)
	return x.root.append(values, name, len(name) > 0)
}

// append follows the labels of name, of which there is at least one if more.
func (n *node) append(values []uint32, name []byte, more bool) []uint32 {
	if !more {
		return append(values, n.end...)
	}
	values = append(values, n.many...)
	if n.labels == nil && n.globs == nil {
		return values
	}
	before, label, more := cutLast(name)
	if next := n.labels[string(label)]; next != nil {
		values = next.append(values, before, more)
	}
	for _, b := range n.globs {
		if glob(b.glob, label) {
			values = b.next.append(values, before, more)
		}
	}
	return values
}

// Set is the patterns of rules.dns of one rule. Its zero value matches nothing.
type Set struct {
	every bool
	index Index
}

// Add adds a pattern.
func (s *Set) Add(p Pattern) {
	if p.every {
		s.every = true
		return
	}
	s.index.Add(p, 0)
}

// Match reports whether a question for name is allowed. Unlike Index, "*" matches names of any characters.
func (s *Set) Match(name []byte) bool {
	if s.every {
		return true
	}
	var few [8]uint32
	return len(s.index.Append(few[:0], name)) > 0
}
