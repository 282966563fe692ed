package compile

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"myelin/policy"
)

// Classes are the classes of a set that have entries of their own.
func (s *Set) Classes() iter.Seq[*Class] {
	return func(yield func(*Class) bool) {
		for _, c := range s.byVerdicts {
			if !yield(c) {
				return
			}
		}
	}
}

// SortedPeers are the peers of a set that have entries, sorted by number.
func (s *Set) SortedPeers() []*Identity {
	out := make([]*Identity, 0, len(s.Peers))
	for d := range s.Peers {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b *Identity) int { return int(int64(a.Number) - int64(b.Number)) })
	return out
}

// Describe returns the labels of an identity, and the address sets that it is in.
func (d *Identity) Describe() (out []string) {
	out = d.base.labels.Texts()
	for _, m := range d.members {
		out = append(out, "in "+strings.TrimSpace(m.source.key))
	}
	return out
}

// RulesWithPeers returns the rules of the set, each with whether it matches any peer that exists.
func (s *Set) RulesWithPeers() iter.Seq2[uint32, bool] {
	return func(yield func(uint32, bool) bool) {
		for r, at := range s.places {
			if !yield(r.id, s.hasPeer(r, int(at))) {
				return
			}
		}
	}
}

// hasPeer reports whether a rule of the set matches any peer that exists.
func (s *Set) hasPeer(r *rule, at int) (yes bool) {
	if slices.Contains(s.wildcards, uint32(at)) {
		return true
	}
	s.eachPeer(r, at, func(*Identity) { yes = true })
	return yes
}

// EachRule calls yield with each rule, and how many endpoints of this node its policy selects.
func (c *Compiler) EachRule(yield func(r *policy.RuleRow, endpoints int)) {
	for _, o := range c.objects {
		for _, spec := range o.specs {
			endpoints := 0
			for t := range spec.selection.things {
				endpoints += len(t.thing.targets)
			}
			for _, r := range spec.rules {
				yield(r.Row(), endpoints)
			}
		}
	}
}

// RuleOrigin is the origin of a rule, or of rules that the proxy enforces together, by its number; empty for none.
func (c *Compiler) RuleOrigin(id uint32) string {
	if p := c.proxied.byNumber[id]; p != nil {
		return p.row().Name()
	}
	for _, o := range c.objects {
		for _, r := range o.rules {
			if id != 0 && r.id == id {
				return r.Origin.String()
			}
		}
	}
	return ""
}

// RulesOf are the numbers of the rules that a number stands for: itself, if that is a rule's own.
func (c *Compiler) RulesOf(number uint32) (out []uint32) {
	p := c.proxied.byNumber[number]
	if p == nil || p.key == "" {
		return []uint32{number}
	}
	for _, r := range p.rules {
		out = append(out, r.id)
	}
	return out
}

// SetsInUse are the sets that are in the kernel, and the endpoints of each.
func (c *Compiler) SetsInUse() map[*Set][]*Endpoint {
	out := map[*Set][]*Endpoint{}
	for _, t := range c.Endpoints() {
		for _, of := range t.Sets {
			for family, s := range of {
				if s != nil && s.Number != 0 && (family == 0 || of[0] != s) {
					out[s] = append(out[s], t)
				}
			}
		}
	}
	return out
}

// SpecsOf are the specs of an object, and whether there is such an object.
func (c *Compiler) SpecsOf(ref policy.Ref) ([]policy.Spec, bool) {
	o := c.objects[ref]
	if o == nil {
		return nil, false
	}
	return o.specsGiven, true
}

// HasGroup reports whether there is a group of a name, and whether it is the same as another one.
func (c *Compiler) HasGroup(name string, g *GroupFacts) (has, same bool) {
	old, has := c.groups[name]
	same = g != nil && slices.Equal(old.Prefixes, policy.Canonical(g.Prefixes)) && slices.Equal(old.Labels, g.Labels)
	return has, same
}

// Labels are the labels that the endpoint's policies are selected by.
func (t *Endpoint) Labels() policy.LabelSet { return t.subject.labels }

// Alike is a key that endpoints share if the same rules with the same named ports apply to them.
func (t *Endpoint) Alike() string { return t.subject.key + fmt.Sprint(t.Ports, t.host) }
