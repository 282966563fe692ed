package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"myelin/cluster"
	"myelin/identity"
)

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func randomLabels(r *rand.Rand) []string {
	out := []string{"k8s:app=" + pick(r, []string{"a", "b", "c"}), "k8s:io.kubernetes.pod.namespace=" + pick(r, []string{"x", "y"})}
	if r.IntN(2) == 0 {
		out = append(out, "k8s:tier="+pick(r, []string{"web", "db"}))
	}
	return out
}

func randomSelector(r *rand.Rand) Selector {
	var out Selector
	for range r.IntN(3) {
		req := Requirement{Source: pick(r, []string{"k8s", AnySource}), Key: pick(r, []string{"app", "tier", "io.kubernetes.pod.namespace", "host"}), Op: pick(r, []Operator{In, In, In, NotIn, Exists, NotExists})}
		if req.Op < Exists {
			req.Values = []string{pick(r, []string{"a", "b", "x", "web"})}
			if v := pick(r, []string{"c", "y", "db"}); r.IntN(2) == 0 {
				req.Values = append(req.Values, v)
				slices.Sort(req.Values)
			}
		}
		out = append(out, req)
	}
	return out
}

func randomPrefixes(r *rand.Rand, n int) (out []netip.Prefix) {
	all := prefixes("0.0.0.0/0", "::/0", "::/1", "10.0.0.0/8", "10.0.0.0/24", "10.0.1.0/24", "10.0.1.1/32", "10.0.1.2/32", "192.0.2.0/24", "192.0.2.0/28",
		"172.16.0.0/31", "172.16.0.2/32", "fd01::/64", "192.0.2.1/32", "192.0.2.2/32", "198.51.100.0/24", "2001:db8::/32", "2001:db8::/64", "2001:db8::1/128", "fd00::/16", "fd00::1:2/128")
	for range n {
		out = append(out, pick(r, all))
	}
	return out
}

func randomPeer(r *rand.Rand) (p Peer) {
	sel := randomSelector(r)
	switch r.IntN(10) {
	case 0, 1, 2:
		p.Endpoints = &sel
	case 3:
		p.Entity = "some"
		p.Endpoints = &Selector{{Source: "reserved", Key: pick(r, []string{"host", "remote-node", "world", "kube-apiserver", "world-ipv6"}), Op: Exists}}
	case 4, 5, 6:
		p.Prefixes = &Prefixes{Include: randomPrefixes(r, 1+r.IntN(3)), Except: randomPrefixes(r, r.IntN(2)), Pods: r.IntN(2) == 0}
		if r.IntN(3) == 0 {
			p.Prefixes.Group = pick(r, []string{"g", "h", "none"})
		}
		if r.IntN(5) == 0 {
			p.Prefixes.GroupSelector = &Selector{{Source: AnySource, Key: "of", Op: Exists}}
		}
	case 7:
		p.Nodes = &Selector{{Source: "k8s", Key: "zone", Op: In, Values: []string{pick(r, []string{"1", "2"})}}}
	case 8:
		p.Service = &ServicePeer{Namespace: "x", Name: pick(r, []string{"pods", "outside"})}
		if r.IntN(2) == 0 {
			p.Service = &ServicePeer{Selector: &Selector{{Source: AnySource, Key: "svc", Op: Exists}}}
		}
	}
	if r.IntN(8) == 0 {
		p.Required = append(p.Required, randomSelector(r))
	}
	return p
}

func randomPorts(r *rand.Rand) (out []Port) {
	for range r.IntN(4) {
		switch p := (Port{Proto: pick(r, protos())}); r.IntN(6) {
		case 0:
			out = append(out, Port{})
		case 1:
			p.Last = 65535
			out = append(out, p)
		case 2:
			p.Name = pick(r, []string{"http", "dns"})
			if r.IntN(4) == 0 {
				p.Proto = ProtoAny
			}
			out = append(out, p)
		default:
			p.First, p.Last = pick(r, somePorts()), pick(r, somePorts())
			if p.First > p.Last {
				p.First, p.Last = p.Last, p.First
			}
			out = append(out, p)
		}
	}
	return out
}

func randomSpecs(r *rand.Rand, ref Ref) (out []Spec) {
	for i := range 1 + r.IntN(2) {
		s := Spec{Ref: ref, Subject: randomSelector(r), Nodes: r.IntN(8) == 0, Tier: pick(r, []Tier{TierAdmin, TierDefault, TierDefault, TierBaseline}), Priority: int32(r.IntN(4))}
		if s.Tier == TierDefault {
			s.Isolates = [2]bool{r.IntN(2) == 0, r.IntN(2) == 0}
		}
		if s.Tier == TierDefault && r.IntN(6) == 0 {
			s.Required[r.IntN(2)][r.IntN(2)] = []Selector{randomSelector(r)}
		}
		for j := range r.IntN(4) {
			rule := Rule{Origin: Origin{Ref: ref, Path: fmt.Sprintf("spec[%d].rule[%d]", i, j)}, Direction: Direction(r.IntN(2)), Action: pick(r, []Action{Deny, Allow, Allow})}
			if s.Tier == TierAdmin {
				rule.Action = Action(r.IntN(3))
			}
			for range r.IntN(4) {
				rule.Peers = append(rule.Peers, randomPeer(r))
			}
			if rule.Peers == nil && r.IntN(4) == 0 {
				rule.Peers = []Peer{}
			}
			rule.Ports = randomPorts(r)
			s.Rules = append(s.Rules, rule)
		}
		out = append(out, s)
	}
	return out
}

func randomThing(r *rand.Rand, i int) *thing {
	labels := randomLabels(r)
	x := &thing{name: fmt.Sprint("pod", i), labels: labels, id: identity.First}
	for _, c := range strings.Join(labels, " ") { // the same labels, the same number
		x.id = x.id*31%100003 + uint32(c) + identity.First
	}
	x.addrs = []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i % 2), byte(1 + i)}), netip.MustParseAddr(fmt.Sprintf("fd00::1:%x", i+1))}
	if r.IntN(2) == 0 {
		x.ports = []cluster.Port{{Name: "http", Number: pick(r, []uint16{80, 8080}), Protocol: "TCP"}}
	}
	if r.IntN(3) == 0 {
		x.ports = append(x.ports, cluster.Port{Name: "dns", Number: 81, Protocol: pick(r, []string{"UDP", "TCP"})})
	}
	if i < 4 {
		x.slot = uint16(10 + i)
	}
	return x
}

// randomize makes or changes a part of the world, and tells a compiler.
func (w *scene) randomize(c *compiler, r *rand.Rand, step int) {
	switch ref := (Ref{Kind: "NetworkPolicy", Key: cluster.Key{Namespace: "x", Name: fmt.Sprint("p", r.IntN(6))}}); r.IntN(8) {
	case 0, 1, 2:
		w.policies[ref] = randomSpecs(r, ref)
		c.setPolicy(ref, w.policies[ref])
	case 3:
		delete(w.policies, ref)
		c.setPolicy(ref, nil)
	case 4:
		name := pick(r, []string{"g", "h"})
		g := groupFacts{labels: plainLabels("k8s", map[string]string{pick(r, []string{"of", "not"}): "1"}), prefixes: randomPrefixes(r, 1+r.IntN(4))}
		w.groups[name] = g
		c.setGroup(name, &g)
	case 5:
		key, s := w.randomService(r)
		w.services[key] = s
		c.setService(key, s)
	case 6:
		n := w.nodes["node2"]
		next := *n
		next.labels = plainLabels("k8s", map[string]string{"zone": pick(r, []string{"1", "2"})})
		w.nodes["node2"] = &next
		c.setNode("node2", &next)
	case 7:
		i := 3 + r.IntN(len(w.things)-3) // the first are no pods
		if old := w.things[i]; old.id >= identity.First {
			w.forget(c, old)
			next := randomThing(r, i-3)
			w.things[i] = next
			w.tell(c, next)
		}
	}
}

func (w *scene) randomService(r *rand.Rand) (cluster.Key, serviceFacts) {
	outside := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("172.16.0.2")}
	f := serviceFacts{known: true, namespace: "x", labels: plainLabels("k8s", map[string]string{pick(r, []string{"svc", "not"}): "1"})}
	switch r.IntN(3) {
	case 0:
		f.name, f.selector = "pods", map[string]string{"app": pick(r, []string{"a", "b"})}
	case 1:
		f.name, f.addresses = "outside", outside[:1+r.IntN(2)]
	default:
		f.name, f.namespace, f.addresses = "kubernetes", "default", outside[r.IntN(3):]
	}
	return cluster.Key{Namespace: f.namespace, Name: f.name}, f
}

func randomScene(t testing.TB, r *rand.Rand) *scene {
	w := newScene(t)
	w.config = Config{Mode: pick(r, []Mode{ModeDefault, ModeDefault, ModeDefault, ModeAlways}), HostDenied: r.IntN(4) == 0, CIDRNodes: r.IntN(3) == 0}
	addrs := func(texts ...string) (out []netip.Addr) {
		for _, text := range texts {
			out = append(out, netip.MustParseAddr(text))
		}
		return out
	}
	for i, labels := range []string{"1", "2"} {
		name := fmt.Sprint("node", i+1)
		w.nodes[name] = &nodeFacts{
			labels:    plainLabels("k8s", map[string]string{"zone": labels}),
			addresses: addrs(fmt.Sprint("172.16.0.", i+1), fmt.Sprint("fd01::", i+1)), podCIDRs: prefixes(fmt.Sprintf("10.0.%d.0/24", i), fmt.Sprintf("fd00::%d:0/112", i+1)),
		}
	}
	w.things = []*thing{
		{name: "node1", labels: []string{"reserved:host", "k8s:zone=1"}, id: identity.Host, slot: 1, addrs: w.nodes["node1"].addresses},
		{name: "node2", labels: []string{"reserved:remote-node"}, id: identity.RemoteNode, addrs: w.nodes["node2"].addresses},
		{name: "world", addrs: addrs("192.0.2.1", "192.0.2.2", "192.0.2.77", "198.51.100.1", "203.0.113.1", "10.200.0.1", "2001:db8::1", "2001:db8::2", "2001:db8:1::1", "2001:db9::1")},
	}
	for i := range 8 {
		w.things = append(w.things, randomThing(r, i))
	}
	return w
}
