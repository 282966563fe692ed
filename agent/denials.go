package agent

import (
	"strconv"
	"strings"

	"myelin/bpf"
	"myelin/drop"
	"myelin/event"
	"myelin/flow"
	"myelin/policy/explain"
)

// policyDenial is what a rule denied, as `myelin drops` and `myelin policy drops`
// show it.
type policyDenial struct {
	*explain.Denial
	// Name is the outcome that the packets are counted under, and Place the rule,
	// or why none was enough.
	Name  string `json:"name"`
	Place string `json:"place"`
	// LastHit is seconds since the last one.
	LastHit *flow.Seconds `json:"lastHitSeconds"`
}

// TableHeader names the columns of TableRow.
func (*policyDenial) TableHeader() []string {
	return []string{"Endpoints", "Direction", "Hits", "Last hit", "Verdict", "Rule"}
}

// TableRow is the row as text.
func (d *policyDenial) TableRow() []string {
	verdict := "drop"
	if d.Audited {
		verdict = "audit"
	}
	return []string{strings.Join(d.Endpoints, ","), d.Direction.String(), strconv.FormatUint(d.Hits, 10),
		ago(d.LastHit), verdict, d.Place}
}

// eachDenial has no rows where policies are off.
func (pl *policies) eachDenial(yield func(tableRow) bool) error {
	if pl.engine == nil {
		return nil
	}
	clock, err := pl.flows.Clock()
	if err != nil {
		return err
	}
	outcomes := drop.NewNames()
	for _, d := range pl.explainer().Denials() {
		row := &policyDenial{Denial: d, LastHit: sinceHit(clock, d.LastTick)}
		outcome := bpf.DatapathOutcomeDROP_POLICY_DENIED
		if row.Place = event.RuleName(pl.names(), d.Rule); d.Rule == 0 {
			outcome = bpf.DatapathOutcomeDROP_POLICY_NO_RULE
			isolating := pl.explainer().Isolating(d.Slot, d.Direction)
			row.Place = "no rule allowed it: isolated by " + strings.Join(isolating, ", ")
		}
		row.Name = outcomes.Outcome(uint8(outcome)).Name
		if !yield(row) {
			break
		}
	}
	return nil
}
