package stats

import (
	"slices"
	"testing"
	"time"
)

func pair(service uint32) Pair { return Pair{Service: service, Proto: 6} }

// An index goes to another pair after it was held, and meanwhile back to its own pair only.
func TestIndexes(t *testing.T) {
	x, now := newIndexes(4), time.Unix(1000, 0)
	take := func(service, want uint32) {
		t.Helper()
		if got := x.take(pair(service)); got != want {
			t.Errorf("pair %d gets index %d, want %d", service, got, want)
		}
	}
	take(1, 1)
	take(2, 2)
	take(1, 1)
	take(3, 3)
	take(4, 0)
	if !x.short {
		t.Error("a pair without an index is not noted")
	}
	x.release(pair(2), now)
	x.release(pair(4), now) // had none
	take(4, 0)
	if due := x.due(now.Add(HoldTime - 1)); len(due) != 0 {
		t.Errorf("%v are due before they were held", due)
	}
	take(2, 2)
	if due := x.due(now.Add(HoldTime)); len(due) != 0 {
		t.Errorf("%v are due, and taken again", due)
	}
	x.release(pair(2), now)
	x.release(pair(3), now.Add(time.Second))
	if due := x.due(now.Add(HoldTime)); !slices.Equal(due, []uint32{2}) {
		t.Fatalf("%v are due, want 2", due)
	}
	x.retry(2, now)
	if due := x.due(now.Add(HoldTime + time.Second)); !slices.Equal(due, []uint32{3}) {
		t.Fatalf("%v are due, want 3", due)
	}
	x.reuse(3)
	if x.short {
		t.Error("there is an index, but pairs without one stay so")
	}
	take(5, 3)
	take(3, 0)
	if due := x.due(now.Add(HoldTime + retryTime)); !slices.Equal(due, []uint32{2}) {
		t.Errorf("%v are due at last, want 2", due)
	}
}

// A new agent leaves pairs their indexes, and reuses none that has counted.
func TestAdopt(t *testing.T) {
	x, now := newIndexes(8), time.Unix(1000, 0)
	x.adopt(map[Pair]uint32{pair(1): 3, pair(2): 8, pair(3): 0}, func(i uint32) bool { return i == 3 || i == 5 }, now)
	if i := x.take(pair(1)); i != 3 {
		t.Errorf("the index is %d, want 3", i)
	}
	var got []uint32
	for service := range uint32(6) {
		got = append(got, x.take(pair(10+service)))
	}
	slices.Sort(got)
	if want := []uint32{0, 1, 2, 4, 6, 7}; !slices.Equal(got, want) {
		t.Errorf("others get %v, want %v", got, want)
	}
	if due := x.due(now.Add(HoldTime)); !slices.Equal(due, []uint32{5}) {
		t.Errorf("%v are due, want 5", due)
	}
	x.reuse(5)
	if i := x.take(pair(2)); i != 5 {
		t.Errorf("the index is %d, want 5", i)
	}

	same := newIndexes(8)
	same.adopt(map[Pair]uint32{pair(1): 3, pair(2): 3}, func(uint32) bool { return false }, now)
	if a, b := same.take(pair(1)), same.take(pair(2)); a == b || a == 0 || b == 0 {
		t.Errorf("two pairs have the indexes %d and %d", a, b)
	}
}
