package policy

import (
	"cmp"
	"slices"
	"strings"
)

// Label is one of an identity's, as selectors match it.
type Label struct{ Source, Key, Value string }

// LabelSet is sorted by key, so that a requirement finds its labels at once.
type LabelSet []Label

// ParseLabels reads labels as package identity writes them.
func ParseLabels(texts []string) LabelSet {
	out := make(LabelSet, 0, len(texts))
	for _, text := range texts {
		source, rest, _ := strings.Cut(text, ":")
		key, value, _ := strings.Cut(rest, "=")
		out = append(out, Label{source, key, value})
	}
	slices.SortFunc(out, func(a, b Label) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Source, b.Source),
			strings.Compare(a.Value, b.Value))
	})
	return out
}

// Texts are the labels as parseLabels reads them.
func (s LabelSet) Texts() []string {
	out := make([]string, len(s))
	for i, l := range s {
		out[i] = l.Source + ":" + l.Key
		if l.Value != "" {
			out[i] += "=" + l.Value
		}
	}
	return out
}

// Matches reports whether labels, each "source:key=value", meet all requirements.
func (s Selector) Matches(labels []string) bool { return s.MatchesSet(ParseLabels(labels)) }

func (s Selector) MatchesSet(set LabelSet) bool {
	for i := range s {
		if !s[i].met(set) {
			return false
		}
	}
	return true
}

func (r *Requirement) met(set LabelSet) bool {
	i, _ := slices.BinarySearchFunc(set, r.Key, func(l Label, key string) int { return strings.Compare(l.Key, key) })
	for ; i < len(set) && set[i].Key == r.Key; i++ {
		if r.Source != AnySource && r.Source != set[i].Source {
			continue
		}
		switch r.Op {
		case Exists:
			return true
		case NotExists:
			return false
		case In:
			if slices.Contains(r.Values, set[i].Value) {
				return true
			}
		case NotIn:
			if slices.Contains(r.Values, set[i].Value) {
				return false
			}
		}
	}
	return r.Op == NotIn || r.Op == NotExists
}

// Key is the selector as a key: equal ones have the same.
func (s Selector) Key() string {
	parts := make([]string, len(s))
	for i, r := range s {
		parts[i] = strings.Join(append([]string{r.Source, r.Key, string('0' + rune(r.Op))}, r.Values...), "\x01")
	}
	slices.Sort(parts)
	return strings.Join(slices.Compact(parts), "\x02")
}
