package service

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"
)

func maglevBackends(n int, v6 bool) []MaglevBackend {
	first := "10.0.1.0"
	if v6 {
		first = "fd00:1::"
	}
	addr := netip.MustParseAddr(first)
	out := make([]MaglevBackend, n)
	for i := range out {
		addr = addr.Next()
		out[i] = MaglevBackend{L4Addr: L4(addr, 8080, TCP), ID: uint32(i + 1), Weight: 1}
	}
	return out
}

func TestMaglevSize(t *testing.T) {
	for backends, want := range map[int]int{
		0: 251, 1: 509, 2: 1021, 3: 2039, 10: 8191, 100: 65521, 655: 65521, 656: 131071, 5000: 524287, 10485: 1048573, 1000000: 1048573,
	} {
		if got := MaglevSize(backends); got != want {
			t.Errorf("%d backends: got %d, want %d", backends, got, want)
		}
	}
	for _, size := range MaglevSizes() {
		for d := 2; d*d <= size; d++ {
			if size%d == 0 {
				t.Errorf("%d is not a prime: %d divides it", size, d)
			}
		}
	}
}

// A backend that goes moves its own flows, and of the others at most 1 % of
// all. The mean over all that may go is what is reported.
func TestMaglevDisruption(t *testing.T) {
	for _, n := range []int{3, 10, 30, 100, 300, 655} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d backends, IPv6 %t", n, v6), func(t *testing.T) {
				backends := maglevBackends(n, v6)
				size := MaglevSize(n)
				before := MaglevTable(1, size, backends)
				sum, worst, trials := 0.0, 0.0, min(n, 10)
				for i := range trials {
					gone := backends[i*n/trials].ID
					after := MaglevTable(1, size, slices.DeleteFunc(slices.Clone(backends), func(b MaglevBackend) bool { return b.ID == gone }))
					excess := 0
					for at, id := range before {
						if id != gone && after[at] != id {
							excess++
						}
					}
					moved := float64(excess) / float64(size)
					sum, worst = sum+moved, max(worst, moved)
				}
				t.Logf("maglev/excess_moved: %.3f %% of all flows on average, %.3f %% at worst, table of %d", 100*sum/float64(trials), 100*worst, size)
				if worst > 0.01 {
					t.Errorf("a backend that went moved %.2f %% of the flows beyond its share", 100*worst)
				}
			})
		}
	}
}

// Shares follow weights within 2 %.
func TestMaglevShares(t *testing.T) {
	for name, weights := range map[string][]uint16{
		"one": {7}, "equal": {1, 1, 1, 1, 1, 1, 1}, "uneven": {1, 2, 3, 50}, "large": {65535, 30000, 30000}, "none": {1, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			backends := maglevBackends(len(weights), false)
			sum := 0.0
			for i, w := range weights {
				backends[i].Weight = w
				sum += float64(w)
			}
			size := MaglevSize(int(sum / float64(max(1, slices.Min(weights)))))
			counts := map[uint32]int{}
			for _, id := range MaglevTable(1, size, backends) {
				counts[id]++
			}
			for _, b := range backends {
				got, want := float64(counts[b.ID])/float64(size), float64(b.Weight)/sum
				if math.Abs(got-want) > 0.02*want {
					t.Errorf("weight %d of %v: got %.4f of the flows, want %.4f", b.Weight, weights, got, want)
				}
			}
			if len(counts) == 0 || counts[0] > 0 {
				t.Errorf("%d places have no backend", counts[0])
			}
		})
	}
	if table := MaglevTable(1, 251, []MaglevBackend{{Weight: 0}}); table != nil {
		t.Errorf("got a table of %d places for nobody", len(table))
	}
}

// All nodes choose the same backend, whatever number it has and whenever they
// learned of it; another seed chooses another one.
func TestMaglevIsDeterministic(t *testing.T) {
	here := maglevBackends(20, true)
	there := slices.Clone(here)
	slices.Reverse(there)
	for i := range there {
		there[i].ID += 1000
	}
	size := MaglevSize(20)
	a, b, other := MaglevTable(7, size, here), MaglevTable(7, size, there), MaglevTable(8, size, here)
	differ := 0
	for i := range a {
		if a[i]+1000 != b[i] {
			t.Fatalf("place %d: got %d here and %d there", i, a[i], b[i])
		}
		if a[i] != other[i] {
			differ++
		}
	}
	if differ < size/2 {
		t.Errorf("another seed moved %d of %d places", differ, size)
	}
	// What is in the kernel of a node that isn't upgraded yet must be the same.
	if got, want := fmt.Sprint(a[:8]), "[4 7 2 10 4 16 12 20]"; got != want {
		t.Errorf("the table changed: got %s, want %s", got, want)
	}
}

func BenchmarkMaglevTable(b *testing.B) {
	for _, n := range []int{2, 100, 1000, 5000} {
		backends := maglevBackends(n, false)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				MaglevTable(1, MaglevSize(n), backends)
			}
		})
	}
}
