package policy

import (
	"cmp"
	"slices"
	"strings"
)

// label is one of an identity's, as selectors ask for it.
type label struct{ source, key, value string }

// labelSet is sorted by key, so that a requirement finds its labels at once.
type labelSet []label

// parseLabels reads labels as package identity writes them.
func parseLabels(texts []string) labelSet {
	out := make(labelSet, 0, len(texts))
	for _, text := range texts {
		source, rest, _ := strings.Cut(text, ":")
		key, value, _ := strings.Cut(rest, "=")
		out = append(out, label{source, key, value})
	}
	slices.SortFunc(out, func(a, b label) int {
		return cmp.Or(strings.Compare(a.key, b.key), strings.Compare(a.source, b.source), strings.Compare(a.value, b.value))
	})
	return out
}

// texts are the labels as parseLabels reads them.
func (s labelSet) texts() []string {
	out := make([]string, len(s))
	for i, l := range s {
		out[i] = l.source + ":" + l.key
		if l.value != "" {
			out[i] += "=" + l.value
		}
	}
	return out
}

// Matches reports whether labels, each "source:key=value", meet all requirements.
func (s Selector) Matches(labels []string) bool { return s.MatchesSet(parseLabels(labels)) }

func (s Selector) MatchesSet(set labelSet) bool {
	for i := range s {
		if !s[i].met(set) {
			return false
		}
	}
	return true
}

func (r *Requirement) met(set labelSet) bool {
	i, _ := slices.BinarySearchFunc(set, r.Key, func(l label, key string) int { return strings.Compare(l.key, key) })
	for ; i < len(set) && set[i].key == r.Key; i++ {
		if r.Source != AnySource && r.Source != set[i].source {
			continue
		}
		switch r.Op {
		case Exists:
			return true
		case NotExists:
			return false
		case In:
			if slices.Contains(r.Values, set[i].value) {
				return true
			}
		case NotIn:
			if slices.Contains(r.Values, set[i].value) {
				return false
			}
		}
	}
	return r.Op == NotIn || r.Op == NotExists
}

// text is the selector as a key: equal ones have the same.
func (s Selector) text() string {
	parts := make([]string, len(s))
	for i, r := range s {
		parts[i] = strings.Join(append([]string{r.Source, r.Key, string('0' + rune(r.Op))}, r.Values...), "\x01")
	}
	slices.Sort(parts)
	return strings.Join(slices.Compact(parts), "\x02")
}
