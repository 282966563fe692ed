package policy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// end is one end of a flow, with everything that rules match on.
type end struct {
	labels   []string
	set      labelSet
	addr     netip.Addr
	outside  bool // of the cluster
	bindings []binding
}

// newEnd describes an end by its address, by labels, or by both.
func (c *compiler) newEnd(addr netip.Addr, labels []string) (*end, error) {
	e := &end{labels: labels, addr: addr.Unmap()}
	if e.addr.IsValid() && len(e.labels) == 0 {
		e.labels = c.labelsAt(e.addr)
	}
	if len(e.labels) == 0 {
		return nil, fmt.Errorf("neither an address nor labels are given")
	}
	e.set = parseLabels(e.labels)
	e.outside = world(0).MatchesSet(e.set) || world(1).MatchesSet(e.set)
	if e.addr.IsValid() {
		e.bindings = c.bindingsAt(e.addr)
	}
	return e, nil
}

// isNode reports whether an end is a node.
func (e *end) isNode() bool {
	return slices.ContainsFunc(e.labels, isNodeLabel)
}

func isNodeLabel(l string) bool { return l == "reserved:host" || l == "reserved:remote-node" }

// family is 0 for IPv4 and 1 for IPv6.
func (e *end) family() int {
	switch {
	case e.addr.IsValid():
		return familyOf(e.addr)
	case world(0).MatchesSet(e.set):
		return 0
	}
	return 1
}

// outsideEnd is an end outside of the cluster without an address.
func outsideEnd(label string) *end {
	return &end{labels: []string{label}, set: parseLabels([]string{label}), outside: true}
}

// bindingsAt are the named ports of the pod that has an address.
func (c *compiler) bindingsAt(a netip.Addr) (out []binding) {
	for _, p := range c.pods {
		if slices.Contains(p.addresses, a) {
			out = p.bindings
		}
	}
	return out
}

// allBindings are the named ports of pods, by address.
func (c *compiler) allBindings() map[netip.Addr][]binding {
	out := map[netip.Addr][]binding{}
	for _, p := range c.pods {
		for _, a := range p.addresses {
			out[a] = p.bindings
		}
	}
	return out
}

// labelsAt are the labels of the identity that an address has.
func (c *compiler) labelsAt(a netip.Addr) []string {
	b := c.peers.base(worldOf(a))
	p := netip.PrefixFrom(a, a.BitLen())
	if o, ok := c.space.owned.Get(p); ok {
		b = o.base
	}
	if c.space.of(p).apiServer {
		b = b.with(true, c.peers)
	}
	return b.labels.texts()
}

// asSubject is an end as the policies of its own node select it.
func (c *compiler) asSubject(e *end, node string) *end {
	out := e.asPeer(node, node)
	if n := c.nodes[node]; n != nil && out != e {
		out.set = parseLabels(slices.Concat(out.labels, n.labels.texts()))
	}
	return out
}

// asPeer is an end that may be a node with the labels that policies of the other end's node give it: a node is "host" to
// its own pods only.
func (e *end) asPeer(node, other string) *end {
	at := slices.IndexFunc(e.labels, isNodeLabel)
	if at < 0 || node == "" || other == "" {
		return e
	}
	out := *e
	out.labels = slices.Clone(e.labels)
	if out.labels[at] = "reserved:remote-node"; node == other {
		out.labels[at] = "reserved:host"
	}
	out.set = parseLabels(out.labels)
	return &out
}

// ruleList is the rules of an endpoint in one direction, in order of precedence.
type ruleList struct {
	c        *compiler
	list     []entry
	hostAt   int
	enforced bool // some policy selects the endpoint in this direction
	// isolating are the policies by which traffic that no rule allows is denied.
	isolating []string
}

// rulesOf finds the rules of an endpoint with these labels.
func (c *compiler) rulesOf(dir Direction, labels labelSet) *ruleList {
	host := hostSelector().MatchesSet(labels)
	l := &ruleList{c: c}
	s := &subject{}
	s.thing, s.labels = s, labels
	c.subjects.add(&s.labeled)
	rules, isolated, decided := c.rulesFor(s, dir)
	l.isolating = c.isolatingSubject(s, dir, host)
	c.subjects.remove(&s.labeled)
	if c.config.Mode == ModeAlways && !host {
		isolated, decided = true, true
	}
	l.enforced = decided
	l.list, l.hostAt = entries(rules, isolated, dir == Ingress && !host && !c.config.HostDenied)
	return l
}

// matchedRule is a rule that was compared with a flow. ports are those of the rule, with the numbers that its port names have.
type matchedRule struct {
	*Rule
	row   *RuleRow
	tier  Tier
	peer  bool // the rule matches the peer
	ports []portPrefix
}

// match flattens the rules that match a peer. ports are the named ports of the flow's destination. If see is not nil, it is called with
// each rule.
func (l *ruleList) match(peer *end, family int, ports []binding, see func(matchedRule)) []row {
	if !l.enforced {
		return []row{{ruling: allowed}}
	}
	var matched []*entry
	for i := range l.list {
		e := l.list[i]
		if e.rule == nil {
			if i != l.hostAt || hostSelector().MatchesSet(peer.set) {
				matched = append(matched, &e)
			}
			continue
		}
		e.ports = slices.Concat(e.ports, resolveOwn(e.names, ports))
		matches := l.c.matchesPeer(e.rule, peer, family)
		if see != nil {
			see(matchedRule{e.rule.Rule, e.rule.row(), e.rule.spec.Tier, matches, e.ports})
		}
		if matches {
			matched = append(matched, &e)
		}
	}
	return flatten(matched, func(e *entry) []portPrefix { return e.ports })
}

// sameRules reports whether two lists, maybe of two compilers, have the same rules in the same order.
func (l *ruleList) sameRules(o *ruleList) bool {
	return l.enforced == o.enforced && slices.EqualFunc(l.list, o.list, func(a, b entry) bool {
		if a.rule == nil || b.rule == nil {
			return a.rule == b.rule && a.ruling == b.ruling
		}
		return a.rule.key == b.rule.key && a.rule.asked == b.rule.asked
	})
}

// eachPrefix calls yield with the prefixes of rules and their exceptions until it returns false.
func (l *ruleList) eachPrefix(yield func(netip.Prefix) bool) {
	for _, e := range l.list {
		if e.rule == nil {
			continue
		}
		for _, a := range e.rule.peers.addresses {
			for _, p := range slices.Concat(l.c.included(&a.source), a.source.except) {
				if !yield(p) {
					return
				}
			}
		}
	}
}

func (r *rule) row() *RuleRow {
	return &RuleRow{ID: r.id, Origin: r.Origin, Direction: r.Direction, Action: r.Action}
}

// matchesPeer reports whether one of a rule's peers matches an end.
func (c *compiler) matchesPeer(r *rule, peer *end, family int) bool {
	if r.peers.any[family] {
		return true
	}
	for _, s := range r.peers.selectors {
		if s.MatchesSet(peer.set) {
			return true
		}
	}
	byCIDR := c.config.CIDRNodes && (hostSelector().MatchesSet(peer.set) || remoteSelector().MatchesSet(peer.set))
	for _, a := range r.peers.addresses {
		if (a.source.pods || peer.outside || byCIDR) && peer.addr.IsValid() && a.required.MatchesSet(peer.set) &&
			c.contains(&a.source, peer.addr) {
			return true
		}
	}
	return false
}

// contains reports whether an address is among those of a source.
func (c *compiler) contains(s *addressSource, a netip.Addr) bool {
	has := func(p netip.Prefix) bool { return p.Contains(a) }
	return slices.ContainsFunc(c.included(s), has) && !slices.ContainsFunc(s.except, has)
}

// lookup finds the verdict on a flow of the endpoint in a slot as the datapath does.
func (c *compiler) lookup(slot uint16, dir Direction, peer netip.Addr, proto uint8, port uint16) row {
	s := c.targets[slot].sets[dir][familyOf(peer)]
	if s == nil {
		return row{ruling: allowed}
	}
	class := s.rest
	if d := c.peers.byNumber[c.space.lookup(peer)]; d != nil && s.peers[d] != nil {
		class = s.peers[d]
	}
	return lookup(class.rows, proto, port)
}

// isolating are the policies by which traffic of an endpoint that no rule allows is denied, sorted.
func (c *compiler) isolating(slot uint16, dir Direction) []string {
	if t := c.targets[slot]; t != nil {
		return c.isolatingSubject(t.subject, dir, t.host)
	}
	return nil
}

func (c *compiler) isolatingSubject(s *subject, dir Direction, host bool) []string {
	by := map[string]bool{}
	for _, chosen := range s.by {
		for spec := range chosen.users {
			if spec.Tier == TierDefault && spec.Isolates[dir] {
				by[spec.Ref.String()] = true
			}
		}
	}
	if len(by) == 0 && c.config.Mode == ModeAlways && !host {
		return []string{"policyEnforcementMode: always"}
	}
	return slices.Sorted(maps.Keys(by))
}
