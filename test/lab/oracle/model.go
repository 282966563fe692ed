package oracle

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"myelin/test/policy/reference"
)

// Place is somewhere packets are sent from and received: a pod, a node, or the world.
type Place struct {
	Name  string
	Node  string // a pod's, or the node itself; empty: the world
	Pod   bool
	Addrs []netip.Addr
}

// Has is true for addresses of the place.
func (p *Place) Has(a netip.Addr) bool { return slices.Contains(p.Addrs, a) }

// Attempt is a packet that was sent, maybe in several frames.
type Attempt struct {
	N    uint64
	Kind string
	From *Place
	// Claimed is the source that the packet has, of an encapsulated one the inner one; Outer is the source of what it
	// is encapsulated in.
	Claimed, Outer netip.Addr
	// Real are the flows that a receiver may make of the packet. It may be received if one of them is allowed.
	Real   []Flow
	Frames [][]byte
	// Fakes are flows that a careless reader may take the packet for.
	Fakes []Flow
	// Begins: the packet may open a flow. Of TCP any segment does: its sender may open the connection where policies
	// allow it, and the datapath takes what it saw before there were policies for old connections.
	Begins bool
	// Direct: it has the option of direct server return.
	Direct bool
}

// Model is what is known of a network: addresses, policies, and open flows.
type Model struct {
	Places   []*Place
	Gateways map[string][]netip.Addr // by node: what the node is called by its pods
	World    *reference.World
	Tunnel   bool                          // pods' packets come in a tunnel only
	Services map[Frontend][]netip.AddrPort // where they lead
	// Blocked are the prefixes of the denylist. None of them has addresses of the cluster.
	Blocked []netip.Prefix

	attempts map[uint64]*Attempt
	dialled  map[Flow]bool
	ids      map[fragmentKey]*Attempt
	open     map[at]bool
	verdicts map[at]bool
}

// Frontend is an address and port of a Service.
type Frontend struct {
	netip.AddrPort
	Proto uint8
}

type fragmentKey struct {
	src, dst netip.Addr
	id       uint32
}

// at is a flow as one node sees it.
type at struct {
	node string
	Flow
}

// Enforce changes the policies.
func (m *Model) Enforce(w *reference.World) {
	m.World, m.verdicts = m.withGateways(w), map[at]bool{}
	if m.open == nil {
		m.open = map[at]bool{}
	}
	m.forget()
}

// forget drops what was sent. Flows stay open.
func (m *Model) forget() {
	m.attempts, m.ids, m.dialled = map[uint64]*Attempt{}, map[fragmentKey]*Attempt{}, map[Flow]bool{}
}

// Sent notes an attempt before it is sent.
func (m *Model) Sent(a *Attempt) {
	m.attempts[a.N] = a
	for _, frame := range a.Frames {
		if s, ok := ReadFrame(frame); ok && s.Fragment {
			m.ids[fragmentKey{s.Src, s.Dst, s.ID}] = a
		}
	}
	for _, f := range m.led(slices.Concat(a.Real, a.Fakes)) {
		m.begin(f, a.From, a.honest(), a.ofNode(), a.Begins)
	}
	if !a.Outer.IsValid() {
		return
	}
	for _, frame := range a.Frames {
		if s, ok := ReadFrame(frame); ok && s.Src == a.Outer { // to whoever decapsulates nothing, a flow of its own
			own := a.From.Has(a.Outer)
			m.begin(s.Flow, a.From, own && a.From.Pod, own && !a.From.Pod && a.From.Node != "", true)
		}
	}
}

// begin opens the flow where it passes. honest and ofNode are as of an attempt.
func (m *Model) begin(f Flow, from *Place, honest, ofNode, begins bool) {
	if ofNode && begins && !f.isReply() && m.verdict(from.Node, f) {
		m.open[at{from.Node, f}] = true // the node's own policies see it leave
	}
	if m.passes(f, honest, begins) {
		m.passes(f.reverse(), true, true) // by which the receiver's kernel may answer
	}
}

// led are flows and, of those to a Service, also what they become: policies apply to the client and the backend.
func (m *Model) led(flows []Flow) []Flow {
	list := slices.Clone(flows)
	for _, f := range flows {
		for _, backend := range m.Services[Frontend{netip.AddrPortFrom(f.Dst, f.DPort), f.Proto}] {
			f.Dst, f.DPort = backend.Addr(), backend.Port()
			list = append(list, f)
		}
	}
	return list
}

// honest: a pod sends it by its own name. What a node's root or the world sends has passed no policy for its source.
func (a *Attempt) honest() bool { return a.From.Pod && a.From.Has(a.Claimed) && !a.Outer.IsValid() }

// ofNode: a node sends it by its own name.
func (a *Attempt) ofNode() bool {
	return !a.From.Pod && a.From.Node != "" && a.From.Has(a.Claimed) && !a.Outer.IsValid()
}

// passes says whether each node on a packet's way lets it pass: the sender's, if the source is the sender's own, and
// the receiver's. A flow that begins is open where it passes.
func (m *Model) passes(f Flow, honest, begins bool) bool {
	nodes := []string{m.nodeOf(f.Src), m.nodeOf(f.Dst)}
	if !honest || nodes[0] == nodes[1] {
		nodes = nodes[1:]
	}
	for _, node := range nodes {
		allowed := node == "" || m.verdict(node, f)
		if !allowed && !m.isOpen(node, f) {
			return false
		}
		if begins && allowed && !f.isReply() {
			m.open[at{node, f}] = true
		}
	}
	return true
}

// isOpen says whether a packet goes on with a flow that a node has let pass, and whose beginning policies still allow,
// or answers one.
func (m *Model) isOpen(node string, f Flow) bool {
	for _, began := range []Flow{f, f.reverse()} {
		if m.open[at{node, began}] && m.verdict(node, began) {
			return true
		}
	}
	return false
}

// place finds the owner of an address.
func (m *Model) place(a netip.Addr) *Place {
	for _, p := range m.Places {
		if p.Has(a) {
			return p
		}
	}
	return nil
}

// node finds a node by its name.
func (m *Model) node(name string) *Place {
	for _, p := range m.Places {
		if p.Node == name && !p.Pod && name != "" {
			return p
		}
	}
	return nil
}

// nodeOf is the node that an address is on; empty for those outside.
func (m *Model) nodeOf(a netip.Addr) string {
	if p := m.place(a); p != nil {
		return p.Node
	}
	return ""
}

// verdict is what a node's policies say of what begins a flow.
func (m *Model) verdict(node string, f Flow) bool {
	q := at{node, Flow{Src: f.Src, Dst: f.Dst, Proto: f.Proto, DPort: f.DPort}}
	allowed, known := m.verdicts[q]
	if !known {
		here := *m.World
		here.Node = node
		allowed = here.Verdict(probe(f)).Allowed
		m.verdicts[q] = allowed
	}
	return allowed
}

func probe(f Flow) reference.Probe {
	return reference.Probe{Src: f.Src, Dst: f.Dst, Proto: f.Proto, Port: f.DPort}
}

// Dialled notes that the kernel of the flow's source begins it.
func (m *Model) Dialled(f Flow) {
	m.dialled[f] = true
	if m.passes(f, true, true) {
		m.passes(f.reverse(), true, true)
	}
}

// Attempt finds what a packet belongs to; nil if it isn't an attempt's.
func (m *Model) Attempt(s Seen) *Attempt {
	if s.Tagged {
		return m.attempts[s.Tag]
	}
	if s.Fragment {
		return m.ids[fragmentKey{s.Src, s.Dst, s.ID}]
	}
	return nil
}

// Check says what is wrong with a packet that was received at a place: empty, if nothing is.
func (m *Model) Check(to *Place, s Seen) string {
	a := m.Attempt(s)
	switch {
	case s.Tagged && a == nil:
		return "" // sent under other policies
	case s.Proto == ICMPv6 && s.Whole && (s.DPort >= 130 && s.DPort <= 137 || s.DPort == 143), s.Proto == 2:
		return "" // neighbours and groups, which no policy is about
	case a == nil || to == a.From || m.answers(a, s): // what comes back to its sender is an answer
		return m.checkAnswer(to, s)
	}
	if why := m.forged(a, to); why != "" {
		return why
	}
	if source := cmp.Or(a.Outer, a.Claimed); a.From.Node != to.Node && m.blocked(source, to.Node) {
		return fmt.Sprintf("its source is blocked: %s is in the denylist", source)
	}
	if m.allowed(a, to, s) {
		return ""
	}
	why := "policies do not allow it"
	for _, f := range m.real(a, to, s) {
		why += fmt.Sprintf("; %s: %s", f, m.World.Path(probe(f)).Why)
	}
	return why
}

// Accepted says what is wrong with a flow that a kernel opened and another one took: empty, if nothing is. It is open
// from now on.
func (m *Model) Accepted(f Flow) string {
	if m.blocked(f.Src, m.nodeOf(f.Dst)) {
		return "its source is blocked"
	}
	if f.Src != f.Dst && !m.masqueraded(f) && !m.passes(f, true, true) {
		return "policies do not allow it: " + m.World.Path(probe(f)).Why
	}
	return ""
}

// masqueraded tells whether a flow that comes to the world from a node may be one that a pod of the node was allowed to
// open.
func (m *Model) masqueraded(f Flow) bool {
	from := m.place(f.Src)
	if from == nil || from.Pod || from.Node == "" || m.nodeOf(f.Dst) != "" {
		return false
	}
	for d := range m.dialled {
		pod := m.place(d.Src)
		same := d.Proto == f.Proto && d.Dst == f.Dst && d.DPort == f.DPort
		if same && pod != nil && pod.Pod && pod.Node == from.Node && m.passes(d, true, false) {
			return true
		}
	}
	return false
}

// real are the flows to check: what the receiver knows, else what it may make of the packet.
func (m *Model) real(a *Attempt, to *Place, s Seen) []Flow {
	if !s.Whole {
		return m.led(a.Real)
	}
	f := s.Flow
	if a.From.Pod && a.From.Has(a.Claimed) && f.Src != a.Claimed {
		f.Src = a.Claimed // the pod is behind its node, or answers as a Service, by a port that is not its own either
		if len(a.Real) > 0 && a.Real[0].SPort != 0 && !f.isICMP() {
			f.SPort = a.Real[0].SPort
		}
	}
	if !to.Has(f.Dst) {
		for _, own := range to.Addrs {
			if own.Is4() == f.Dst.Is4() && (!to.Pod || own.Is4() == f.Src.Is4()) {
				f.Dst = own // broadcast, multicast, link-local
				break
			}
		}
	}
	return []Flow{f}
}

func (m *Model) allowed(a *Attempt, to *Place, s Seen) bool {
	for _, f := range m.real(a, to, s) {
		if m.passes(f, a.honest(), false) {
			return true
		}
	}
	if !s.Error || !to.Has(s.Quoted.Src) || a.honest() && !m.isOpen(a.From.Node, s.Quoted) {
		return false
	}
	return m.isOpen(to.Node, s.Quoted)
}

// forged says what is wrong with the source that an attempt claims to have, as far as a node can know.
func (m *Model) forged(a *Attempt, to *Place) string {
	if a.From.Has(a.Claimed) && !a.Outer.IsValid() {
		return ""
	}
	if a.From.Pod {
		return fmt.Sprintf("pod %s sent it in the name of %s, encapsulated by %s", a.From.Name, a.Claimed, a.Outer)
	}
	owner := m.place(a.Claimed)
	node := ""
	if owner != nil {
		node = owner.Node
	}
	for name, gateways := range m.Gateways {
		if slices.Contains(gateways, a.Claimed) {
			node = name
		}
	}
	switch {
	case node != "" && node == to.Node:
		return fmt.Sprintf("the wire brought it with this node's own %s as source", a.Claimed)
	case a.Outer.IsValid():
		outer := m.place(a.Outer)
		if outer == nil || outer.Pod || outer.Node == "" {
			return fmt.Sprintf("it came encapsulated by %s, which is no node", a.Outer)
		}
		if node != "" && node != outer.Node {
			return fmt.Sprintf("%s encapsulated %s, which is on %s", outer.Name, a.Claimed, node)
		}
	case m.Tunnel && owner != nil && owner.Pod && to.Pod:
		return fmt.Sprintf("%s is a pod's, and it came outside of the tunnel", a.Claimed)
	}
	return ""
}

// Restart forgets flows and attempts; policies stay.
func (m *Model) Restart() {
	m.open = map[at]bool{}
	m.forget()
}
