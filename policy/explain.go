package policy

import (
	"fmt"
	"net/netip"
	"slices"
)

// Who is one end of a flow: by its address, or by labels, each
// "source:key=value", that somebody may have some day. With both, the labels
// are those of who has the address.
type Who struct {
	Addr   netip.Addr
	Labels []string
}

// Question is a flow that may not be there. Port is the destination's, or an
// ICMP type.
type Question struct {
	Src, Dst Who
	Proto    uint8
	Port     uint16
	// SrcNode and DstNode are the nodes that the ends are on, empty for what is
	// outside: a node is "host" to its own pods alone, and policies of nodes see
	// its labels.
	SrcNode, DstNode string
	// Family is 4 or 6, where neither end has an address. 0 means 4.
	Family int
}

// Finding is what policies say of one end of a flow.
type Finding struct {
	// Enforced is whether any policy speaks of the endpoint in this direction.
	Enforced bool `json:"enforced"`
	// Action is "allow", "deny", or "no rule", which is a denial too.
	Action string `json:"action"`
	// Rule is the rule that decided; nil where none did.
	Rule *RuleRow `json:"rule,omitempty"`
	// Isolating are the policies by which what no rule allows is denied.
	Isolating []string `json:"isolating,omitempty"`
	// Rules are all that the endpoint has in this direction, in order of
	// precedence.
	Rules []Considered `json:"rules,omitempty"`
}

// Considered is a rule that was looked at, and whether it matches.
type Considered struct {
	RuleRow
	Tier  Tier `json:"tier"`
	Peer  bool `json:"peerMatches"`
	Ports bool `json:"portMatches"`
	// Unenforced is as in Rule.
	Unenforced []string `json:"unenforced,omitempty"`
}

// Allowed reports whether policies let the flow pass.
func (f *Finding) Allowed() bool { return f.Action == allowed.String() }

// Answer is what policies say of a flow: its source's of egress, and its
// destination's of ingress. Both must allow it.
type Answer struct{ Egress, Ingress Finding }

// Explain works out what policies say of a flow, of endpoints of any node, by
// the rules alone: what the kernel does follows from the same rules. It is an
// error if nothing is known of an end.
func (x *Explainer) Explain(q Question) (a Answer, err error) {
	x.engine.View(func(c *compiler) { a, err = x.evaluate(c, q) })
	return a, err
}

// evaluate leaves out policies of nodes where those are not enforced.
func (x *Explainer) evaluate(c *compiler, q Question) (Answer, error) {
	a, err := evaluate(c, q)
	if err != nil || x.engine.Config.Host {
		return a, err
	}
	for finding, who := range map[*Finding]Who{&a.Egress: q.Src, &a.Ingress: q.Dst} {
		of, err := c.newEnd(who.Addr, who.Labels)
		if err == nil && of.isNode() {
			*finding = Finding{Action: allowed.String()}
		}
	}
	return a, nil
}

// evaluate finds the verdicts of a compiler's rules on a flow.
func evaluate(c *compiler, q Question) (a Answer, err error) {
	src, err := c.newEnd(q.Src.Addr, q.Src.Labels)
	if err != nil {
		return a, fmt.Errorf("source: %w", err)
	}
	dst, err := c.newEnd(q.Dst.Addr, q.Dst.Labels)
	if err != nil {
		return a, fmt.Errorf("destination: %w", err)
	}
	family := 0
	if q.Family == 6 {
		family = 1
	}
	for _, e := range []*end{src, dst} {
		if e.addr.IsValid() {
			family = e.family()
		}
	}
	w := lookupContext{Question: q, family: family, ports: dst.bindings}
	a.Egress = w.find(c, Egress, c.asSubject(src, q.SrcNode), dst.asPeer(q.DstNode, q.SrcNode))
	a.Ingress = w.find(c, Ingress, c.asSubject(dst, q.DstNode), src.asPeer(q.SrcNode, q.DstNode))
	return a, nil
}

// lookupContext is what a policy lookup depends on besides the two ends.
type lookupContext struct {
	Question
	family int
	ports  []binding // named ports of the destination
}

// find does the policy lookup for one end.
func (w *lookupContext) find(c *compiler, dir Direction, of, peer *end) (f Finding) {
	f.Action = allowed.String()
	if of.outside || c.config.Mode == ModeNever {
		return f
	}
	rules := c.rulesOf(dir, of.set)
	f.Isolating, f.Enforced = rules.isolating, rules.enforced
	if !f.Enforced {
		return f
	}
	rows := rules.match(peer, w.family, w.ports, func(r matchedRule) {
		f.Rules = append(f.Rules, Considered{
			RuleRow: *r.row, Tier: r.tier, Peer: r.peer, Unenforced: r.Unenforced,
			Ports: slices.ContainsFunc(r.ports, func(p portPrefix) bool { return p.covers(w.Proto, w.Port) }),
		})
	})
	decides := lookup(rows, w.Proto, w.Port)
	f.Action = decides.ruling.String()
	for i := range f.Rules {
		if decides.rule != 0 && f.Rules[i].ID == decides.rule {
			f.Rule = &f.Rules[i].RuleRow
		}
	}
	return f
}
