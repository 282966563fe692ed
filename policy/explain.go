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
func (e *Engine) Explain(q Question) (Answer, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ask(e.compiler, q)
}

// ask leaves out what policies say of nodes where those are not enforced.
func (e *Engine) ask(c *compiler, q Question) (Answer, error) {
	a, err := c.explain(q)
	if err != nil || e.Config.Host {
		return a, err
	}
	for finding, who := range map[*Finding]Who{&a.Egress: q.Src, &a.Ingress: q.Dst} {
		of, err := c.end(who)
		if err == nil && slices.ContainsFunc(of.labels, func(l string) bool { return l == "reserved:host" || l == "reserved:remote-node" }) {
			*finding = Finding{Action: allowed.String()}
		}
	}
	return a, nil
}

// end is an end of a flow with all that rules may ask of it.
type end struct {
	labels   []string
	set      labelSet
	addr     netip.Addr
	outside  bool
	bindings []binding
}

func (c *compiler) explain(q Question) (a Answer, err error) {
	src, err := c.end(q.Src)
	if err != nil {
		return a, fmt.Errorf("source: %w", err)
	}
	dst, err := c.end(q.Dst)
	if err != nil {
		return a, fmt.Errorf("destination: %w", err)
	}
	family := boolIndex(q.Family == 6)
	for _, addr := range []netip.Addr{src.addr, dst.addr} {
		if addr.IsValid() {
			family = familyOf(addr)
		}
	}
	a.Egress = c.find(Egress, c.judged(src, q.SrcNode), c.seen(dst, q.DstNode, q.SrcNode), family, dst.bindings, q)
	a.Ingress = c.find(Ingress, c.judged(dst, q.DstNode), c.seen(src, q.SrcNode, q.DstNode), family, dst.bindings, q)
	return a, nil
}

// judged is an end as its own node's policies select it.
func (c *compiler) judged(e *end, node string) *end {
	out := c.seen(e, node, node)
	if n := c.nodes[node]; n != nil && out != e {
		out.set = parseLabels(slices.Concat(out.labels, n.labels.texts()))
	}
	return out
}

// seen is an end that may be a node as policies of another end's node call it.
func (c *compiler) seen(e *end, node, by string) *end {
	at := slices.IndexFunc(e.labels, func(l string) bool { return l == "reserved:host" || l == "reserved:remote-node" })
	if at < 0 || node == "" || by == "" {
		return e
	}
	out := *e
	out.labels = slices.Clone(e.labels)
	if out.labels[at] = "reserved:remote-node"; node == by {
		out.labels[at] = "reserved:host"
	}
	out.set = parseLabels(out.labels)
	return &out
}

// end finds what is known of somebody.
func (c *compiler) end(w Who) (*end, error) {
	e := &end{labels: w.Labels, addr: w.Addr.Unmap()}
	if e.addr.IsValid() && len(e.labels) == 0 {
		e.labels = c.labelsAt(e.addr)
	}
	if len(e.labels) == 0 {
		return nil, fmt.Errorf("neither an address nor labels are given")
	}
	e.set = parseLabels(e.labels)
	e.outside = world(0).matches(e.set) || world(1).matches(e.set)
	for _, p := range c.pods {
		if e.addr.IsValid() && slices.Contains(p.addresses, e.addr) {
			e.bindings = p.bindings
		}
	}
	return e, nil
}

// labelsAt are the labels of who has an address.
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

// find judges one end.
func (c *compiler) find(dir Direction, of, peer *end, family int, ports []binding, q Question) (f Finding) {
	f.Action = allowed.String()
	host := hostSelector().matches(of.set)
	if of.outside || c.config.Mode == ModeNever {
		return f
	}
	list, hostAt, decided := c.entriesFor(dir, of.set, host, func(s *subject) { f.Isolating = c.isolating(s, dir, host) })
	if f.Enforced = decided; !decided {
		return f
	}
	matched := c.matched(list, hostAt, peer, family, ports, func(e *entry, meant bool) {
		said := Considered{RuleRow: *e.rule.row(), Tier: e.rule.spec.Tier, Peer: meant, Unenforced: e.rule.Unenforced}
		said.Ports = slices.ContainsFunc(e.ports, func(p portPrefix) bool { return p.covers(q.Proto, q.Port) })
		f.Rules = append(f.Rules, said)
	})
	decides := lookup(flatten(matched, func(e *entry) []portPrefix { return e.ports }), q.Proto, q.Port)
	f.Action = decides.ruling.String()
	for i := range f.Rules {
		if decides.rule != 0 && f.Rules[i].ID == decides.rule {
			f.Rule = &f.Rules[i].RuleRow
		}
	}
	return f
}

// entriesFor are the entries of whoever has these labels, and whether any policy
// speaks of the direction. also is called while the labels are selected.
func (c *compiler) entriesFor(dir Direction, labels labelSet, host bool, also func(*subject)) (list []entry, hostAt int, decided bool) {
	s := &subject{}
	s.thing, s.labels = s, labels
	c.subjects.add(&s.labeled)
	rules, isolated, decided := c.rulesFor(s, dir)
	also(s)
	c.subjects.remove(&s.labeled)
	if c.config.Mode == ModeAlways && !host {
		isolated, decided = true, true
	}
	list, hostAt = entries(rules, isolated, dir == Ingress && !host && !c.config.HostDenied)
	return list, hostAt, decided
}

// matched are the entries that a peer is matched by, with ports for the names
// that they have. It calls see for each rule.
func (c *compiler) matched(list []entry, hostAt int, peer *end, family int, ports []binding, see func(*entry, bool)) (out []*entry) {
	for i := range list {
		e := list[i]
		if e.rule == nil {
			if i != hostAt || hostSelector().matches(peer.set) {
				out = append(out, &e)
			}
			continue
		}
		e.ports = slices.Concat(e.ports, resolveOwn(e.names, ports))
		meant := c.speaksOf(e.rule, peer, family)
		if see(&e, meant); meant {
			out = append(out, &e)
		}
	}
	return out
}

func (r *rule) row() *RuleRow {
	return &RuleRow{ID: r.id, Origin: r.Origin, Direction: r.Direction, Action: r.Action}
}

// speaksOf reports whether a rule means a peer.
func (c *compiler) speaksOf(r *rule, peer *end, family int) bool {
	if r.peers.any[family] {
		return true
	}
	for _, s := range r.peers.selectors {
		if s.matches(peer.set) {
			return true
		}
	}
	byCIDR := c.config.CIDRNodes && (hostSelector().matches(peer.set) || remoteSelector().matches(peer.set))
	for _, a := range r.peers.addresses {
		if (a.source.pods || peer.outside || byCIDR) && peer.addr.IsValid() && a.required.matches(peer.set) && c.contains(&a.source, peer.addr) {
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
