package policy

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"myelin/cluster"
	"myelin/identity"
	"myelin/table/ledger"
)

// thing is somebody that has an address: a pod of a node, a node, or somebody
// outside.
type thing struct {
	name   string
	labels []string
	addrs  []netip.Addr
	ports  []cluster.Port
	id     uint32
	slot   uint16 // of endpoints of this node
}

// scene is what a compiler is told, so that a naive walk over it can say what
// should hold.
type scene struct {
	t        testing.TB
	config   Config
	things   []*thing
	nodes    map[string]*nodeFacts
	policies map[Ref][]Spec
	groups   map[string]groupFacts
	services map[cluster.Key]serviceFacts
}

func newNumbers(t testing.TB, last uint32) *ledger.Numbers[ledgerKey] {
	n, bad, err := ledger.NewNumbers[ledgerKey]("", last)
	if err != nil || bad != nil {
		t.Fatal(err, bad)
	}
	return n
}

func newScene(t testing.TB) *scene {
	return &scene{t: t, nodes: map[string]*nodeFacts{}, policies: map[Ref][]Spec{}, groups: map[string]groupFacts{}, services: map[cluster.Key]serviceFacts{}}
}

// compiler makes one from scratch.
func (w *scene) compiler() *compiler {
	c := w.newCompiler(firstDerived - 1)
	c.flush()
	return c
}

// newCompiler makes one that is told all, and has not worked out anything.
func (w *scene) newCompiler(lastPeer uint32) *compiler {
	c := newCompiler(w.config, newNumbers(w.t, lastPeer), newNumbers(w.t, 0))
	for name, n := range w.nodes {
		c.setNode(name, n)
	}
	for name, g := range w.groups {
		c.setGroup(name, &g)
	}
	for key, s := range w.services {
		c.setService(key, s)
	}
	for _, x := range w.things {
		w.tell(c, x)
	}
	for ref, specs := range w.policies {
		c.setPolicy(ref, specs)
	}
	return c
}

func key(name string) cluster.Key { return cluster.Key{Namespace: "x", Name: name} }

// tell tells a compiler of a thing.
func (w *scene) tell(c *compiler, x *thing) {
	if x.id >= identity.First || x.id == identity.Host || x.id == identity.RemoteNode {
		c.identify(x.id, x.labels)
		for _, a := range x.addrs {
			c.setAddress(a, x.id)
		}
	}
	if x.id >= identity.First {
		c.setPod(key(x.name), x.addrs, x.ports)
	}
	if x.slot != 0 {
		c.setTarget(x.slot, x.labels, bindingsOf(x.ports), x.id == identity.Host, false)
	}
}

// forget is the opposite of tell.
func (w *scene) forget(c *compiler, x *thing) {
	for _, a := range x.addrs {
		c.setAddress(a, 0)
	}
	c.setPod(key(x.name), nil, nil)
	if x.slot != 0 {
		c.removeTarget(x.slot)
	}
	if !slices.ContainsFunc(w.things, func(o *thing) bool { return o != x && o.id == x.id }) {
		c.forget(x.id)
	}
}

// naive says what holds by looking at every rule of every object.
func (w *scene) naive(of *thing, dir Direction, peer *thing, a netip.Addr, proto uint8, port uint16) (ruling, string) {
	var rules []matching
	isolated, some := false, false
	required := w.required(of)
	for _, specs := range w.policies {
		for i := range specs {
			s := &specs[i]
			if s.Nodes != (of.id == identity.Host) || !s.Subject.Matches(of.labels) {
				continue
			}
			isolated = isolated || s.Tier == TierDefault && s.Isolates[dir]
			for j := range s.Rules {
				if s.Rules[j].Direction != dir {
					continue
				}
				some = true
				dest := peer
				if dir == Ingress {
					dest = of
				}
				if w.peerMatches(&s.Rules[j], s.Tier, required, peer, a) && portMatches(&s.Rules[j], dest, proto, port) {
					rules = append(rules, matching{&s.Rules[j], s, i<<16 | j, s.Ref.Key.String() + " " + s.Ref.Kind})
				}
			}
		}
	}
	isolated = isolated || w.config.Mode == ModeAlways && of.id != identity.Host
	if w.config.Mode == ModeNever || !isolated && !some {
		return allowed, ""
	}
	slices.SortFunc(rules, matching.compare)
	tier := func(of Tier) (ruling, string, bool) {
		for _, r := range rules {
			if r.spec.Tier == of {
				return [...]ruling{denied, allowed, passed}[r.Action], r.Origin.String(), r.Action != Pass
			}
		}
		return 0, "", false
	}
	if v, why, ok := tier(TierAdmin); ok {
		return v, why
	}
	if v, why, ok := tier(TierDefault); ok {
		return v, why
	}
	if dir == Ingress && peer.id == identity.Host && of.id != identity.Host && !w.config.HostDenied {
		return allowed, ""
	}
	if isolated {
		return noRule, ""
	}
	if v, why, ok := tier(TierBaseline); ok {
		return v, why
	}
	return allowed, ""
}

// matching is a rule that matches a flow.
type matching struct {
	*Rule
	spec  *Spec
	place int
	name  string
}

// compare puts rules in order of precedence.
func (m matching) compare(o matching) int {
	within := cmp.Compare(m.spec.Priority, o.spec.Priority)
	if m.spec.Tier == TierDefault {
		within = cmp.Compare(m.Action, o.Action)
	}
	return cmp.Or(cmp.Compare(m.spec.Tier, o.spec.Tier), within, strings.Compare(m.name, o.name), cmp.Compare(m.place, o.place))
}

// labelsOf are a thing's, as rules see them.
func (w *scene) labelsOf(x *thing, a netip.Addr) []string {
	out := slices.Clone(x.labels)
	if x.id == 0 {
		out = []string{"reserved:world", []string{"reserved:world-ipv4", "reserved:world-ipv6"}[familyOf(a)]}
	}
	if slices.Contains(w.services[cluster.Key{Namespace: "default", Name: "kubernetes"}].addresses, a) {
		out = append(out, "reserved:kube-apiserver")
	}
	return out
}

// required is what all policies of an endpoint ask of its peers.
func (w *scene) required(of *thing) (out [2][2][]Selector) {
	for _, specs := range w.policies {
		for _, s := range specs {
			for dir := range out {
				for action := range out[dir] {
					if s.Nodes == (of.id == identity.Host) && s.Subject.Matches(of.labels) {
						out[dir][action] = append(out[dir][action], s.Required[dir][action]...)
					}
				}
			}
		}
	}
	return out
}

func (w *scene) peerMatches(r *Rule, tier Tier, required [2][2][]Selector, x *thing, a netip.Addr) bool {
	if r.Peers == nil {
		return true
	}
	labels := w.labelsOf(x, a)
	return slices.ContainsFunc(r.Peers, func(p Peer) bool {
		for _, s := range p.Required {
			if !s.Matches(labels) {
				return false
			}
		}
		if tier == TierDefault && p.Endpoints != nil && p.Entity == "" {
			for _, s := range required[r.Direction][r.Action] {
				if !s.Matches(labels) {
					return false
				}
			}
		}
		switch {
		case p.Endpoints != nil:
			return p.Endpoints.Matches(labels)
		case p.Nodes != nil:
			n := w.nodes[x.name]
			return n != nil && slices.Contains(n.addresses, a) && p.Nodes.MatchesSet(n.labels)
		case p.Prefixes != nil:
			return w.prefixesMatch(p.Prefixes, x, a)
		case p.Service != nil:
			return w.serviceMatches(p.Service, x, a, labels)
		}
		return true
	})
}

func (w *scene) prefixesMatch(p *Prefixes, x *thing, a netip.Addr) bool {
	has := func(q netip.Prefix) bool { return q.Contains(a) }
	if !p.Pods && x.id != 0 && !(w.config.CIDRNodes && isNode(x)) || slices.ContainsFunc(p.Except, has) {
		return false
	}
	for name, g := range w.groups {
		if (name == p.Group || p.GroupSelector != nil && p.GroupSelector.MatchesSet(g.labels)) && slices.ContainsFunc(g.prefixes, has) {
			return true
		}
	}
	return slices.ContainsFunc(p.Include, has)
}

func isNode(x *thing) bool { return x.id == identity.Host || x.id == identity.RemoteNode }

func (w *scene) serviceMatches(p *ServicePeer, x *thing, a netip.Addr, labels []string) bool {
	for key, s := range w.services {
		if p.Selector == nil && (key.Name != p.Name || key.Namespace != p.Namespace) ||
			p.Selector != nil && (!p.Selector.MatchesSet(s.labels) || p.Namespace != "" && p.Namespace != key.Namespace) {
			continue
		}
		if len(s.selector) == 0 {
			if (x.id == 0 || w.config.CIDRNodes && isNode(x)) && slices.Contains(s.addresses, a) {
				return true
			}
			continue
		}
		sel := Selector{{Source: "k8s", Key: "io.kubernetes.pod.namespace", Op: In, Values: []string{s.namespace}}}
		for k, v := range s.selector {
			sel = append(sel, Requirement{Source: "k8s", Key: k, Op: In, Values: []string{v}})
		}
		if sel.Matches(labels) {
			return true
		}
	}
	return false
}

func portMatches(r *Rule, dest *thing, proto uint8, port uint16) bool {
	if r.Ports == nil {
		return true
	}
	return slices.ContainsFunc(r.Ports, func(p Port) bool {
		if p.Name == "" {
			return p.Proto == ProtoAny || p.Proto == proto && p.First <= port && port <= p.Last
		}
		return dest.id >= identity.First && slices.ContainsFunc(dest.ports, func(q cluster.Port) bool {
			return q.Name == p.Name && protoOf(q.Protocol) == proto && q.Number == port && (p.Proto == ProtoAny || p.Proto == proto)
		})
	})
}

// explainCheck compares the explanation of a flow with its verdict.
type explainCheck func(c *compiler, of *thing, dir Direction, peer netip.Addr, proto uint8, port uint16, want row, what string)

// check compares a compiler with the naive walk, for all endpoints and peers.
func (w *scene) check(c *compiler, r *rand.Rand, what string, explained explainCheck) {
	w.t.Helper()
	for _, of := range w.things {
		if of.slot == 0 {
			continue
		}
		for _, peer := range w.things {
			for _, a := range peer.addrs {
				for range 3 {
					dir, proto, port := Direction(r.IntN(2)), pick(r, protos()), pick(r, somePorts())
					want, why := w.naive(of, dir, peer, a, proto, port)
					got := c.lookup(of.slot, dir, a, proto, port)
					if got.ruling != want {
						w.t.Fatalf("%s: %s %s %s (%s) %d/%d: got %s by rule %d, want %s by %s", what, of.name, dir, peer.name, a, proto, port, got.ruling, got.rule, want, why)
					}
					if r.IntN(4) > 0 {
						continue
					}
					explained(c, of, dir, a, proto, port, got, what)
				}
			}
		}
	}
}

func protos() []uint8     { return []uint8{ProtoTCP, ProtoTCP, ProtoUDP, ProtoICMP} }
func somePorts() []uint16 { return []uint16{0, 1, 79, 80, 81, 443, 8080, 8443, 65535} }

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }
