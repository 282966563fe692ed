package maps

import (
	"cmp"
	"slices"

	"myelin/service"
)

// These bound how many backend slots a set has if weights differ. A new flow gets one of the slots at random.
const (
	minSlots        = 1024
	slotsPerBackend = 16
)

// slotCounts is how many backend slots each member of a set has: one if all weights are the same. Otherwise it is at
// least one, and as many as the weight says: exactly, if that fits, or else by the largest remainder.
func slotCounts(refs []service.BackendRef) []int {
	var divisor, sum uint64
	for _, r := range refs {
		divisor, sum = gcd(divisor, uint64(r.Weight)), sum+uint64(r.Weight)
	}
	divisor = max(divisor, 1)
	out := make([]int, len(refs))
	room := uint64(max(minSlots, slotsPerBackend*len(refs)))
	if sum/divisor <= room {
		for i, r := range refs {
			out[i] = int(max(1, uint64(r.Weight)/divisor))
		}
		return out
	}
	order := make([]int, len(refs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(refs[a].Weight, refs[b].Weight), cmp.Compare(refs[a].ID, refs[b].ID))
	})
	// Backends whose share is less than one slot get one; the others divide the rest.
	for len(order) > 0 && uint64(refs[order[0]].Weight)*room < sum {
		out[order[0]] = 1
		room, sum = room-1, sum-uint64(refs[order[0]].Weight)
		order = order[1:]
	}
	left := room
	for _, i := range order {
		out[i] = int(uint64(refs[i].Weight) * room / sum)
		left -= uint64(out[i])
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(uint64(refs[b].Weight)*room%sum, uint64(refs[a].Weight)*room%sum)
	})
	for _, i := range order[:left] {
		out[i]++
	}
	return out
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// slotsOf returns the numbers in the backend slots of a set. They differ in as few slots as possible from last, which
// may be from the kernel and in any order: backends that stay keep their slots, new ones get the slots of those that
// are removed, and the rest of these is filled from the end. If nothing changes it returns last.
func slotsOf(refs []service.BackendRef, last []uint32) []uint32 {
	if inOrder(refs, last) {
		return last
	}
	missing := make(map[uint32]int, len(refs))
	total := 0
	for i, n := range slotCounts(refs) {
		missing[refs[i].ID] += n
		total += n
	}
	out := make([]uint32, 0, max(total, len(last)))
	var holes []int
	for i, id := range last {
		if missing[id] > 0 {
			missing[id]--
		} else {
			holes = append(holes, i)
		}
		out = append(out, id)
	}
	if len(holes) == 0 && total == len(last) {
		return last
	}
	for _, r := range refs {
		for ; missing[r.ID] > 0; missing[r.ID]-- {
			if len(holes) > 0 {
				out[holes[0]], holes = r.ID, holes[1:]
			} else {
				out = append(out, r.ID)
			}
		}
	}
	// Starts with the last hole, so that what is moved into a hole is never a hole itself.
	for i := len(holes) - 1; i >= 0; i-- {
		end := len(out) - 1
		out[holes[i]] = out[end]
		out = out[:end]
	}
	return out
}

// inOrder reports whether last already has the backends of a set of equal weights, in this order. This is the usual
// case, and allocates nothing.
func inOrder(refs []service.BackendRef, last []uint32) bool {
	if len(refs) != len(last) {
		return false
	}
	for i, r := range refs {
		if r.ID != last[i] || r.Weight != refs[0].Weight {
			return false
		}
	}
	return true
}

// removedBackends are the numbers that are in last and not in next.
func removedBackends(last, next []uint32) map[uint32]bool {
	var out map[uint32]bool
	for i, id := range last {
		if i < len(next) && next[i] == id {
			continue
		}
		if out == nil {
			out = map[uint32]bool{}
		}
		out[id] = true
	}
	if len(out) == 0 {
		return nil
	}
	for _, id := range next {
		delete(out, id)
	}
	return out
}
