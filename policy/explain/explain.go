package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"myelin/policy"
	"myelin/policy/compile"
)

// FlowEnd is one end of a flow: by its address, or by labels, each
// "source:key=value", that a pod may have later. With both, the labels
// are those of the address.
type FlowEnd struct {
	Addr   netip.Addr
	Labels []string
	// Names are DNS names that the address has for the other end.
	Names []string
}

// Flow is a flow that may not be there. Port is the destination's, or an
// ICMP type.
type Flow struct {
	Src, Dst FlowEnd
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
	// Enforced is whether any policy selects the endpoint in this direction.
	Enforced bool `json:"enforced"`
	// Action is "allow", "deny", or "no rule", which is a denial too.
	Action string `json:"action"`
	// Rule is the rule that decided; nil where none did. Of several that the proxy enforces together it is the row of
	// all.
	Rule *policy.RuleRow `json:"rule,omitempty"`
	// Proxied are the rules that the proxy enforces on the flow, which it allows if one of them does.
	Proxied []Considered `json:"proxied,omitempty"`
	// Open: the proxy lets pass what no rule of HTTP or DNS allows, since nothing isolates the endpoint.
	Open bool `json:"open,omitempty"`
	// Isolating are the policies by which what no rule allows is denied.
	Isolating []string `json:"isolating,omitempty"`
	// Rules are all that the endpoint has in this direction, in order of
	// precedence.
	Rules []Considered `json:"rules,omitempty"`
}

// Considered is a rule that was looked at, and whether it matches.
type Considered struct {
	policy.RuleRow
	Tier  policy.Tier `json:"tier"`
	Peer  bool        `json:"peerMatches"`
	Ports bool        `json:"portMatches"`
	// Unenforced is as in Rule.
	Unenforced []string `json:"unenforced,omitempty"`
	// L7 is as in Rule.
	L7 *policy.L7 `json:"l7,omitempty"`
}

// Allowed reports whether policies let the flow pass.
func (f *Finding) Allowed() bool { return f.Action == compile.Allowed.String() }

// Answer is what policies say of a flow: its source's of egress, and its
// destination's of ingress. Both must allow it.
type Answer struct {
	Egress, Ingress Finding
	// named: a rule for the other end names a port of the destination's pod.
	named bool
}

// Explain works out what policies say of a flow, of endpoints of any node, by
// the rules alone: what the kernel does follows from the same rules. It is an
// error if nothing is known of an end.
func (x *Explainer) Explain(q Flow) (a Answer, err error) {
	x.engine.View(func(c *compile.Compiler) { a, err = x.evaluate(c, q) })
	return a, err
}

// evaluate leaves out policies of nodes where those are not enforced.
func (x *Explainer) evaluate(c *compile.Compiler, q Flow) (Answer, error) {
	a, err := Evaluate(c, q)
	if err != nil || x.engine.Config.Host {
		return a, err
	}
	for finding, who := range map[*Finding]FlowEnd{&a.Egress: q.Src, &a.Ingress: q.Dst} {
		of, err := c.NewEnd(who.Addr, who.Labels)
		if err == nil && of.IsNode() {
			*finding = Finding{Action: compile.Allowed.String()}
		}
	}
	return a, nil
}

// Evaluate finds the verdicts of a compiler's rules on a flow.
func Evaluate(c *compile.Compiler, q Flow) (a Answer, err error) {
	src, err := c.NewEnd(q.Src.Addr, q.Src.Labels)
	if err != nil {
		return a, fmt.Errorf("source: %w", err)
	}
	dst, err := c.NewEnd(q.Dst.Addr, q.Dst.Labels)
	if err != nil {
		return a, fmt.Errorf("destination: %w", err)
	}
	dst.Names = q.Dst.Names
	family := 0
	if q.Family == 6 {
		family = 1
	}
	for _, e := range []*compile.End{src, dst} {
		if e.Addr.IsValid() {
			family = e.Family()
		}
	}
	w := lookupContext{Flow: q, family: family, ports: dst.Bindings}
	a.Egress = w.find(c, policy.Egress, c.AsSubject(src, q.SrcNode), dst.AsPeer(q.DstNode, q.SrcNode))
	a.Ingress = w.find(c, policy.Ingress, c.AsSubject(dst, q.DstNode), src.AsPeer(q.SrcNode, q.DstNode))
	a.named = w.named
	return a, nil
}

// lookupContext is what a policy lookup depends on besides the two ends.
type lookupContext struct {
	Flow
	family int
	ports  []compile.PortBinding // named ports of the destination
	named  bool                  // a rule for the peer names a port
}

// find does the policy lookup for one end.
func (w *lookupContext) find(c *compile.Compiler, dir policy.Direction, of, peer *compile.End) (f Finding) {
	f.Action = compile.Allowed.String()
	if of.Outside || c.Config.Mode == policy.ModeNever {
		return f
	}
	rules := c.Rules(dir, of.LabelSet)
	f.Isolating, f.Enforced = rules.Isolating, rules.Enforced
	if !f.Enforced {
		return f
	}
	rows := rules.Match(peer, w.family, w.ports, func(r compile.MatchedRule) {
		named := slices.ContainsFunc(r.Rule.Ports, func(p policy.Port) bool { return p.Name != "" })
		w.named = w.named || r.Peer && named
		f.Rules = append(f.Rules, Considered{
			RuleRow: *r.Row, Tier: r.Tier, Peer: r.Peer, Unenforced: r.Unenforced, L7: r.L7,
			Ports: slices.ContainsFunc(r.Ports, func(p compile.PortPrefix) bool { return p.Covers(w.Proto, w.Port) }),
		})
	})
	decides := compile.Lookup(rows, w.Proto, w.Port)
	f.Action = decides.Verdict.String()
	if decides.Proxy {
		f.proxied(decides.Rule, len(rules.Isolating) == 0)
		return f
	}
	for i := range f.Rules {
		if decides.Rule != 0 && f.Rules[i].ID == decides.Rule {
			f.Rule = &f.Rules[i].RuleRow
		}
	}
	return f
}

// proxied notes that the rules that match and that the proxy enforces decide together.
func (f *Finding) proxied(number uint32, open bool) {
	f.Open = open
	for i := range f.Rules {
		if r := &f.Rules[i]; r.L7 != nil && r.Peer && r.Ports {
			f.Proxied = append(f.Proxied, *r)
		}
	}
	row := f.Proxied[0].RuleRow
	row.ID = number
	for _, r := range f.Proxied[1:] {
		row.Others = append(row.Others, r.Origin)
	}
	f.Rule = &row
}
