package explain

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"myelin/policy"
	"myelin/policy/compile"
)

// Edit is what is about to be applied. A nil value means that the object goes.
type Edit struct {
	Policies map[policy.Ref]*policy.Object
	Groups   map[string]*policy.Group
}

// Diff is what an edit would change, of flows, and of pairs that could communicate.
// Both lists say what would be allowed or denied that is not now.
type Diff struct {
	// Objects are what the edit does to each: "added", "changed", "removed" or
	// "as it is", and what of it is not enforced.
	Objects []ObjectDiff `json:"objects"`
	Flows   []FlowDiff   `json:"flows"`
	Pairs   []PairDiff   `json:"pairs"`
	// Looked are how many flows, and how many pairs of an endpoint of this node
	// and a peer, were compared; Unfinished says why that were not all.
	LookedFlows int    `json:"lookedFlows"`
	LookedPairs int    `json:"lookedPairs"`
	Unfinished  string `json:"unfinished,omitempty"`
}

// ObjectDiff is what becomes of an object.
type ObjectDiff struct {
	Object string `json:"object"`
	Change string `json:"change"`
}

// CurrentFlow is a flow that is there now.
type CurrentFlow struct {
	Name string
	Flow
}

// FlowDiff is a flow of which policies would say something else.
type FlowDiff struct {
	Flow string `json:"flow"`
	// Direction is that in which it is denied, before or after.
	Direction policy.Direction `json:"direction"`
	VerdictChange
}

// PairDiff is what changes between endpoints that are alike, and a peer.
type PairDiff struct {
	Direction policy.Direction `json:"direction"`
	Endpoints []string         `json:"endpoints"`
	// Peer is the peer's labels, or an address outside that rules tell apart; of
	// peers that are alike, Peers counts the addresses, and Example is one.
	Peer    string     `json:"peer"`
	Peers   int        `json:"peers"`
	Example netip.Addr `json:"example,omitzero"`
	// Ports are as in "80/TCP", or "all except 80/TCP".
	Ports string `json:"ports"`
	VerdictChange
}

// VerdictChange is a verdict that changes, and the rules that decide; empty where none
// does.
type VerdictChange struct {
	Allowed    bool   `json:"allowed"` // after
	RuleBefore string `json:"ruleBefore,omitempty"`
	RuleAfter  string `json:"ruleAfter,omitempty"`
}

// String is as in "newly denied: before by …, after by no rule".
func (t VerdictChange) String() string {
	word := map[bool]string{true: "newly allowed", false: "newly denied"}[t.Allowed]
	return fmt.Sprintf("%s; before: %s; after: %s", word, cmp.Or(t.RuleBefore, "no rule"),
		cmp.Or(t.RuleAfter, "no rule"))
}

// Diff works out what an edit would change, by two compilers that know what the
// tables say; nothing of the kernel changes. When ctx ends, it returns what it
// has found until then.
func (x *Explainer) Diff(ctx context.Context, edit Edit, flows []CurrentFlow) (*Diff, error) {
	before, err := x.engine.Shadow()
	if err != nil {
		return nil, err
	}
	after, err := x.engine.Shadow()
	if err != nil {
		return nil, err
	}
	d := &differ{ctx: ctx, explainer: x, before: before, after: after, compareAll: len(edit.Groups) > 0,
		out: &Diff{Objects: []ObjectDiff{}, Flows: []FlowDiff{}, Pairs: []PairDiff{}}}
	d.apply(edit)
	d.flows(flows)
	d.endpoints()
	return d.out, nil
}

// differ compares two compilers.
type differ struct {
	ctx           context.Context
	explainer     *Explainer
	before, after *compile.Compiler
	// whole: what rules say may have changed without the rules.
	compareAll bool
	out        *Diff
}

func (d *differ) apply(edit Edit) {
	say := func(object string, before, after, same bool) {
		change := map[[2]bool]string{{false, true}: "added", {true, false}: "removed", {true, true}: "changed",
			{}: "not there"}[[2]bool{before, after}]
		if before && same {
			change = "as it is"
		}
		d.out.Objects = append(d.out.Objects, ObjectDiff{object, change})
	}
	for name, g := range edit.Groups {
		var facts *compile.GroupFacts
		if g != nil {
			facts = compile.FactsOf(g)
		}
		had, same := d.before.HasGroup(name, facts)
		say("CiliumCIDRGroup "+name, had, g != nil, same)
		d.after.SetGroup(name, facts)
	}
	for ref, o := range edit.Policies {
		if o != nil && !d.before.Config.Proxy {
			o = o.WithoutProxy()
		}
		old, had := d.before.SpecsOf(ref)
		same := had && o != nil && reflect.DeepEqual((&policy.Object{Specs: old}).Anywhere().Specs, o.Anywhere().Specs)
		say(ref.String(), had, o != nil, same)
		if o == nil {
			d.after.SetPolicy(ref, nil)
		} else {
			d.after.SetPolicy(ref, o.Specs)
			if parts := o.Unenforced(); len(parts) > 0 {
				d.out.Objects[len(d.out.Objects)-1].Change += ", partly enforced: " + strings.Join(parts, "; ")
			}
		}
	}
	slices.SortFunc(d.out.Objects, func(a, b ObjectDiff) int { return strings.Compare(a.Object, b.Object) })
}

// timeOver reports whether time is over, and says so.
func (d *differ) timeOver() bool {
	if d.ctx.Err() == nil {
		return false
	}
	d.out.Unfinished = fmt.Sprintf("time was over after %d flows and %d pairs", d.out.LookedFlows, d.out.LookedPairs)
	return true
}

// flows compares what is there now. Flows of which an end isn't known any more
// are left out.
func (d *differ) flows(list []CurrentFlow) {
	for _, f := range list {
		if d.timeOver() {
			return
		}
		before, err1 := d.explainer.evaluate(d.before, f.Flow)
		after, err2 := d.explainer.evaluate(d.after, f.Flow)
		if err1 != nil || err2 != nil {
			continue
		}
		d.out.LookedFlows++
		was := before.Egress.Allowed() && before.Ingress.Allowed()
		will := after.Egress.Allowed() && after.Ingress.Allowed()
		if was == will {
			continue
		}
		denied, dir, a, b := after, policy.Ingress, &before.Ingress, &after.Ingress
		if will {
			denied = before
		}
		if !denied.Egress.Allowed() {
			dir, a, b = policy.Egress, &before.Egress, &after.Egress
		}
		d.out.Flows = append(d.out.Flows, FlowDiff{Flow: f.Name, Direction: dir, VerdictChange: VerdictChange{will,
			a.place(), b.place()}})
	}
}

// place is the rule that decided.
func (f *Finding) place() string {
	if f.Rule == nil {
		return ""
	}
	return f.Rule.Name()
}
