package scene

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/compile"
	"myelin/policy/identity"
	"myelin/test/policy/pick"
)

func Prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func randomLabels(r *rand.Rand) []string {
	out := []string{"k8s:app=" + pick.Of(r, []string{"a", "b", "c"}), "k8s:io.kubernetes.pod.namespace=" + pick.Of(r,
		[]string{"x", "y"})}
	if r.IntN(2) == 0 {
		out = append(out, "k8s:tier="+pick.Of(r, []string{"web", "db"}))
	}
	return out
}

func randomSelector(r *rand.Rand) policy.Selector {
	var out policy.Selector
	for range r.IntN(3) {
		req := policy.Requirement{Source: pick.Of(r, []string{"k8s", policy.AnySource}), Key: pick.Of(r, []string{"app",
			"tier", "io.kubernetes.pod.namespace", "host"}), Op: pick.Of(r,
			[]policy.Operator{policy.In, policy.In, policy.In,
				policy.NotIn, policy.Exists, policy.NotExists})}
		if req.Op < policy.Exists {
			req.Values = []string{pick.Of(r, []string{"a", "b", "x", "web"})}
			if v := pick.Of(r, []string{"c", "y", "db"}); r.IntN(2) == 0 {
				req.Values = append(req.Values, v)
				slices.Sort(req.Values)
			}
		}
		out = append(out, req)
	}
	return out
}

func randomPrefixes(r *rand.Rand, n int) (out []netip.Prefix) {
	all := Prefixes("0.0.0.0/0", "::/0", "::/1", "10.0.0.0/8", "10.0.0.0/24", "10.0.1.0/24", "10.0.1.1/32",
		"10.0.1.2/32", "192.0.2.0/24", "192.0.2.0/28",
		"172.16.0.0/31", "172.16.0.2/32", "fd01::/64", "192.0.2.1/32", "192.0.2.2/32", "198.51.100.0/24",
		"2001:db8::/32",
		"2001:db8::/64", "2001:db8::1/128", "fd00::/16", "fd00::1:2/128")
	for range n {
		out = append(out, pick.Of(r, all))
	}
	return out
}

func randomPeer(r *rand.Rand) (p policy.Peer) {
	sel := randomSelector(r)
	switch r.IntN(10) {
	case 0, 1, 2:
		p.Endpoints = &sel
	case 3:
		p.Entity = "some"
		p.Endpoints = &policy.Selector{{Source: "reserved", Key: pick.Of(r, []string{"host", "remote-node", "world",
			"kube-apiserver", "world-ipv6"}), Op: policy.Exists}}
	case 4, 5, 6:
		p.Prefixes = &policy.Prefixes{Include: randomPrefixes(r, 1+r.IntN(3)), Except: randomPrefixes(r, r.IntN(2)),
			Pods: r.IntN(2) == 0}
		if r.IntN(3) == 0 {
			p.Prefixes.Group = pick.Of(r, []string{"g", "h", "none"})
		}
		if r.IntN(5) == 0 {
			p.Prefixes.GroupSelector = &policy.Selector{{Source: policy.AnySource, Key: "of", Op: policy.Exists}}
		}
	case 7:
		p.Nodes = &policy.Selector{{Source: "k8s", Key: "zone", Op: policy.In, Values: []string{pick.Of(r, []string{"1",
			"2"})}}}
	case 8:
		p.Service = &policy.ServicePeer{Namespace: "x", Name: pick.Of(r, []string{"pods", "outside"})}
		if r.IntN(2) == 0 {
			p.Service = &policy.ServicePeer{Selector: &policy.Selector{{Source: policy.AnySource, Key: "svc",
				Op: policy.Exists}}}
		}
	}
	if r.IntN(8) == 0 {
		p.Required = append(p.Required, randomSelector(r))
	}
	return p
}

// randomProxied makes some rules need the proxy.
func randomProxied(r *rand.Rand, rule *policy.Rule) {
	if rule.Direction == policy.Egress && r.IntN(3) == 0 {
		rule.Peers = append(rule.Peers, policy.Peer{Names: randomNames(r)})
	}
	if r.IntN(3) == 0 {
		rule.L7 = randomL7(r)
	}
}

func randomSpecs(r *rand.Rand, ref policy.Ref) (out []policy.Spec) {
	for i := range 1 + r.IntN(2) {
		s := policy.Spec{Ref: ref, Subject: randomSelector(r), Nodes: r.IntN(8) == 0, Tier: pick.Of(r,
			[]policy.Tier{policy.TierAdmin, policy.TierDefault, policy.TierDefault, policy.TierBaseline}),
			Priority: int32(r.IntN(4))}
		if s.Tier == policy.TierDefault {
			s.Isolates = [2]bool{r.IntN(2) == 0, r.IntN(2) == 0}
		}
		if s.Tier == policy.TierDefault && r.IntN(6) == 0 {
			s.Required[r.IntN(2)][r.IntN(2)] = []policy.Selector{randomSelector(r)}
		}
		for j := range r.IntN(4) {
			rule := policy.Rule{Origin: policy.Origin{Ref: ref, Path: fmt.Sprintf("spec[%d].rule[%d]", i, j)},
				Direction: policy.Direction(r.IntN(2)), Action: pick.Of(r, []policy.Action{policy.Deny, policy.Allow,
					policy.Allow})}
			if s.Tier == policy.TierAdmin {
				rule.Action = policy.Action(r.IntN(3))
			}
			for range r.IntN(4) {
				rule.Peers = append(rule.Peers, randomPeer(r))
			}
			if rule.Peers == nil && r.IntN(4) == 0 {
				rule.Peers = []policy.Peer{}
			}
			rule.Ports = pick.PolicyPorts(r)
			if s.Tier == policy.TierDefault && rule.Action == policy.Allow && !s.Nodes {
				randomProxied(r, &rule)
			}
			s.Rules = append(s.Rules, rule)
		}
		out = append(out, s)
	}
	return out
}

func randomThing(r *rand.Rand, i int) *Party {
	labels := randomLabels(r)
	x := &Party{Name: fmt.Sprint("pod", i), Labels: labels, Id: identity.First}
	for _, c := range strings.Join(labels, " ") { // the same labels, the same number
		x.Id = x.Id*31%100003 + uint32(c) + identity.First
	}
	x.Addrs = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i % 2), byte(1 + i)}),
		netip.MustParseAddr(fmt.Sprintf("fd00::1:%x", i+1))}
	if r.IntN(2) == 0 {
		x.ports = []cluster.Port{{Name: "http", Number: pick.Of(r, []uint16{80, 8080}), Protocol: "TCP"}}
	}
	if r.IntN(3) == 0 {
		x.ports = append(x.ports, cluster.Port{Name: "dns", Number: 81, Protocol: pick.Of(r, []string{"UDP", "TCP"})})
	}
	if i < 4 {
		x.Slot = uint16(10 + i)
	}
	return x
}

// Randomize makes or changes a part of the world, and tells a compiler.
func (w *Scene) Randomize(c *compile.Compiler, r *rand.Rand, step int) {
	switch ref := (policy.Ref{Kind: "NetworkPolicy", Key: cluster.Key{Namespace: "x", Name: fmt.Sprint("p",
		r.IntN(6))}}); r.IntN(8) {
	case 0, 1, 2:
		w.policies[ref] = randomSpecs(r, ref)
		c.SetPolicy(ref, w.policies[ref])
	case 3:
		delete(w.policies, ref)
		c.SetPolicy(ref, nil)
	case 4:
		name := pick.Of(r, []string{"g", "h"})
		g := compile.GroupFacts{Labels: compile.PlainLabels("k8s", map[string]string{pick.Of(r, []string{"of",
			"not"}): "1"}), Prefixes: randomPrefixes(r, 1+r.IntN(4))}
		w.groups[name] = g
		c.SetGroup(name, &g)
	case 5:
		key, s := w.randomService(r)
		w.services[key] = s
		c.SetService(key, s)
	case 6:
		n := w.nodes["node2"]
		next := *n
		next.Labels = compile.PlainLabels("k8s", map[string]string{"zone": pick.Of(r, []string{"1", "2"})})
		w.nodes["node2"] = &next
		c.SetNode("node2", &next)
	case 7:
		i := 3 + r.IntN(len(w.Things)-3) // the first are no pods
		if old := w.Things[i]; old.Id >= identity.First {
			w.forget(c, old)
			next := randomThing(r, i-3)
			w.Things[i] = next
			w.tell(c, next)
		}
	}
}

func (w *Scene) randomService(r *rand.Rand) (cluster.Key, compile.ServiceFacts) {
	outside := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"),
		netip.MustParseAddr("172.16.0.2")}
	f := compile.ServiceFacts{Known: true, Namespace: "x", Labels: compile.PlainLabels("k8s",
		map[string]string{pick.Of(r, []string{"svc", "not"}): "1"})}
	switch r.IntN(3) {
	case 0:
		f.Name, f.Selector = "pods", map[string]string{"app": pick.Of(r, []string{"a", "b"})}
	case 1:
		f.Name, f.Addresses = "outside", outside[:1+r.IntN(2)]
	default:
		f.Name, f.Namespace, f.Addresses = "kubernetes", "default", outside[r.IntN(3):]
	}
	return cluster.Key{Namespace: f.Namespace, Name: f.Name}, f
}

func RandomScene(t testing.TB, r *rand.Rand) *Scene {
	w := New(t)
	w.Config = policy.Config{Mode: pick.Of(r, []policy.Mode{policy.ModeDefault, policy.ModeDefault, policy.ModeDefault,
		policy.ModeAlways}), HostDenied: r.IntN(4) == 0, CIDRNodes: r.IntN(3) == 0,
		Proxy: r.IntN(3) > 0}
	addrs := func(texts ...string) (out []netip.Addr) {
		for _, text := range texts {
			out = append(out, netip.MustParseAddr(text))
		}
		return out
	}
	for i, labels := range []string{"1", "2"} {
		name := fmt.Sprint("node", i+1)
		w.nodes[name] = &compile.NodeFacts{
			Labels:    compile.PlainLabels("k8s", map[string]string{"zone": labels}),
			Addresses: addrs(fmt.Sprint("172.16.0.", i+1), fmt.Sprint("fd01::", i+1)),
			PodCIDRs:  Prefixes(fmt.Sprintf("10.0.%d.0/24", i), fmt.Sprintf("fd00::%d:0/112", i+1)),
		}
	}
	w.Things = []*Party{
		{Name: "node1", Labels: []string{"reserved:host", "k8s:zone=1"}, Id: identity.Host, Slot: 1,
			Addrs: w.nodes["node1"].Addresses},
		{Name: "node2", Labels: []string{"reserved:remote-node"}, Id: identity.RemoteNode,
			Addrs: w.nodes["node2"].Addresses},
		{Name: "world", Addrs: addrs("192.0.2.1", "192.0.2.2", "192.0.2.77", "198.51.100.1", "203.0.113.1",
			"10.200.0.1",
			"2001:db8::1", "2001:db8::2", "2001:db8:1::1", "2001:db9::1")},
	}
	for i := range 8 {
		w.Things = append(w.Things, randomThing(r, i))
	}
	return w
}
