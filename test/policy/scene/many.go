package scene

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/identity"
)

// Sizes of the largest cluster that is promised.
const (
	ManyPolicies   = 10_000
	ManyIdentities = 50_000
	ManyPrefixes   = 1_000_000
	ManyEndpoints  = 200
)

func ManyLabels(i int) []string {
	namespace := fmt.Sprint("ns", i%500)
	return []string{
		fmt.Sprint("k8s:app=app", i/500), "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=" + namespace,
		"k8s:io.cilium.k8s.namespace.labels.team=team" + fmt.Sprint(i%20),
		"k8s:io.kubernetes.pod.namespace=" + namespace,
		"k8s:pod-template-hash=" + fmt.Sprint(i), "k8s:tier=web", "k8s:version=v1",
	}
}

func ManyAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

func OneOf(key, value string) policy.Selector {
	return policy.Selector{{Source: "k8s", Key: key, Op: policy.In, Values: []string{value}}}
}

// ManySpec is policy i: all pods of an app in a namespace are reached from
// another app there, at one port.
func ManySpec(i int, port uint16) policy.Spec {
	ref := policy.Ref{Kind: "NetworkPolicy", Key: cluster.Key{Namespace: fmt.Sprint("ns", i%500), Name: fmt.Sprint("p",
		i)}}
	in := OneOf(identity.NamespaceKey, ref.Namespace)
	from := slices.Concat(OneOf("app", fmt.Sprint("app", i/500%100)), in)
	return policy.Spec{Ref: ref, Subject: slices.Concat(OneOf("app", fmt.Sprint("app", i/500%7)), in),
		Tier: policy.TierDefault, Isolates: [2]bool{true, false}, Rules: []policy.Rule{{
			Origin: policy.Origin{Ref: ref, Path: "spec.ingress[0]"}, Action: policy.Allow,
			Peers: []policy.Peer{{Endpoints: &from}}, Ports: []policy.Port{{Proto: policy.ProtoTCP, First: port,
				Last: port}},
		}}}
}

// OnOne is policy i of those that are all on one endpoint.
func OnOne(i int, port uint16) policy.Spec {
	s := ManySpec(i, port)
	s.Subject = slices.Concat(OneOf("app", "app0"), OneOf(identity.NamespaceKey, "ns0"))
	return s
}

func ListSpec(list []netip.Prefix) policy.Spec {
	ref := policy.Ref{Kind: "CiliumNetworkPolicy", Key: cluster.Key{Namespace: "ns1", Name: "list"}}
	return policy.Spec{Ref: ref, Subject: slices.Concat(OneOf("app", "app0"), OneOf(identity.NamespaceKey, "ns1")),
		Tier: policy.TierDefault, Rules: []policy.Rule{{
			Origin: policy.Origin{Ref: ref, Path: "spec.egressDeny[0]"}, Direction: policy.Egress, Action: policy.Deny,
			Peers: []policy.Peer{{Prefixes: &policy.Prefixes{Include: list}}},
		}}}
}

// ManyList is single addresses, and 1 % prefixes.
func ManyList(n int) []netip.Prefix {
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
	return policy.Canonical(out)
}
