package policy

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"myelin/table/ledger"
)

// Edit is what is about to be applied. A nil value means that the object goes.
type Edit struct {
	Policies map[Ref]*Object
	Groups   map[string]*Group
}

// Diff is what an edit would change, of flows and of who could talk to whom.
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

// Current is a flow that is there now.
type Current struct {
	Name string
	Question
}

// FlowDiff is a flow of which policies would say something else.
type FlowDiff struct {
	Flow string `json:"flow"`
	// Direction is that in which it is denied, before or after.
	Direction Direction `json:"direction"`
	Turn
}

// PairDiff is what changes between endpoints that are alike, and a peer.
type PairDiff struct {
	Direction Direction `json:"direction"`
	Endpoints []string  `json:"endpoints"`
	// Peer is the peer's labels, or an address outside that rules tell apart; of
	// peers that are alike, Peers counts the addresses, and Example is one.
	Peer    string     `json:"peer"`
	Peers   int        `json:"peers"`
	Example netip.Addr `json:"example,omitzero"`
	// Ports are as in "80/TCP", or "all except 80/TCP".
	Ports string `json:"ports"`
	Turn
}

// Turn is a verdict that changes, and the rules that decide; empty where none
// does.
type Turn struct {
	Allowed    bool   `json:"allowed"` // after
	RuleBefore string `json:"ruleBefore,omitempty"`
	RuleAfter  string `json:"ruleAfter,omitempty"`
}

// String is as in "newly denied: before by …, after by no rule".
func (t Turn) String() string {
	word := map[bool]string{true: "newly allowed", false: "newly denied"}[t.Allowed]
	return fmt.Sprintf("%s; before: %s; after: %s", word, cmp.Or(t.RuleBefore, "no rule"), cmp.Or(t.RuleAfter, "no rule"))
}

// Diff works out what an edit would change, by two compilers that know what the
// tables say; nothing of the kernel changes. When ctx ends, it returns what it
// has found until then.
func (e *Engine) Diff(ctx context.Context, edit Edit, flows []Current) (*Diff, error) {
	before, err := e.shadow()
	if err != nil {
		return nil, err
	}
	after, err := e.shadow()
	if err != nil {
		return nil, err
	}
	d := &differ{ctx: ctx, engine: e, before: before, after: after, whole: len(edit.Groups) > 0, out: &Diff{Objects: []ObjectDiff{}, Flows: []FlowDiff{}, Pairs: []PairDiff{}}}
	d.apply(edit)
	d.flows(flows)
	d.endpoints()
	return d.out, nil
}

// shadow is a compiler that knows what the tables say, and has no kernel.
func (e *Engine) shadow() (*compiler, error) {
	peers, _, err1 := ledger.NewNumbers[ledgerKey]("", firstDerived)
	rules, _, err2 := ledger.NewNumbers[ledgerKey]("", 0)
	if err := cmp.Or(err1, err2); err != nil {
		return nil, err
	}
	s := &Engine{Params: e.Params, audits: map[uint16]bool{}, compiler: newCompiler(e.Config, peers, rules)}
	s.compiler.space.room = e.compiler.space.room
	f, err := s.follow()
	if err != nil {
		return nil, err
	}
	s.learn(f, e.DB.ReadTxn())
	return s.compiler, nil
}

// differ compares two compilers.
type differ struct {
	ctx           context.Context
	engine        *Engine
	before, after *compiler
	// whole: what rules say may have changed without the rules.
	whole bool
	out   *Diff
}

func (d *differ) apply(edit Edit) {
	say := func(object string, before, after, same bool) {
		change := map[[2]bool]string{{false, true}: "added", {true, false}: "removed", {true, true}: "changed", {}: "not there"}[[2]bool{before, after}]
		if before && same {
			change = "as it is"
		}
		d.out.Objects = append(d.out.Objects, ObjectDiff{object, change})
	}
	for name, g := range edit.Groups {
		old, had := d.before.groups[name]
		say("CiliumCIDRGroup "+name, had, g != nil, g != nil && slices.Equal(old.prefixes, tidy(g.Prefixes)) && slices.Equal(old.labels, plainLabels("k8s", g.Labels)))
		if g == nil {
			d.after.setGroup(name, nil)
		} else {
			d.after.setGroup(name, factsOf(g))
		}
	}
	for ref, o := range edit.Policies {
		old := d.before.objects[ref]
		say(ref.String(), old != nil, o != nil, old != nil && o != nil && reflect.DeepEqual((&Object{Specs: old.given}).Anywhere().Specs, o.Anywhere().Specs))
		if o == nil {
			d.after.setPolicy(ref, nil)
		} else {
			d.after.setPolicy(ref, o.Specs)
			if parts := o.Unenforced(); len(parts) > 0 {
				d.out.Objects[len(d.out.Objects)-1].Change += ", partly enforced: " + strings.Join(parts, "; ")
			}
		}
	}
	slices.SortFunc(d.out.Objects, func(a, b ObjectDiff) int { return strings.Compare(a.Object, b.Object) })
}

// stopped reports whether time is over, and says so.
func (d *differ) stopped() bool {
	if d.ctx.Err() == nil {
		return false
	}
	d.out.Unfinished = fmt.Sprintf("time was over after %d flows and %d pairs", d.out.LookedFlows, d.out.LookedPairs)
	return true
}

// flows compares what is there now. Flows of which an end isn't known any more
// are left out.
func (d *differ) flows(list []Current) {
	for _, f := range list {
		if d.stopped() {
			return
		}
		before, err1 := d.engine.ask(d.before, f.Question)
		after, err2 := d.engine.ask(d.after, f.Question)
		if err1 != nil || err2 != nil {
			continue
		}
		d.out.LookedFlows++
		was := before.Egress.Allowed() && before.Ingress.Allowed()
		will := after.Egress.Allowed() && after.Ingress.Allowed()
		if was == will {
			continue
		}
		denied, dir, a, b := after, Ingress, &before.Ingress, &after.Ingress
		if will {
			denied = before
		}
		if !denied.Egress.Allowed() {
			dir, a, b = Egress, &before.Egress, &after.Egress
		}
		d.out.Flows = append(d.out.Flows, FlowDiff{Flow: f.Name, Direction: dir, Turn: Turn{will, a.place(), b.place()}})
	}
}

// place is the rule that decided.
func (f *Finding) place() string {
	if f.Rule == nil {
		return ""
	}
	return f.Rule.Origin.String()
}
