package maps

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"myelin/service"
)

func weighted(weights ...uint16) (refs []service.BackendRef) {
	for i, w := range weights {
		refs = append(refs, service.BackendRef{ID: uint32(i + 1), Weight: w})
	}
	return refs
}

func TestShares(t *testing.T) {
	many := make([]uint16, 5000)
	for i := range many {
		many[i] = 7
	}
	for _, tc := range []struct {
		name    string
		weights []uint16
		want    []int
	}{
		{"none", nil, []int{}},
		{"one", []uint16{65535}, []int{1}},
		{"equal", []uint16{300, 300, 300}, []int{1, 1, 1}},
		{"exact", []uint16{100, 300}, []int{1, 3}},
		{"no common divisor", []uint16{2, 3, 5}, []int{2, 3, 5}},
		{"last exact one", []uint16{1, 1023}, []int{1, 1023}},
		{"rounded", []uint16{1, 1024}, []int{1, 1023}},
		{"at least one each", []uint16{1, 2, 3, 65535}, []int{1, 1, 1, 1021}},
		{"largest remainder", []uint16{1000, 1001, 1001}, []int{341, 342, 341}},
		{"many equal", many, nil},
	} {
		got := slotCounts(weighted(tc.weights...))
		if tc.want == nil {
			tc.want = slices.Repeat([]int{1}, len(tc.weights))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

// With any weights, each backend has at least one slot, there are no more slots than the bound, and the number of a
// backend's slots differs by at most one from its share, except for those that get one slot although their share is
// less.
func TestSharesAreFair(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		n := 1 + random.IntN(200)
		weights, sum := make([]uint16, n), 0.0
		for i := range weights {
			weights[i] = uint16(1 + random.IntN(65535))
			if random.IntN(3) == 0 {
				weights[i] = uint16(1 + random.IntN(20))
			}
			sum += float64(weights[i])
		}
		total, small := 0, 0
		got := slotCounts(weighted(weights...))
		for _, s := range got {
			total += s
			if s == 1 {
				small++
			}
		}
		room := max(minSlots, slotsPerBackend*n)
		if total > room || slices.Min(got) < 1 {
			t.Fatalf("%v: %d choices, at most %d, the fewest %d", weights, total, room, slices.Min(got))
		}
		for i, s := range got {
			deserves := float64(weights[i]) / sum * float64(total)
			if d := float64(s) - deserves; d > 1 || d < -1-float64(small)*deserves/float64(total) {
				t.Fatalf("weights %v: number %d has %d choices and deserves %.2f", weights, i, s, deserves)
			}
		}
	}
}

func differences(a, b []uint32) int {
	n := max(len(a), len(b)) - min(len(a), len(b))
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

func TestChoicesOf(t *testing.T) {
	for _, tc := range []struct {
		name       string
		refs       []service.BackendRef
		last, want []uint32
	}{
		{"first", weighted(1, 1, 1), nil, []uint32{1, 2, 3}},
		{"same", weighted(5, 5, 5), []uint32{1, 2, 3}, []uint32{1, 2, 3}},
		{"same in another order", weighted(1, 1, 1), []uint32{3, 1, 2}, []uint32{3, 1, 2}},
		{"one goes", weighted(1, 1, 1), []uint32{1, 9, 3, 2}, []uint32{1, 2, 3}},
		{"the last goes", weighted(1, 1, 1), []uint32{3, 1, 2, 9}, []uint32{3, 1, 2}},
		{"one for another", weighted(1, 1, 1), []uint32{3, 9, 1}, []uint32{3, 2, 1}},
		{"one comes", weighted(1, 1, 1), []uint32{3, 2}, []uint32{3, 2, 1}},
		{"all go", nil, []uint32{3, 2}, nil},
		{"more weight", weighted(1, 3), []uint32{2, 1}, []uint32{2, 1, 2, 2}},
		{"less weight", weighted(1, 2), []uint32{2, 1, 2, 2}, []uint32{2, 1, 2}},
		{"a row that was lost", weighted(1, 1), []uint32{0, 0}, []uint32{1, 2}},
	} {
		if got := slotsOf(tc.refs, tc.last); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, got, tc.want)
		}
	}
}

// One changed backend among many with different weights moves about as many slots as it has.
func TestChoicesStay(t *testing.T) {
	for _, n := range []int{10, 100, 1000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			random := rand.New(rand.NewPCG(3, uint64(n)))
			refs := make([]service.BackendRef, n)
			for i := range refs {
				refs[i] = service.BackendRef{ID: uint32(i + 1), Weight: uint16(500 + random.IntN(1000))}
			}
			last := slotsOf(refs, nil)
			without := slotsOf(refs[1:], last)
			its := slotCounts(refs)[0]
			if got := differences(last, without); got > 2*its+2*n/slotsPerBackend+1 {
				t.Errorf("one with %d of %d choices went: %d slots changed", its, len(last), got)
			}
			refs[0].Weight++
			if got := differences(last, slotsOf(refs, last)); got > its {
				t.Errorf("a weight of one with %d of %d choices changed by one: %d slots changed", its, len(last), got)
			}
		})
	}
}

func TestLost(t *testing.T) {
	for _, tc := range []struct{ last, next, want []uint32 }{
		{[]uint32{1, 2, 3}, []uint32{1, 2, 3}, nil},
		{[]uint32{1, 2, 3}, []uint32{1, 3}, []uint32{2}},
		{[]uint32{1, 2, 2}, []uint32{2, 1}, nil},
		{[]uint32{1, 2}, nil, []uint32{1, 2}},
		{nil, []uint32{1}, nil},
	} {
		got := removedBackends(tc.last, tc.next)
		if len(got) != len(tc.want) {
			t.Errorf("%v to %v: got %v, want %v", tc.last, tc.next, got, tc.want)
		}
		for _, id := range tc.want {
			if !got[id] {
				t.Errorf("%v to %v: got %v, want %v", tc.last, tc.next, got, tc.want)
			}
		}
	}
}
