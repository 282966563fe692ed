package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"myelin/drop"
	"myelin/policy/explain"
)

// dropRow is a counter, and of what policies drop the rules: those of all hooks
// stand at the first one's row.
type dropRow struct {
	drop.Row
	Rules []*ruleDrops `json:"rules,omitempty"`
}

// ruleDrops is a row of the table policy-drops.
type ruleDrops struct {
	explain.Denial
	Name    string  `json:"name"`
	Place   string  `json:"place"`
	LastHit float64 `json:"lastHitSeconds"`
}

// withRules gives counters the rules that dropped.
func withRules(rows []*dropRow, rules []*ruleDrops) []*dropRow {
	for _, d := range rules {
		if i := slices.IndexFunc(rows, func(r *dropRow) bool { return r.Name == d.Name }); i >= 0 && !d.Audited {
			rows[i].Rules = append(rows[i].Rules, d)
		}
	}
	return rows
}

// mostRules is how many are shown as text.
const mostRules = 20

// writeRules writes a line for each rule.
func (r *dropRow) writeRules(w io.Writer) error {
	var b strings.Builder
	for i, d := range r.Rules {
		if i == mostRules {
			fmt.Fprintf(&b, "    … and %d more: myelin policy drops\n", len(r.Rules)-i)
			break
		}
		fmt.Fprintf(&b, "    %d × %s of %s: %s\n", d.Hits, d.Direction, strings.Join(d.Endpoints, ", "), d.Place)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// addedRules are those whose hits grew, by how many.
func addedRules(before, now []*ruleDrops) (grown []*ruleDrops) {
	key := func(d *ruleDrops) string { return fmt.Sprint(d.Direction, d.Rule, d.Endpoints) }
	was := map[string]uint64{}
	for _, d := range before {
		was[key(d)] = d.Hits
	}
	for _, d := range now {
		next := *d
		if had := was[key(d)]; had <= d.Hits { // fewer: the rows are new ones
			next.Hits = d.Hits - had
		}
		if next.Hits > 0 {
			grown = append(grown, &next)
		}
	}
	return grown
}
