package explain

import (
	"cmp"
	"slices"
	"strings"

	"myelin/policy"
	"myelin/policy/compile"
)

// Denial is how often a rule, or that there was none, denied something to
// endpoints of this node.
type Denial struct {
	// Endpoints are those that share rows, since the same rules apply to them, as
	// "namespace/name" or "host". Slot is that of one.
	Endpoints []string         `json:"endpoints"`
	Slot      uint16           `json:"-"`
	Direction policy.Direction `json:"direction"`
	// Rule is its number; 0: no rule allowed it.
	Rule uint32 `json:"rule"`
	// Hits are flows, and packets that belong to none: since the rows were
	// written, which happens when the rules of the endpoints change. LastTick is when
	// the last one was: tick of the datapath's clock.
	Hits     uint64 `json:"hits"`
	LastTick uint64 `json:"-"`
	// Audited: all of the endpoints only report what is denied to them.
	Audited bool `json:"audited,omitempty"`
}

// Denials are those that have hits, the most first. The kernel counts in the
// rows that it reads anyway; here each row that denies is looked up once.
func (x *Explainer) Denials() (out []*Denial) {
	var rows map[*Denial][]usedRow
	x.engine.View(func(c *compile.Compiler) { out, rows = x.denying(c) })
	for d, of := range rows {
		for _, r := range of { // of the kernel: not under the lock
			hits, last := x.engine.Maps.Hits(r.class, r.PortPrefix)
			d.Hits, d.LastTick = d.Hits+hits, max(d.LastTick, last)
		}
	}
	out = slices.DeleteFunc(out, func(d *Denial) bool { return d.Hits == 0 })
	slices.SortFunc(out, func(a, b *Denial) int {
		return cmp.Or(cmp.Compare(b.Hits, a.Hits), slices.Compare(a.Endpoints, b.Endpoints), cmp.Compare(a.Direction,
			b.Direction), cmp.Compare(a.Rule, b.Rule))
	})
	return out
}

// denying are all that deny, and the rows that do it.
func (x *Explainer) denying(c *compile.Compiler) (out []*Denial, rows map[*Denial][]usedRow) {
	rows = map[*Denial][]usedRow{}
	type key struct {
		endpoints string
		dir       policy.Direction
		rule      uint32
	}
	known := map[key]*Denial{}
	for s, of := range c.SetsInUse() {
		like := Denial{Slot: of[0].Slot, Direction: s.Dir, Audited: true}
		for _, t := range of {
			like.Endpoints = append(like.Endpoints, t.Name)
			like.Audited = like.Audited && (t.Audit || x.engine.Config.Audit)
		}
		for class := range s.Classes() {
			for _, r := range class.Verdicts {
				if r.Verdict != compile.Denied && r.Verdict != compile.NoRule {
					continue
				}
				k := key{strings.Join(like.Endpoints, " "), s.Dir, r.Rule}
				d := known[k] // families may have sets of their own
				if d == nil {
					one := like
					one.Rule = r.Rule
					d, known[k] = &one, &one
					out = append(out, d)
				}
				rows[d] = append(rows[d], usedRow{class.Number, r.PortPrefix})
			}
		}
	}
	return out, rows
}
