package maps

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"myelin/policy"
	"myelin/policy/compile"
	"myelin/policy/identity"
	"myelin/test/policy/scene"
)

// heap is how many bytes are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// load tells a compiler of all identities and endpoints.
func load(c *compile.Compiler) {
	c.SetNode("n1", &compile.NodeFacts{PodCIDRs: scene.Prefixes("10.0.0.0/8")})
	for i := range scene.ManyIdentities {
		c.Identify(identity.First+uint32(i), scene.ManyLabels(i))
		c.SetAddress(scene.ManyAddress(i), identity.First+uint32(i))
	}
	for i := range scene.ManyEndpoints {
		c.SetEndpoint(uint16(2+i), scene.ManyLabels(i), nil, false, false)
	}
}

// scale is a compiler, with maps or without, whose changes are timed.
type scale struct {
	*testing.B
	c *compile.Compiler
	k *Writer
}

func (s *scale) flush() {
	for again := true; again; again = s.c.HasUnusedSets() {
		p := s.c.Flush()
		if s.k == nil {
			continue
		}
		if err := s.k.Apply(s.c, p); err != nil {
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
	fmt.Printf("%-30s %12s median %12s longest\n", name, took[len(took)/2].Round(time.Microsecond),
		took[len(took)-1].Round(time.Microsecond))
}

// BenchmarkScale prints what everything costs, and what one change does.
func BenchmarkScale(b *testing.B) {
	for _, real := range []bool{false, true} {
		b.Run(fmt.Sprintf("maps=%t", real), func(b *testing.B) {
			for range b.N {
				s := &scale{B: b, c: compile.New(policy.Config{}, scene.NewNumbers(b, compile.FirstDerived-1),
					scene.NewNumbers(b, 0))}
				if real {
					s.k, _ = kernelFor(b, map[string]uint32{"peers": 1 << 21, "peer_prefixes": 1 << 20,
						"peer_classes": 1 << 20,
						"verdicts":     1 << 20, "policies": 65536})
					last, _, err := s.k.Adopt()
					if err != nil {
						b.Fatal(err)
					}
					s.c.Resume(last)
				}
				s.run()
			}
		})
	}
}

func (s *scale) run() {
	list := scene.ManyList(scene.ManyPrefixes)
	longer := slices.Insert(slices.Clone(list), 0, netip.MustParsePrefix("128.0.0.0/32"))
	before := heap()
	s.report("identities", 1, func(int) { load(s.c) })
	fmt.Printf("%d identities: %d bytes each\n", scene.ManyIdentities, (heap()-before)/scene.ManyIdentities)
	before = heap()
	s.report("policies", 1, func(int) {
		for i := range scene.ManyPolicies {
			spec := scene.ManySpec(i, 80)
			s.c.SetPolicy(spec.Ref, []policy.Spec{spec})
		}
	})
	fmt.Printf("%d policies: %d bytes each\n", scene.ManyPolicies, (heap()-before)/scene.ManyPolicies)
	s.report("pod-comes", 50, func(i int) {
		s.c.Identify(200_000+uint32(i), scene.ManyLabels(scene.ManyIdentities+i))
		s.c.SetAddress(scene.ManyAddress(scene.ManyIdentities+i), 200_000+uint32(i))
	})
	s.report("pod-comes-here", 50, func(i int) {
		s.c.SetEndpoint(uint16(1000+i), scene.ManyLabels(i), nil, false, false)
	})
	s.report("policy-changes", 50, func(i int) {
		s.c.SetPolicy(scene.ManySpec(i, 80).Ref, []policy.Spec{scene.ManySpec(i, uint16(1000+i))})
	})
	s.report("namespace-changes", 20, func(i int) {
		for j := i; j < scene.ManyIdentities; j += 500 {
			s.c.Identify(300_000+uint32(j), append(scene.ManyLabels(j), "k8s:io.cilium.k8s.namespace.labels.new=1"))
			s.c.SetAddress(scene.ManyAddress(j), 300_000+uint32(j))
		}
	})
	s.report("all-on-one-endpoint", 1, func(int) {
		for i := range scene.ManyPolicies {
			s.c.SetPolicy(scene.ManySpec(i, 80).Ref, []policy.Spec{scene.OnOne(i, 80)})
		}
	})
	s.report("policy-changes-of-all-on-one", 20, func(i int) {
		s.c.SetPolicy(scene.ManySpec(i, 80).Ref,
			[]policy.Spec{scene.OnOne(i, uint16(1000+i))})
	})
	before = heap()
	spec := scene.ListSpec(list)
	s.report("list-comes", 1, func(int) { s.c.SetPolicy(spec.Ref, []policy.Spec{spec}) })
	fmt.Printf("%d prefixes: %d bytes each\n", len(list), (heap()-before)/uint64(len(list)))
	if s.k != nil {
		fmt.Printf("rows of policies, peers, peer_prefixes, peer_classes, verdicts: %v\n",
			scene.Counts(s.B, s.k.Datapath))
	}
	s.report("list-changes-by-one", 10, func(i int) {
		s.c.SetPolicy(spec.Ref, []policy.Spec{scene.ListSpec([][]netip.Prefix{longer, list}[i%2])})
	})
	s.report("list-goes", 1, func(int) { s.c.SetPolicy(spec.Ref, nil) })
	addresses, sets := 0, 0
	for range s.c.Addresses() {
		addresses++
	}
	for range s.c.Sets() {
		sets++
	}
	fmt.Printf("left: %d addresses, %d sets\n", addresses, sets)
}
