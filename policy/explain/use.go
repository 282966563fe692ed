package explain

import (
	"cmp"
	"slices"

	"myelin/policy"
	"myelin/policy/compile"
)

// Use is a rule, and what it does on this node.
type Use struct {
	policy.RuleRow
	// Endpoints are how many endpoints of this node the rule's object selects.
	Endpoints int `json:"endpoints"`
	// State is useHit, useNeverHit, useShadowed, useNoPeer, usePass or useNoEndpoint.
	State string `json:"state"`
	// Hits are flows that the rule decided, alone or with others that the proxy enforces, since its rows were written:
	// when the rule or its peers change, they begin anew. LastTick is when it decided the
	// last one: tick of the datapath's clock, 0: never.
	Hits     uint64 `json:"hits"`
	LastTick uint64 `json:"-"`
}

// States of rules.
const (
	useHit      = "hit"
	useNeverHit = "never hit"
	// useShadowed rules have peers, and others decide about all of them.
	useShadowed = "shadowed"
	// useNoPeer rules match no peer that exists.
	useNoPeer = "no such peer"
	// usePass rules never decide: they hand on to the next tier.
	usePass = "pass"
	// useNoEndpoint rules are of objects that select no endpoint of this node.
	useNoEndpoint = "selects no endpoint here"
)

// usedRow is a row of the kernel that a rule decides.
type usedRow struct {
	class uint32
	compile.PortPrefix
}

// Uses says of each rule whether it decides anything here, sorted by number.
func (x *Explainer) Uses() (uses []*Use) {
	var rows map[uint32][]usedRow
	x.engine.View(func(c *compile.Compiler) { uses, rows = used(c) })
	for _, u := range uses {
		for _, r := range rows[u.ID] { // of the kernel: not under the lock
			hits, last := x.engine.Maps.Hits(r.class, r.PortPrefix)
			u.Hits, u.LastTick = u.Hits+hits, max(u.LastTick, last)
		}
		if u.State == useNeverHit && u.Hits > 0 {
			u.State = useHit
		}
	}
	return uses
}

// used are all rules, and the rows that they decide.
func used(c *compile.Compiler) (uses []*Use, rows map[uint32][]usedRow) {
	rows = map[uint32][]usedRow{}
	hasPeer := map[uint32]bool{} // rules that match some peer
	for s := range c.Sets() {
		if s.Number == 0 {
			continue
		}
		for id, has := range s.RulesWithPeers() {
			hasPeer[id] = hasPeer[id] || has
		}
		for cl := range s.Classes() {
			for _, row := range cl.Verdicts {
				if row.Rule == 0 {
					continue
				}
				for _, id := range c.RulesOf(row.Rule) {
					rows[id] = append(rows[id], usedRow{cl.Number, row.PortPrefix})
				}
			}
		}
	}
	c.EachRule(func(r *policy.RuleRow, endpoints int) {
		u := &Use{RuleRow: *r, Endpoints: endpoints, State: useNeverHit}
		switch {
		case endpoints == 0:
			u.State = useNoEndpoint
		case r.Action == policy.Pass:
			u.State = usePass
		case len(rows[r.ID]) > 0:
		case hasPeer[r.ID]:
			u.State = useShadowed
		default:
			u.State = useNoPeer
		}
		uses = append(uses, u)
	})
	slices.SortFunc(uses, func(a, b *Use) int { return cmp.Compare(a.ID, b.ID) })
	return uses, rows
}
