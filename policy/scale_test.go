package policy

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"myelin/identity"
)

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
		c.identify(identity.First+uint32(i), manyLabels(i))
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
				s := &scale{B: b, c: newCompiler(Config{}, newNumbers(b, firstDerived-1), newNumbers(b, 0))}
				if real {
					s.k, _ = kernelFor(b, map[string]uint32{"peers": 1 << 21, "peer_prefixes": 1 << 20, "peer_classes": 1 << 20, "verdicts": 1 << 20, "policies": 65536})
					last, _, err := s.k.adopt()
					if err != nil {
						b.Fatal(err)
					}
					s.c.resume(last)
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
		s.c.identify(200_000+uint32(i), manyLabels(manyIdentities+i))
		s.c.setAddress(manyAddress(manyIdentities+i), 200_000+uint32(i))
	})
	s.report("pod-comes-here", 50, func(i int) { s.c.setTarget(uint16(1000+i), manyLabels(i), nil, false, false) })
	s.report("policy-changes", 50, func(i int) { s.c.setPolicy(manySpec(i, 80).Ref, []Spec{manySpec(i, uint16(1000+i))}) })
	s.report("namespace-changes", 20, func(i int) {
		for j := i; j < manyIdentities; j += 500 {
			s.c.identify(300_000+uint32(j), append(manyLabels(j), "k8s:io.cilium.k8s.namespace.labels.new=1"))
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
	addresses, sets := 0, 0
	for range s.c.addresses() {
		addresses++
	}
	for range s.c.allSets() {
		sets++
	}
	fmt.Printf("left: %d addresses, %d sets\n", addresses, sets)
}
