package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"myelin/cluster"
	"myelin/identity"
)

// Sizes of the largest cluster that is promised.
const (
	manyPolicies   = 10_000
	manyIdentities = 50_000
	manyPrefixes   = 1_000_000
	manyEndpoints  = 200
)

func manyLabels(i int) []string {
	namespace := fmt.Sprint("ns", i%500)
	return []string{
		fmt.Sprint("k8s:app=app", i/500), "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=" + namespace,
		"k8s:io.cilium.k8s.namespace.labels.team=team" + fmt.Sprint(i%20), "k8s:io.kubernetes.pod.namespace=" + namespace,
		"k8s:pod-template-hash=" + fmt.Sprint(i), "k8s:tier=web", "k8s:version=v1",
	}
}

func manyAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

func oneOf(key, value string) Selector {
	return Selector{{Source: "k8s", Key: key, Op: In, Values: []string{value}}}
}

// manySpec is policy i: everybody of an app in a namespace is reached from
// another app there, at one port.
func manySpec(i int, port uint16) Spec {
	ref := Ref{Kind: "NetworkPolicy", Key: cluster.Key{Namespace: fmt.Sprint("ns", i%500), Name: fmt.Sprint("p", i)}}
	in := oneOf(identity.NamespaceKey, ref.Namespace)
	from := slices.Concat(oneOf("app", fmt.Sprint("app", i/500%100)), in)
	return Spec{Ref: ref, Subject: slices.Concat(oneOf("app", fmt.Sprint("app", i/500%7)), in), Tier: TierDefault, Isolates: [2]bool{true, false}, Rules: []Rule{{
		Origin: Origin{Ref: ref, Path: "spec.ingress[0]"}, Action: Allow, Peers: []Peer{{Endpoints: &from}}, Ports: []Port{{Proto: ProtoTCP, First: port, Last: port}},
	}}}
}

// onOne is policy i of those that are all on one endpoint.
func onOne(i int, port uint16) Spec {
	s := manySpec(i, port)
	s.Subject = slices.Concat(oneOf("app", "app0"), oneOf(identity.NamespaceKey, "ns0"))
	return s
}

func listSpec(list []netip.Prefix) Spec {
	ref := Ref{Kind: "CiliumNetworkPolicy", Key: cluster.Key{Namespace: "ns1", Name: "list"}}
	return Spec{Ref: ref, Subject: slices.Concat(oneOf("app", "app0"), oneOf(identity.NamespaceKey, "ns1")), Tier: TierDefault, Rules: []Rule{{
		Origin: Origin{Ref: ref, Path: "spec.egressDeny[0]"}, Direction: Egress, Action: Deny, Peers: []Peer{{Prefixes: &Prefixes{Include: list}}},
	}}}
}

// manyList is single addresses, and 1 % prefixes.
func manyList(n int) []netip.Prefix {
	r := rand.New(rand.NewPCG(1, 1))
	out := make([]netip.Prefix, n)
	for i := range out {
		v := r.Uint32() | 0x80000000
		a := netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
		bits := 32
		if i%100 == 0 {
			bits = 20 + r.IntN(8)
		}
		out[i] = netip.PrefixFrom(a, bits).Masked()
	}
	return tidy(out)
}
