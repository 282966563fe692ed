package stats

import (
	"time"

	"myelin/bpf"
)

// Pair is a backend of a Service: the key of an entry in members. The zero Pair stands for all flows of pairs without
// an index, and for indexes whose pair is not known any more.
type Pair = bpf.DatapathMemberKey

// HoldTime is how long an index is not reused after its pair was released, at least: packets that looked it up before
// have created their NAT entry by then.
const HoldTime = 30 * time.Second

// retryTime is how much later an index is looked at again that a flow still counts into: looking reads all NAT entries.
const retryTime = 5 * time.Minute

// indexes gives pairs indexes of service_stats from 1 on; 0 stands for no index.
type indexes struct {
	size  uint32
	taken map[Pair]uint32
	// held are indexes that are in no entry of members any more. NAT entries may still count into them.
	held   map[uint32]holding
	heldOf map[Pair]uint32
	free   []uint32
	next   uint32 // indexes from here on were never given
	short  bool   // a pair got no index, and none was freed since
}

type holding struct {
	pair  Pair
	since time.Time
}

func newIndexes(size uint32) *indexes {
	return &indexes{size: size, next: 1, taken: map[Pair]uint32{}, held: map[uint32]holding{},
		heldOf: map[Pair]uint32{}}
}

// take returns the index of a pair, which gets one if it has none; 0 if there is none left. A pair that comes back
// while its index is held gets it back.
func (x *indexes) take(p Pair) uint32 {
	if i, ok := x.taken[p]; ok {
		return i
	}
	i, ok := x.heldOf[p]
	switch {
	case ok:
		delete(x.held, i)
		delete(x.heldOf, p)
	case len(x.free) > 0:
		i, x.free = x.free[len(x.free)-1], x.free[:len(x.free)-1]
	case x.next < x.size:
		i = x.next
		x.next++
	default:
		x.short = true
		return 0
	}
	x.taken[p] = i
	return i
}

// release holds back the index of a pair, if it has one.
func (x *indexes) release(p Pair, now time.Time) {
	if i, ok := x.taken[p]; ok {
		delete(x.taken, p)
		x.held[i] = holding{p, now}
		x.heldOf[p] = i
	}
}

// due returns the indexes that have been held for HoldTime.
func (x *indexes) due(now time.Time) (list []uint32) {
	for i, h := range x.held {
		if now.Sub(h.since) >= HoldTime {
			list = append(list, i)
		}
	}
	return list
}

// retry puts off when a held index is due.
func (x *indexes) retry(i uint32, now time.Time) {
	x.held[i] = holding{x.held[i].pair, now.Add(retryTime)}
}

// reuse makes a held index available.
func (x *indexes) reuse(i uint32) {
	if p := x.held[i].pair; p != (Pair{}) {
		delete(x.heldOf, p)
	}
	delete(x.held, i)
	x.free = append(x.free, i)
	x.short = false
}

// adopt makes what the previous agent left the state of a new one: the indexes of pairs, and those that have counted
// something and have no pair. Of pairs with the same index or one that cannot be, adopt ignores all but the first.
func (x *indexes) adopt(pairs map[Pair]uint32, counted func(uint32) bool, now time.Time) {
	used := map[uint32]bool{}
	for p, i := range pairs {
		if i == 0 || i >= x.size || used[i] {
			continue
		}
		used[i], x.taken[p] = true, i
		x.next = max(x.next, i+1)
	}
	for i := uint32(1); i < x.size; i++ {
		if !used[i] && counted(i) {
			x.held[i] = holding{since: now}
			x.next = max(x.next, i+1)
		}
	}
	for i := uint32(1); i < x.next; i++ {
		if _, held := x.held[i]; !used[i] && !held {
			x.free = append(x.free, i)
		}
	}
}
