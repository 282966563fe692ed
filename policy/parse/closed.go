package parse

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"myelin/policy"
)

// maxReasons bounds what a rule says of what is not enforced of it.
const maxReasons = 16

// gaps says which parts of a rule are not understood, or cannot be enforced.
type gaps struct {
	rule, peers, ports bool
}

// mark is a place in what is found, to tell what was found since.
func (r *reader) mark() int { return len(r.found) }

// sound calls read, which reads what is at a path, and reports whether all of it
// is understood and enforced.
func (r *reader) sound(at string, read func()) bool {
	mark := r.mark()
	read()
	return r.mark() == mark && !r.lostIn(at)
}

// lostIn reports whether something at or below a path, or all around it, could
// not be decoded.
func (r *reader) lostIn(at string) bool {
	return slices.ContainsFunc(r.lost, func(field string) bool {
		_, inside := below(field, at)
		return inside || around(field, at)
	})
}

// lostAll reports whether all at a path could not be decoded.
func (r *reader) lostAll(at string) bool {
	return slices.ContainsFunc(r.lost, func(field string) bool { return around(field, at) })
}

// around reports whether a path is that of a value or of one around it.
func around(field, at string) bool {
	_, ok := below(at, field)
	return ok || field == ""
}

// below is what a path has after another one that it begins with.
func below(field, at string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(field, at)
	return rest, ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// lostRule reports whether something of a rule could not be decoded that is not
// in an item of one of its lists.
func (r *reader) lostRule(at string) bool {
	inItem := regexp.MustCompile(`^\.\w+\[\d+\]`)
	return slices.ContainsFunc(r.lost, func(field string) bool {
		rest, ok := below(field, at)
		return ok && !inItem.MatchString(rest) || around(field, at)
	})
}

// reasons are what was found since a mark, and what could not be decoded at a
// path, each as "field: reason".
func (r *reader) reasons(mark int, at string) (out []string) {
	for i, f := range r.found[mark:] {
		if i == maxReasons {
			out = append(out, fmt.Sprintf("%s: and %d other parts", at, len(r.found)-mark-i))
			break
		}
		out = append(out, f.Error())
	}
	for _, field := range r.lost {
		if _, ok := below(field, at); ok {
			out = append(out, field+": is not understood")
		}
	}
	return out
}

// close makes a rule fail closed. Parts that are not understood are not among its
// peers and ports: an allow rule allows nothing by them, and a deny rule denies
// everything in their place.
func (g gaps) close(rule *policy.Rule) {
	if rule.Action == policy.Deny {
		if g.rule || g.peers {
			rule.Peers = nil
		}
		if g.rule || g.ports {
			rule.Ports = nil
		}
		return
	}
	if g.rule || g.peers && len(rule.Peers) == 0 || g.ports && len(rule.Ports) == 0 {
		rule.MatchNothing()
	}
}

// any reports whether something is not understood.
func (g gaps) any() bool { return g.rule || g.peers || g.ports }

// ruleList is one of a spec's lists of rules.
type ruleList struct {
	name      string
	direction policy.Direction
	action    policy.Action
}

// lostLists are lists of rules that could not be decoded as a whole.
func (r *reader) lostLists(at string, lists []ruleList) (out []ruleList) {
	for _, l := range lists {
		if slices.Contains(r.lost, at+"."+l.name) {
			out = append(out, l)
		}
	}
	return out
}

// lostSpec are the fields of a spec that could not be decoded and that can mean
// anything: not those of known names, nor what is in them.
func (r *reader) lostSpec(at string, known ...string) (out []string) {
	for _, field := range r.lost {
		rest, ok := below(field, at)
		if !ok {
			// A field beside the spec may be one that is mistyped.
			known := []string{"metadata", "status", "spec", "specs"}
			if field == "" || !strings.ContainsAny(field, ".[") && !slices.Contains(known, field) {
				out = append(out, field+": is not understood")
			}
			continue
		}
		name := strings.TrimPrefix(rest, ".")
		if i := strings.IndexAny(name, ".["); i >= 0 {
			name = name[:i]
		}
		if !slices.Contains(known, name) {
			out = append(out, field+": is not understood")
		}
	}
	return out
}
