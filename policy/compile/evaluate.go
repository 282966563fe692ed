package compile

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"myelin/policy"
)

// End is one end of a flow, with everything that rules match on.
type End struct {
	Labels   []string
	LabelSet policy.LabelSet
	Addr     netip.Addr
	// Names are DNS names whose address it is, to the other end.
	Names    []string
	Outside  bool // of the cluster
	Bindings []PortBinding
}

// NewEnd describes an end by its address, by labels, or by both.
func (c *Compiler) NewEnd(addr netip.Addr, labels []string) (*End, error) {
	e := &End{Labels: labels, Addr: addr.Unmap()}
	if e.Addr.IsValid() && len(e.Labels) == 0 {
		e.Labels = c.LabelsAt(e.Addr)
	}
	if len(e.Labels) == 0 {
		return nil, fmt.Errorf("neither an address nor labels are given")
	}
	e.LabelSet = policy.ParseLabels(e.Labels)
	e.Outside = world(0).MatchesSet(e.LabelSet) || world(1).MatchesSet(e.LabelSet)
	if e.Addr.IsValid() {
		e.Bindings = c.bindingsAt(e.Addr)
	}
	return e, nil
}

// IsNode reports whether an end is a node.
func (e *End) IsNode() bool {
	return slices.ContainsFunc(e.Labels, isNodeLabel)
}

func isNodeLabel(l string) bool { return l == "reserved:host" || l == "reserved:remote-node" }

// Family is 0 for IPv4 and 1 for IPv6.
func (e *End) Family() int {
	switch {
	case e.Addr.IsValid():
		return Family(e.Addr)
	case world(0).MatchesSet(e.LabelSet):
		return 0
	}
	return 1
}

// WorldEnd is an end outside of the cluster without an address.
func WorldEnd(label string) *End {
	return &End{Labels: []string{label}, LabelSet: policy.ParseLabels([]string{label}), Outside: true}
}

// bindingsAt are the named ports of the pod that has an address.
func (c *Compiler) bindingsAt(a netip.Addr) (out []PortBinding) {
	for _, p := range c.pods {
		if slices.Contains(p.addresses, a) {
			out = p.bindings
		}
	}
	return out
}

// AllBindings are the named ports of pods, by address.
func (c *Compiler) AllBindings() map[netip.Addr][]PortBinding {
	out := map[netip.Addr][]PortBinding{}
	for _, p := range c.pods {
		for _, a := range p.addresses {
			out[a] = p.bindings
		}
	}
	return out
}

// LabelsAt are the labels of the identity that an address has.
func (c *Compiler) LabelsAt(a netip.Addr) []string {
	b := c.peers.base(WorldIdentity(a))
	p := netip.PrefixFrom(a, a.BitLen())
	if o, ok := c.space.owned.Get(p); ok {
		b = o.base
	}
	if c.space.membershipOf(p).apiServer {
		b = b.with(true, c.peers)
	}
	return b.labels.Texts()
}

// AsSubject is an end as the policies of its own node select it.
func (c *Compiler) AsSubject(e *End, node string) *End {
	out := e.AsPeer(node, node)
	if n := c.nodes[node]; n != nil && out != e {
		out.LabelSet = policy.ParseLabels(slices.Concat(out.Labels, n.Labels.Texts()))
	}
	return out
}

// AsPeer is an end that may be a node with the labels that policies of the other end's node give it: a node is "host"
// to its own pods only.
func (e *End) AsPeer(node, other string) *End {
	at := slices.IndexFunc(e.Labels, isNodeLabel)
	if at < 0 || node == "" || other == "" {
		return e
	}
	out := *e
	out.Labels = slices.Clone(e.Labels)
	if out.Labels[at] = "reserved:remote-node"; node == other {
		out.Labels[at] = "reserved:host"
	}
	out.LabelSet = policy.ParseLabels(out.Labels)
	return &out
}

// Rules is the rules of an endpoint in one direction, in order of precedence.
type Rules struct {
	compiler *Compiler
	entries  []entry
	hostAt   int
	Enforced bool // some policy selects the endpoint in this direction
	// isolating are the policies by which traffic that no rule allows is denied.
	Isolating []string
}

// Rules finds the rules of an endpoint with these labels.
func (c *Compiler) Rules(dir policy.Direction, labels policy.LabelSet) *Rules {
	host := hostSelector().MatchesSet(labels)
	l := &Rules{compiler: c}
	s := &subject{}
	s.thing, s.labels = s, labels
	c.subjects.add(&s.labeled)
	rules, isolated, decided := c.rulesFor(s, dir)
	l.Isolating = c.isolatingSubject(s, dir, host)
	c.subjects.remove(&s.labeled)
	if c.Config.Mode == policy.ModeAlways && !host {
		isolated, decided = true, true
	}
	l.Enforced = decided
	l.entries, l.hostAt = entries(rules, isolated, dir == policy.Ingress && !host && !c.Config.HostDenied)
	return l
}

// MatchedRule is a rule that was compared with a flow. ports are those of the rule, with the numbers that its port
// names have.
type MatchedRule struct {
	*policy.Rule
	Row   *policy.RuleRow
	Tier  policy.Tier
	Peer  bool // the rule matches the peer
	Ports []PortPrefix
}

// Match flattens the rules that match a peer. ports are the named ports of the flow's destination. If see is not nil,
// it is called with each rule.
func (l *Rules) Match(peer *End, family int, ports []PortBinding, see func(MatchedRule)) []PortVerdict {
	if !l.Enforced {
		return []PortVerdict{{Verdict: Allowed}}
	}
	var matched []*entry
	for i := range l.entries {
		e := l.entries[i]
		if e.rule == nil {
			if i != l.hostAt || hostSelector().MatchesSet(peer.LabelSet) {
				matched = append(matched, &e)
			}
			continue
		}
		e.ports = slices.Concat(e.ports, resolveOwn(e.names, ports))
		matches := l.compiler.matchesPeer(e.rule, peer, family)
		if see != nil {
			see(MatchedRule{e.rule.Rule, e.rule.Row(), e.rule.spec.Tier, matches, e.ports})
		}
		if matches {
			matched = append(matched, &e)
		}
	}
	return flatten(matched, func(e *entry) []PortPrefix { return e.ports }, l.compiler.knownNumber)
}

// Equal reports whether two lists, maybe of two compilers, have the same rules in the same order.
func (l *Rules) Equal(o *Rules) bool {
	return l.Enforced == o.Enforced && slices.EqualFunc(l.entries, o.entries, func(a, b entry) bool {
		if a.rule == nil || b.rule == nil {
			return a.rule == b.rule && a.verdict == b.verdict
		}
		return a.rule.key == b.rule.key && a.rule.required == b.rule.required
	})
}

// EachPrefix calls yield with the prefixes of rules and their exceptions until it returns false.
func (l *Rules) EachPrefix(yield func(netip.Prefix) bool) {
	for _, e := range l.entries {
		if e.rule == nil {
			continue
		}
		for _, a := range e.rule.peers.addresses {
			for _, p := range slices.Concat(l.compiler.included(&a.source), a.source.except) {
				if !yield(p) {
					return
				}
			}
		}
	}
}

func (r *rule) Row() *policy.RuleRow {
	return &policy.RuleRow{ID: r.id, Origin: r.Origin, Direction: r.Direction, Action: r.Action}
}

// matchesPeer reports whether one of a rule's peers matches an end.
func (c *Compiler) matchesPeer(r *rule, peer *End, family int) bool {
	if r.peers.any[family] {
		return true
	}
	for _, s := range r.peers.selectors {
		if s.MatchesSet(peer.LabelSet) {
			return true
		}
	}
	byCIDR := c.Config.CIDRNodes && (hostSelector().MatchesSet(peer.LabelSet) ||
		remoteSelector().MatchesSet(peer.LabelSet))
	for _, a := range r.peers.addresses {
		if a.source.names != nil {
			if peer.Outside && a.source.matchesNames(peer.Names) {
				return true
			}
			continue
		}
		if (a.source.pods || peer.Outside || byCIDR) && peer.Addr.IsValid() && a.required.MatchesSet(peer.LabelSet) &&
			c.contains(&a.source, peer.Addr) {
			return true
		}
	}
	return false
}

// contains reports whether an address is among those of a source.
func (c *Compiler) contains(s *addressSource, a netip.Addr) bool {
	has := func(p netip.Prefix) bool { return p.Contains(a) }
	return slices.ContainsFunc(c.included(s), has) && !slices.ContainsFunc(s.except, has)
}

// Lookup finds the verdict on a flow of the endpoint in a slot as the datapath does.
func (c *Compiler) Lookup(slot uint16, dir policy.Direction, peer netip.Addr, proto uint8, port uint16) PortVerdict {
	return c.lookupAs(slot, dir, peer, Family(peer), proto, port)
}

// lookupAs is Lookup in the endpoint's set of a family.
func (c *Compiler) lookupAs(slot uint16, dir policy.Direction, peer netip.Addr, family int, proto uint8,
	port uint16) PortVerdict {
	s := c.endpoints[slot].Sets[dir][family]
	if s == nil {
		return PortVerdict{Verdict: Allowed}
	}
	class := s.Default
	if d := c.peers.byNumber[c.space.lookup(peer)]; d != nil && s.Peers[d] != nil {
		class = s.Peers[d]
	}
	return Lookup(class.Verdicts, proto, port)
}

// outside reports whether an address is outside the cluster: names apply to it.
func (c *Compiler) outside(a netip.Addr) bool {
	number := c.space.lookup(a)
	d := c.peers.byNumber[number]
	return d != nil && d.base.outside()
}

// LookupNamed is Lookup of egress to an address that names of selectors have, as the datapath does it. To addresses in
// the cluster, names do not apply. For others, what the address itself allows without the proxy, and what some rule
// denies, counts first, then the selectors, of which one that allows without the proxy comes first.
func (c *Compiler) LookupNamed(slot uint16, peer netip.Addr, selectors []uint32, proto uint8, port uint16) PortVerdict {
	own := c.Lookup(slot, policy.Egress, peer, proto, port)
	if own.Verdict == Denied || own.Verdict == Allowed && !own.Proxy || !c.outside(peer) {
		return own
	}
	for _, n := range selectors {
		v := c.lookupAs(slot, policy.Egress, SelectorAddress(n), Family(peer), proto, port)
		if v.Verdict == Allowed && (!v.Proxy || own.Verdict != Allowed) {
			own = v
		}
	}
	return own
}

// Isolating are the policies by which traffic of an endpoint that no rule allows is denied, sorted.
func (c *Compiler) Isolating(slot uint16, dir policy.Direction) []string {
	if t := c.endpoints[slot]; t != nil {
		return c.isolatingSubject(t.subject, dir, t.host)
	}
	return nil
}

func (c *Compiler) isolatingSubject(s *subject, dir policy.Direction, host bool) []string {
	by := map[string]bool{}
	for _, chosen := range s.by {
		for spec := range chosen.users {
			if spec.Tier == policy.TierDefault && spec.Isolates[dir] {
				by[spec.Ref.String()] = true
			}
		}
	}
	if len(by) == 0 && c.Config.Mode == policy.ModeAlways && !host {
		return []string{"policyEnforcementMode: always"}
	}
	return slices.Sorted(maps.Keys(by))
}
