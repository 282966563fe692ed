// Package reference is an oracle of network policies: it reads the API's objects and answers which peers may talk to
// each other, by the words of the documentation, with nested loops and without state. The compiler and the datapath are
// compared with it, and it shares no code with them.
package reference

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"myelin/policy/ciliumv2"
)

// World is a cluster, as its objects say, seen from one of its nodes. All
// objects must be valid: what parsing refuses has no meaning here.
type World struct {
	// Node is the name of the node whose datapath is asked.
	Node string
	// Proxy: there is a proxy, which enforces rules above ports and learns names. Without it, they allow nothing.
	Proxy bool
	// Names are DNS names that addresses outside the cluster have, by the address of the pod that has learnt them.
	Names map[netip.Addr]map[netip.Addr][]string
	// Cluster is the cluster's name, and CIDRNodes policyCIDRMatchMode: [nodes].
	Cluster   string
	CIDRNodes bool

	Namespaces     []*corev1.Namespace
	Pods           []*corev1.Pod
	Nodes          []*corev1.Node
	Services       []*corev1.Service
	EndpointSlices []*discoveryv1.EndpointSlice

	NetworkPolicies                  []*networkingv1.NetworkPolicy
	CiliumNetworkPolicies            []*ciliumv2.CiliumNetworkPolicy
	CiliumClusterwideNetworkPolicies []*ciliumv2.CiliumClusterwideNetworkPolicy
	CIDRGroups                       []*ciliumv2.CiliumCIDRGroup
	ClusterNetworkPolicies           []*policyv1.ClusterNetworkPolicy
}

// Probe is the first packet of a flow, after Services' addresses have been
// translated: Dst and Port are a backend's.
type Probe struct {
	Src, Dst netip.Addr
	// Proto is the protocol's number in IP.
	Proto uint8
	// Port is the destination's, or the type of an ICMP message.
	Port uint16
}

// Verdict is what policies say of a probe.
type Verdict struct {
	Allowed bool
	// Why names the rule that decided, as in
	// "NetworkPolicy shop/web spec.ingress[0] from[1] ports[0]", or says that there is none.
	Why string
	// Proxied are the rules that the proxy enforces on an allowed flow, which needs only one of them, each as in
	// "CiliumNetworkPolicy shop/web spec.ingress[0].toPorts[1]", by ", "; empty: it does not pass through the proxy.
	Proxied string
}

// Verdict is what World.Node says of a probe as a whole: both directions must
// allow it.
func (w *World) Verdict(p Probe) Verdict {
	if v := w.Egress(p); !v.Allowed {
		return v
	}
	return w.Ingress(p)
}

// Egress is the verdict of World.Node on a probe, by the policies of its sender. It allows what isn't sent from the
// node.
func (w *World) Egress(p Probe) Verdict {
	f := w.flow(p)
	f.subject, f.peer = w.party(p.Src), w.party(p.Dst)
	return w.decide(f)
}

// Ingress is the verdict of World.Node on a probe, by the policies of its receiver. It allows what isn't for the node.
func (w *World) Ingress(p Probe) Verdict {
	f := w.flow(p)
	f.ingress = true
	f.subject, f.peer = w.party(p.Dst), w.party(p.Src)
	return w.decide(f)
}

// Path is what the cluster as a whole says of a probe: the source's node is
// asked for egress, and the destination's for ingress.
func (w *World) Path(p Probe) Verdict {
	there := *w
	there.Node = w.party(p.Src).place()
	if v := there.Egress(p); !v.Allowed {
		return v
	}
	there.Node = w.party(p.Dst).place()
	return there.Ingress(p)
}

// flow is a probe in one direction, as the endpoint sees it whose policies are enforced.
type flow struct {
	ingress bool
	// subject is the endpoint whose policies are asked, peer the other end.
	subject, peer party
	// server is the destination of the probe: its container ports give names to ports.
	server party
	proto  uint8
	port   uint16
}

func (w *World) flow(p Probe) flow {
	return flow{server: w.party(p.Dst), proto: p.Proto, port: p.Port}
}

// decide asks the tiers in their order. The first one that has an opinion wins.
func (w *World) decide(f flow) Verdict {
	if f.subject.place() == "" || f.subject.place() != w.Node {
		return Verdict{Allowed: true, Why: "not on this node"}
	}
	if v, decided := w.tier(policyv1.AdminTier, f); decided {
		return v
	}
	if v, decided := w.middle(f); decided {
		return v
	}
	if v, decided := w.tier(policyv1.BaselineTier, f); decided {
		return v
	}
	return Verdict{Allowed: true, Why: "no policy"}
}

// opinion is what NetworkPolicies and Cilium's policies say of a flow, each by the
// rule that says so; empty: none.
type opinion struct {
	deny, allow, isolate string
	proxied              []string
}

func (o *opinion) denies(why string)   { o.deny = cmp.Or(o.deny, why) }
func (o *opinion) allows(why string)   { o.allow = cmp.Or(o.allow, why) }
func (o *opinion) isolates(why string) { o.isolate = cmp.Or(o.isolate, why) }

// first names the first item of a list that matches, and by what; empty: none does.
func first[T any](list string, items []T, match func(T) string) string {
	for i, item := range items {
		if what := match(item); what != "" {
			return fmt.Sprintf("%s[%d]=%s", list, i, what)
		}
	}
	return ""
}

// middle is the tier of NetworkPolicies and Cilium's policies. A rule that denies
// beats all that allow (Cilium, Deny Policies). An isolated endpoint gets only
// what is allowed. A rule that needs no proxy beats all that do, of which those that match count together.
//
// A pod's own node may always reach it, unless a rule denies that: Kubernetes
// demands it ("traffic to and from the node where a Pod is running is always
// allowed"), and Cilium does so with allow-localhost=auto. The other direction,
// from the pod to its node, is for policies to say, as in Cilium.
func (w *World) middle(f flow) (Verdict, bool) {
	var o opinion
	w.kubernetes(f, &o)
	w.cilium(f, &o)
	switch {
	case o.deny != "":
		return Verdict{Allowed: false, Why: o.deny}, true
	case f.ingress && f.subject.pod != nil && f.peer.node != nil && f.peer.node.Name == w.Node:
		return Verdict{Allowed: true, Why: "from the pod's own node"}, true
	case o.allow != "":
		return Verdict{Allowed: true, Why: o.allow}, true
	case len(o.proxied) > 0:
		return Verdict{Allowed: true, Why: o.proxied[0], Proxied: strings.Join(o.proxied, ", ")}, true
	case o.isolate != "":
		return Verdict{Allowed: false, Why: o.isolate + ": no rule allows it"}, true
	}
	return Verdict{}, false
}
