// Package scene makes up clusters for tests of compiled policies, and evaluates policies there without compiling them.
package scene

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"myelin/cluster"
	"myelin/internal/table/ledger"
	"myelin/policy"
	"myelin/policy/compile"
	"myelin/policy/identity"
	"myelin/test/policy/pick"
)

// Party has addresses: a pod, a node, or a host outside the cluster.
type Party struct {
	Name   string
	Labels []string
	Addrs  []netip.Addr
	ports  []cluster.Port
	Id     uint32
	Slot   uint16 // of endpoints of this node
}

// Scene is what a compiler is told, so that a naive walk over it can say what
// should hold.
type Scene struct {
	T        testing.TB
	Config   policy.Config
	Things   []*Party
	nodes    map[string]*compile.NodeFacts
	policies map[policy.Ref][]policy.Spec
	groups   map[string]compile.GroupFacts
	services map[cluster.Key]compile.ServiceFacts
}

func NewNumbers(t testing.TB, last uint32) *ledger.Numbers[compile.LedgerKey] {
	n, bad, err := ledger.NewNumbers[compile.LedgerKey]("", last)
	if err != nil || bad != nil {
		t.Fatal(err, bad)
	}
	return n
}

func New(t testing.TB) *Scene {
	return &Scene{T: t, nodes: map[string]*compile.NodeFacts{}, policies: map[policy.Ref][]policy.Spec{},
		groups: map[string]compile.GroupFacts{}, services: map[cluster.Key]compile.ServiceFacts{}}
}

// Compiler makes one from scratch.
func (w *Scene) Compiler() *compile.Compiler {
	c := w.NewCompiler(compile.FirstDerived - 1)
	c.Flush()
	return c
}

// NewCompiler makes one that is told all, and has not worked out anything.
func (w *Scene) NewCompiler(lastPeer uint32) *compile.Compiler {
	c := compile.New(w.Config, NewNumbers(w.T, lastPeer), NewNumbers(w.T, 0))
	for name, n := range w.nodes {
		c.SetNode(name, n)
	}
	for name, g := range w.groups {
		c.SetGroup(name, &g)
	}
	for key, s := range w.services {
		c.SetService(key, s)
	}
	for _, x := range w.Things {
		w.tell(c, x)
	}
	for ref, specs := range w.policies {
		c.SetPolicy(ref, specs)
	}
	return c
}

func Key(name string) cluster.Key { return cluster.Key{Namespace: "x", Name: name} }

// tell tells a compiler of a thing.
func (w *Scene) tell(c *compile.Compiler, x *Party) {
	if x.Id >= identity.First || x.Id == identity.Host || x.Id == identity.RemoteNode {
		c.Identify(x.Id, x.Labels)
		for _, a := range x.Addrs {
			c.SetAddress(a, x.Id)
		}
	}
	if x.Id >= identity.First {
		c.SetPod(Key(x.Name), x.Addrs, x.ports)
	}
	if x.Slot != 0 {
		c.SetEndpoint(x.Slot, x.Labels, compile.PortBindings(x.ports), x.Id == identity.Host, false)
	}
}

// forget is the opposite of tell.
func (w *Scene) forget(c *compile.Compiler, x *Party) {
	for _, a := range x.Addrs {
		c.SetAddress(a, 0)
	}
	c.SetPod(Key(x.Name), nil, nil)
	if x.Slot != 0 {
		c.RemoveEndpoint(x.Slot)
	}
	if !slices.ContainsFunc(w.Things, func(o *Party) bool { return o != x && o.Id == x.Id }) {
		c.Forget(x.Id)
	}
}

// Naive says what holds by looking at every rule of every object.
func (w *Scene) Naive(of *Party, dir policy.Direction, peer *Party, a netip.Addr, proto uint8,
	port uint16) (compile.Verdict, string) {
	v := w.NaiveNamed(of, dir, peer, a, nil, proto, port)
	return v.Verdict, v.Why
}

// NaiveVerdict is a verdict and its reason.
type NaiveVerdict struct {
	Verdict compile.Verdict
	Why     string
	// Proxied are the origins of the rules that the proxy enforces on the flow.
	Proxied []string
	// Baseline: no rule of the default tier matches.
	Baseline bool
}

// NaiveNamed is Naive where the address has names that the endpoint has learnt.
func (w *Scene) NaiveNamed(of *Party, dir policy.Direction, peer *Party, a netip.Addr, names []string, proto uint8,
	port uint16) NaiveVerdict {
	var rules []matching
	isolated, some := false, false
	required := w.required(of)
	for _, specs := range w.policies {
		for i := range specs {
			s := &specs[i]
			if s.Nodes != (of.Id == identity.Host) || !s.Subject.Matches(of.Labels) {
				continue
			}
			isolated = isolated || s.Tier == policy.TierDefault && s.Isolates[dir]
			for j := range s.Rules {
				if s.Rules[j].Direction != dir {
					continue
				}
				some = true
				dest := peer
				if dir == policy.Ingress {
					dest = of
				}
				matches := w.peerMatches(&s.Rules[j], s.Tier, required, peer, a, names)
				if matches && (w.Config.Proxy || s.Rules[j].L7 == nil) && portMatches(&s.Rules[j], dest,
					proto, port) {
					rules = append(rules, matching{&s.Rules[j], s, i<<16 | j, s.Ref.Key.String() + " " + s.Ref.Kind})
				}
			}
		}
	}
	isolated = isolated || w.Config.Mode == policy.ModeAlways && of.Id != identity.Host
	if w.Config.Mode == policy.ModeNever || !isolated && !some {
		return NaiveVerdict{Verdict: compile.Allowed}
	}
	host := dir == policy.Ingress && peer.Id == identity.Host && of.Id != identity.Host && !w.Config.HostDenied
	return decideNaive(rules, isolated, host)
}

// decideNaive says what the rules that match a flow make of it. host: it is one of this node to its own pod.
func decideNaive(rules []matching, isolated, host bool) NaiveVerdict {
	slices.SortFunc(rules, matching.compare)
	proxied := slices.DeleteFunc(slices.Clone(rules), func(m matching) bool { return m.L7 == nil })
	rules = slices.DeleteFunc(rules, func(m matching) bool { return m.L7 != nil })
	tier := func(of policy.Tier) (compile.Verdict, string, bool) {
		for _, r := range rules {
			if r.spec.Tier == of {
				return [...]compile.Verdict{compile.Denied, compile.Allowed, compile.Passed}[r.Action],
					r.Origin.String(),
					r.Action != policy.Pass
			}
		}
		return 0, "", false
	}
	if v, why, ok := tier(policy.TierAdmin); ok {
		return NaiveVerdict{Verdict: v, Why: why}
	}
	if v, why, ok := tier(policy.TierDefault); ok {
		return NaiveVerdict{Verdict: v, Why: why}
	}
	if host {
		return NaiveVerdict{Verdict: compile.Allowed}
	}
	if len(proxied) > 0 {
		return NaiveVerdict{Verdict: compile.Allowed, Proxied: originsOf(proxied)}
	}
	if isolated {
		return NaiveVerdict{Verdict: compile.NoRule}
	}
	if v, why, ok := tier(policy.TierBaseline); ok {
		return NaiveVerdict{Verdict: v, Why: why, Baseline: true}
	}
	return NaiveVerdict{Verdict: compile.Allowed, Baseline: true}
}

// originsOf are where rules come from, sorted, each once.
func originsOf(rules []matching) (out []string) {
	for _, r := range rules {
		out = append(out, r.Origin.String())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// matching is a rule that matches a flow.
type matching struct {
	*policy.Rule
	spec  *policy.Spec
	place int
	name  string
}

// compare puts rules in order of precedence.
func (m matching) compare(o matching) int {
	within := cmp.Compare(m.spec.Priority, o.spec.Priority)
	if m.spec.Tier == policy.TierDefault {
		within = cmp.Compare(m.Action, o.Action)
	}
	return cmp.Or(cmp.Compare(m.spec.Tier, o.spec.Tier), within, strings.Compare(m.name, o.name), cmp.Compare(m.place,
		o.place))
}

// labelsOf are a thing's, as rules see them.
func (w *Scene) labelsOf(x *Party, a netip.Addr) []string {
	out := slices.Clone(x.Labels)
	if x.Id == 0 {
		out = []string{"reserved:world", []string{"reserved:world-ipv4", "reserved:world-ipv6"}[compile.Family(a)]}
	}
	if slices.Contains(w.services[cluster.Key{Namespace: "default", Name: "kubernetes"}].Addresses, a) {
		out = append(out, "reserved:kube-apiserver")
	}
	return out
}

// required is what all policies of an endpoint require of its peers.
func (w *Scene) required(of *Party) (out [2][2][]policy.Selector) {
	for _, specs := range w.policies {
		for _, s := range specs {
			for dir := range out {
				for action := range out[dir] {
					if s.Nodes == (of.Id == identity.Host) && s.Subject.Matches(of.Labels) {
						out[dir][action] = append(out[dir][action], s.Required[dir][action]...)
					}
				}
			}
		}
	}
	return out
}

func (w *Scene) peerMatches(r *policy.Rule, tier policy.Tier, required [2][2][]policy.Selector, x *Party,
	a netip.Addr, names []string) bool {
	if r.Peers == nil {
		return true
	}
	labels := w.labelsOf(x, a)
	return slices.ContainsFunc(r.Peers, func(p policy.Peer) bool {
		for _, s := range p.Required {
			if !s.Matches(labels) {
				return false
			}
		}
		if tier == policy.TierDefault && p.Endpoints != nil && p.Entity == "" {
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
			n := w.nodes[x.Name]
			return n != nil && slices.Contains(n.Addresses, a) && p.Nodes.MatchesSet(n.Labels)
		case p.Prefixes != nil:
			return w.prefixesMatch(p.Prefixes, x, a)
		case p.Service != nil:
			return w.serviceMatches(p.Service, x, a, labels)
		case p.Names != nil:
			return w.Config.Proxy && x.Id == 0 && slices.ContainsFunc(p.Names, func(n policy.NamePattern) bool {
				return slices.ContainsFunc(names, n.Matches)
			})
		}
		return true
	})
}

func (w *Scene) prefixesMatch(p *policy.Prefixes, x *Party, a netip.Addr) bool {
	has := func(q netip.Prefix) bool { return q.Contains(a) }
	if !p.Pods && x.Id != 0 && !(w.Config.CIDRNodes && isNode(x)) || slices.ContainsFunc(p.Except, has) {
		return false
	}
	for name, g := range w.groups {
		if (name == p.Group || p.GroupSelector != nil && p.GroupSelector.MatchesSet(g.Labels)) &&
			slices.ContainsFunc(g.Prefixes, has) {
			return true
		}
	}
	return slices.ContainsFunc(p.Include, has)
}

func isNode(x *Party) bool { return x.Id == identity.Host || x.Id == identity.RemoteNode }

func (w *Scene) serviceMatches(p *policy.ServicePeer, x *Party, a netip.Addr, labels []string) bool {
	for key, s := range w.services {
		if p.Selector == nil && (key.Name != p.Name || key.Namespace != p.Namespace) ||
			p.Selector != nil && (!p.Selector.MatchesSet(s.Labels) ||
				p.Namespace != "" && p.Namespace != key.Namespace) {
			continue
		}
		if len(s.Selector) == 0 {
			if (x.Id == 0 || w.Config.CIDRNodes && isNode(x)) && slices.Contains(s.Addresses, a) {
				return true
			}
			continue
		}
		sel := policy.Selector{{Source: "k8s", Key: "io.kubernetes.pod.namespace", Op: policy.In,
			Values: []string{s.Namespace}}}
		for k, v := range s.Selector {
			sel = append(sel, policy.Requirement{Source: "k8s", Key: k, Op: policy.In, Values: []string{v}})
		}
		if sel.Matches(labels) {
			return true
		}
	}
	return false
}

func portMatches(r *policy.Rule, dest *Party, proto uint8, port uint16) bool {
	if r.Ports == nil {
		return true
	}
	return slices.ContainsFunc(r.Ports, func(p policy.Port) bool {
		if p.Name == "" {
			return p.Proto == policy.ProtoAny || p.Proto == proto && p.First <= port && port <= p.Last
		}
		return dest.Id >= identity.First && slices.ContainsFunc(dest.ports, func(q cluster.Port) bool {
			return q.Name == p.Name && compile.ProtoOf(q.Protocol) == proto && q.Number == port &&
				(p.Proto == policy.ProtoAny || p.Proto == proto)
		})
	})
}

// ExplainCheck compares the explanation of a flow with its verdict.
type ExplainCheck func(c *compile.Compiler, of *Party, dir policy.Direction, peer netip.Addr, proto uint8,
	port uint16, want compile.PortVerdict, what string)

// Check compares a compiler with the naive walk, for all endpoints and peers.
func (w *Scene) Check(c *compile.Compiler, r *rand.Rand, what string, explained ExplainCheck) {
	w.T.Helper()
	for _, of := range w.Things {
		if of.Slot == 0 {
			continue
		}
		for _, peer := range w.Things {
			for _, a := range peer.Addrs {
				for range 3 {
					dir, proto, port := policy.Direction(r.IntN(2)), pick.Of(r, pick.Protocols()), pick.Of(r,
						pick.Ports())
					want, why := w.Naive(of, dir, peer, a, proto, port)
					got := c.Lookup(of.Slot, dir, a, proto, port)
					if got.Verdict != want {
						w.T.Fatalf("%s: %s %s %s (%s) %d/%d: got %s by rule %d, want %s by %s", what, of.Name, dir,
							peer.Name, a,
							proto, port, got.Verdict, got.Rule, want, why)
					}
					w.checkProxied(c, of, dir, peer, a, proto, port, got, what)
					if dir == policy.Egress && peer.Id == 0 {
						w.checkNamed(c, r, of, peer, a, proto, port, what)
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
