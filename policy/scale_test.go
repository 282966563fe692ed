package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

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

// heap is how many bytes are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// load tells a compiler of all identities and endpoints.
func load(c *compiler) {
	c.setNode("n1", &nodeFacts{podCIDRs: prefixes("10.0.0.0/8")})
	for i := range manyIdentities {
		c.peers.identify(identity.First+uint32(i), manyLabels(i))
		c.setAddress(manyAddress(i), identity.First+uint32(i))
	}
	for i := range manyEndpoints {
		c.setTarget(uint16(2+i), manyLabels(i), nil, false, false)
	}
}

// scale is a compiler, with maps or without, whose changes are timed.
type scale struct {
	*testing.B
	c *compiler
	k *Kernel
}

func (s *scale) flush() {
	for again := true; again; again = s.c.leftover() {
		p := s.c.flush()
		if s.k == nil {
			continue
		}
		if err := s.k.apply(s.c, p); err != nil {
			s.Fatal(err)
		}
	}
}

// report times one change, many times, and prints the middle.
func (s *scale) report(name string, times int, change func(i int)) {
	var took []time.Duration
	for i := range times {
		begin := time.Now()
		change(i)
		s.flush()
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	fmt.Printf("%-30s %12s median %12s longest\n", name, took[len(took)/2].Round(time.Microsecond), took[len(took)-1].Round(time.Microsecond))
}

// BenchmarkScale prints what everything costs, and what one change does.
func BenchmarkScale(b *testing.B) {
	for _, real := range []bool{false, true} {
		b.Run(fmt.Sprintf("maps=%t", real), func(b *testing.B) {
			for range b.N {
				s := &scale{B: b, c: newCompiler(Config{}, numbersFor(b, firstDerived-1), numbersFor(b, 0))}
				if real {
					s.k, _ = kernelFor(b, map[string]uint32{"peers": 1 << 21, "peer_prefixes": 1 << 20, "peer_classes": 1 << 20, "verdicts": 1 << 20, "policies": 65536})
					var err error
					if s.c.last, _, err = s.k.adopt(); err != nil {
						b.Fatal(err)
					}
				}
				s.run()
			}
		})
	}
}

func (s *scale) run() {
	list := manyList(manyPrefixes)
	longer := slices.Insert(slices.Clone(list), 0, netip.MustParsePrefix("128.0.0.0/32"))
	before := heap()
	s.report("identities", 1, func(int) { load(s.c) })
	fmt.Printf("%d identities: %d bytes each\n", manyIdentities, (heap()-before)/manyIdentities)
	before = heap()
	s.report("policies", 1, func(int) {
		for i := range manyPolicies {
			spec := manySpec(i, 80)
			s.c.setPolicy(spec.Ref, []Spec{spec})
		}
	})
	fmt.Printf("%d policies: %d bytes each\n", manyPolicies, (heap()-before)/manyPolicies)
	s.report("pod-comes", 50, func(i int) {
		s.c.peers.identify(200_000+uint32(i), manyLabels(manyIdentities+i))
		s.c.setAddress(manyAddress(manyIdentities+i), 200_000+uint32(i))
	})
	s.report("pod-comes-here", 50, func(i int) { s.c.setTarget(uint16(1000+i), manyLabels(i), nil, false, false) })
	s.report("policy-changes", 50, func(i int) { s.c.setPolicy(manySpec(i, 80).Ref, []Spec{manySpec(i, uint16(1000+i))}) })
	s.report("namespace-changes", 20, func(i int) {
		for j := i; j < manyIdentities; j += 500 {
			s.c.peers.identify(300_000+uint32(j), append(manyLabels(j), "k8s:io.cilium.k8s.namespace.labels.new=1"))
			s.c.setAddress(manyAddress(j), 300_000+uint32(j))
		}
	})
	s.report("all-on-one-endpoint", 1, func(int) {
		for i := range manyPolicies {
			s.c.setPolicy(manySpec(i, 80).Ref, []Spec{onOne(i, 80)})
		}
	})
	s.report("policy-changes-of-all-on-one", 20, func(i int) { s.c.setPolicy(manySpec(i, 80).Ref, []Spec{onOne(i, uint16(1000+i))}) })
	before = heap()
	spec := listSpec(list)
	s.report("list-comes", 1, func(int) { s.c.setPolicy(spec.Ref, []Spec{spec}) })
	fmt.Printf("%d prefixes: %d bytes each\n", len(list), (heap()-before)/uint64(len(list)))
	if s.k != nil {
		fmt.Printf("rows of policies, peers, peer_prefixes, peer_classes, verdicts: %v\n", counts(s.B, s.k.datapath))
	}
	s.report("list-changes-by-one", 10, func(i int) { s.c.setPolicy(spec.Ref, []Spec{listSpec([][]netip.Prefix{longer, list}[i%2])}) })
	s.report("list-goes", 1, func(int) { s.c.setPolicy(spec.Ref, nil) })
	fmt.Printf("left: %d cells, %d lists, %d sets\n", s.c.space.cells.Size(), len(s.c.space.lists), len(s.c.sets))
}
