package policy

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// classesOf are the classes of a set that have entries of their own.
func (s *set) classesOf() iter.Seq[*class] {
	return func(yield func(*class) bool) {
		for _, c := range s.byRows {
			if !yield(c) {
				return
			}
		}
	}
}

// peersInOrder are the peers of a set that have entries, sorted by number.
func (s *set) peersInOrder() []*peerID {
	out := make([]*peerID, 0, len(s.peers))
	for d := range s.peers {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b *peerID) int { return int(int64(a.number) - int64(b.number)) })
	return out
}

// describe returns the labels of an identity, and the address sets that it is in.
func (d *peerID) describe() (out []string) {
	out = d.base.labels.texts()
	for _, m := range d.members {
		out = append(out, "in "+strings.TrimSpace(m.source.key))
	}
	return out
}

// rulesWithPeers returns the rules of the set, each with whether it matches any peer that exists.
func (s *set) rulesWithPeers() iter.Seq2[uint32, bool] {
	return func(yield func(uint32, bool) bool) {
		for r, at := range s.place {
			if !yield(r.id, s.hasPeer(r, int(at))) {
				return
			}
		}
	}
}

// hasPeer reports whether a rule of the set matches any peer that exists.
func (s *set) hasPeer(r *rule, at int) (yes bool) {
	if slices.Contains(s.anyone, uint32(at)) {
		return true
	}
	s.whom(r, at, func(*peerID) { yes = true })
	return yes
}

// allRules calls yield with each rule, and how many endpoints of this node its policy selects.
func (c *compiler) allRules(yield func(r *RuleRow, endpoints int)) {
	for _, o := range c.objects {
		for _, spec := range o.specs {
			endpoints := 0
			for t := range spec.chosen.things {
				endpoints += len(t.thing.targets)
			}
			for _, r := range spec.rules {
				yield(r.row(), endpoints)
			}
		}
	}
}

// ruleOrigin is the origin of a rule, by its number; empty for none.
func (c *compiler) ruleOrigin(id uint32) string {
	for _, o := range c.objects {
		for _, r := range o.rules {
			if id != 0 && r.id == id {
				return r.Origin.String()
			}
		}
	}
	return ""
}

// setsInUse are the sets that are in the kernel, and the endpoints of each.
func (c *compiler) setsInUse() map[*set][]*target {
	out := map[*set][]*target{}
	for _, t := range c.inOrder() {
		for _, of := range t.sets {
			for family, s := range of {
				if s != nil && s.number != 0 && (family == 0 || of[0] != s) {
					out[s] = append(out[s], t)
				}
			}
		}
	}
	return out
}

// specsOf are the specs of an object, and whether there is such an object.
func (c *compiler) specsOf(ref Ref) ([]Spec, bool) {
	o := c.objects[ref]
	if o == nil {
		return nil, false
	}
	return o.given, true
}

// hasGroup reports whether there is a group of a name, and whether it is the same as another one.
func (c *compiler) hasGroup(name string, g *groupFacts) (has, same bool) {
	old, has := c.groups[name]
	same = g != nil && slices.Equal(old.prefixes, tidy(g.prefixes)) && slices.Equal(old.labels, g.labels)
	return has, same
}

// labels are the labels that the endpoint's policies are selected by.
func (t *target) labels() labelSet { return t.subject.labels }

// alike is a key that endpoints share if the same rules with the same named ports apply to them.
func (t *target) alike() string { return t.subject.key + fmt.Sprint(t.ports, t.host) }
