package policy

import (
	"cmp"
	"slices"
)

// Use is a rule, and what it does on this node.
type Use struct {
	RuleRow
	// Endpoints are how many endpoints of this node the rule's object selects.
	Endpoints int `json:"endpoints"`
	// State is UseHit, UseNeverHit, UseShadowed, UseNoPeer, UsePass or UseNobody.
	State string `json:"state"`
	// Hits are flows that the rule decided, since its rows were written: with what
	// it says, or who it speaks of, they begin anew. LastTick is when it decided the
	// last one: tick of the datapath's clock, 0: never.
	Hits     uint64 `json:"hits"`
	LastTick uint64 `json:"-"`
}

// States of rules.
const (
	UseHit      = "hit"
	UseNeverHit = "never hit"
	// UseShadowed rules have peers, and others decide about all of them.
	UseShadowed = "shadowed"
	// UseNoPeer rules speak of nobody who is there.
	UseNoPeer = "no such peer"
	// UsePass rules never decide: they hand on to the next tier.
	UsePass = "pass"
	// UseNobody rules are of objects that select no endpoint of this node.
	UseNobody = "selects nobody here"
)

// usedRow is a row of the kernel that a rule decides.
type usedRow struct {
	class uint32
	portPrefix
}

// Uses says of each rule whether it decides anything here, sorted by number.
func (e *Engine) Uses() []*Use {
	uses, rows := e.used()
	for _, u := range uses {
		for _, r := range rows[u.ID] { // of the kernel: not under the lock
			hits, last := e.Kernel.hits(r.class, r.portPrefix)
			u.Hits, u.LastTick = u.Hits+hits, max(u.LastTick, last)
		}
		if u.State == UseNeverHit && u.Hits > 0 {
			u.State = UseHit
		}
	}
	return uses
}

// used are all rules, and the rows that they decide.
func (e *Engine) used() (uses []*Use, rows map[uint32][]usedRow) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.compiler
	rows = map[uint32][]usedRow{}
	someone := map[uint32]bool{} // rules that speak of somebody
	for _, s := range c.sets {
		if s.number == 0 {
			continue
		}
		for r, at := range s.place {
			someone[r.id] = someone[r.id] || s.meetsSomeone(r, int(at))
		}
		for _, cl := range s.byRows {
			for _, row := range cl.rows {
				if row.rule != 0 {
					rows[row.rule] = append(rows[row.rule], usedRow{cl.number, row.portPrefix})
				}
			}
		}
	}
	for _, o := range c.objects {
		for _, spec := range o.specs {
			endpoints := 0
			for t := range spec.chosen.things {
				endpoints += len(t.thing.targets)
			}
			for _, r := range spec.rules {
				u := &Use{RuleRow: *r.row(), Endpoints: endpoints, State: UseNeverHit}
				switch {
				case endpoints == 0:
					u.State = UseNobody
				case r.Action == Pass:
					u.State = UsePass
				case len(rows[r.id]) > 0:
				case someone[r.id]:
					u.State = UseShadowed
				default:
					u.State = UseNoPeer
				}
				uses = append(uses, u)
			}
		}
	}
	slices.SortFunc(uses, func(a, b *Use) int { return cmp.Compare(a.ID, b.ID) })
	return uses, rows
}

// meetsSomeone reports whether a rule of the set speaks of anybody who is there.
func (s *set) meetsSomeone(r *rule, at int) (yes bool) {
	if slices.Contains(s.anyone, uint32(at)) {
		return true
	}
	s.whom(r, at, func(*peerID) { yes = true })
	return yes
}
