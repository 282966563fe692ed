package maglev

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"myelin/service"
)

func maglevBackends(n int, v6 bool) []Backend {
	first := "10.0.1.0"
	if v6 {
		first = "fd00:1::"
	}
	addr := netip.MustParseAddr(first)
	out := make([]Backend, n)
	for i := range out {
		addr = addr.Next()
		out[i] = Backend{L4Addr: service.L4(addr, 8080, service.TCP), ID: uint32(i + 1), Weight: 1}
	}
	return out
}

func TestMaglevSize(t *testing.T) {
	for backends, want := range map[int]int{
		0: 251, 1: 509, 2: 1021, 3: 2039, 10: 8191, 100: 65521, 655: 65521, 656: 131071, 5000: 524287, 10485: 1048573,
		1000000: 1048573,
	} {
		if got := Size(backends); got != want {
			t.Errorf("%d backends: got %d, want %d", backends, got, want)
		}
	}
	for _, size := range Sizes() {
		for d := 2; d*d <= size; d++ {
			if size%d == 0 {
				t.Errorf("%d is not a prime: %d divides it", size, d)
			}
		}
	}
}

// Removing a backend moves its own flows, and of the others at most 1 % of all. The mean over the removed backends is
// reported.
func TestMaglevDisruption(t *testing.T) {
	for _, n := range []int{3, 10, 30, 100, 300, 655} {
		for _, v6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d backends, IPv6 %t", n, v6), func(t *testing.T) {
				backends := maglevBackends(n, v6)
				size := Size(n)
				before := Table(1, size, backends)
				sum, worst, trials := 0.0, 0.0, min(n, 10)
				for i := range trials {
					gone := backends[i*n/trials].ID
					after := Table(1, size, slices.DeleteFunc(slices.Clone(backends), func(b Backend) bool {
						return b.ID == gone
					}))
					excess := 0
					for at, id := range before {
						if id != gone && after[at] != id {
							excess++
						}
					}
					moved := float64(excess) / float64(size)
					sum, worst = sum+moved, max(worst, moved)
				}
				t.Logf("maglev/excess_moved: %.3f %% of all flows on average, %.3f %% at worst, table of %d",
					100*sum/float64(trials), 100*worst, size)
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
		"one": {7}, "equal": {1, 1, 1, 1, 1, 1, 1}, "uneven": {1, 2, 3, 50}, "large": {65535, 30000, 30000},
		"none": {1, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			backends := maglevBackends(len(weights), false)
			sum := 0.0
			for i, w := range weights {
				backends[i].Weight = w
				sum += float64(w)
			}
			size := Size(int(sum / float64(max(1, slices.Min(weights)))))
			counts := map[uint32]int{}
			for _, id := range Table(1, size, backends) {
				counts[id]++
			}
			for _, b := range backends {
				got, want := float64(counts[b.ID])/float64(size), float64(b.Weight)/sum
				if math.Abs(got-want) > 0.02*want {
					t.Errorf("weight %d of %v: got %.4f of the flows, want %.4f", b.Weight, weights, got, want)
				}
			}
			if len(counts) == 0 || counts[0] > 0 {
				t.Errorf("%d slots have no backend", counts[0])
			}
		})
	}
	if table := Table(1, 251, []Backend{{Weight: 0}}); table != nil {
		t.Errorf("got a table of %d slots without a backend", len(table))
	}
}

// All nodes select the same backend, whatever its number and the order of backends. Another seed selects others.
func TestMaglevIsDeterministic(t *testing.T) {
	here := maglevBackends(20, true)
	there := slices.Clone(here)
	slices.Reverse(there)
	for i := range there {
		there[i].ID += 1000
	}
	size := Size(20)
	a, b, other := Table(7, size, here), Table(7, size, there), Table(8, size, here)
	differ := 0
	for i := range a {
		if a[i]+1000 != b[i] {
			t.Fatalf("slot %d: got %d here and %d there", i, a[i], b[i])
		}
		if a[i] != other[i] {
			differ++
		}
	}
	if differ < size/2 {
		t.Errorf("another seed moved %d of %d slots", differ, size)
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
				Table(1, Size(n), backends)
			}
		})
	}
}

func TestMaglevConfig(t *testing.T) {
	for _, tc := range []struct {
		size, backends, want int
		err                  string
	}{
		{0, 3, 2039, ""}, {251, 3, 251, ""}, {251, 252, Size(252), ""}, {1048573, 1, 1048573, ""},
		{252, 0, 252, "252 is none of"}, {-1, 0, 251, "-1 is none of"},
	} {
		c := Config{Size: tc.size}
		if err := fmt.Sprint(c.Check()); tc.err == "" && err != "<nil>" || !strings.Contains(err, tc.err) {
			t.Errorf("size %d: got error %v", tc.size, err)
		}
		if got := c.SizeFor(tc.backends); got != tc.want {
			t.Errorf("%d backends in %d slots get %d", tc.backends, tc.size, got)
		}
	}
	one, err1 := parseSeed("JLfvgnHc2kaSUFaI")
	two, err2 := parseSeed("JLfvgnHc2kaSUFaJ")
	if err1 != nil || err2 != nil || one == two {
		t.Errorf("seeds are %d and %d: %v, %v", one, two, err1, err2)
	}
	for _, bad := range []string{"", "x", "JLfvgnHc2kaSUFaIAAAA"} {
		if _, err := parseSeed(bad); err == nil {
			t.Errorf("seed %q is taken", bad)
		}
	}
}
