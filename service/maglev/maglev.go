// Package maglev computes lookup tables of Maglev hashing (Eisenbud et al., NSDI 2016), with weights.
package maglev

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"

	"myelin/service"
)

// Backend is a backend of a table.
type Backend struct {
	// L4Addr determines the slots, so that all nodes have the same table, except for the numbers in it.
	service.L4Addr
	ID uint32
	// Weight is relative to the others'. A backend of weight 0 gets no slot.
	Weight uint16
}

// Config says how tables are computed. It should be the same on all nodes.
type Config struct {
	// Size is that of all tables, in slots. If it is 0, or smaller than the number of backends, Size chooses one.
	Size int
	Seed uint64
}

// Check returns an error if the size is none of Sizes.
func (c Config) Check() error {
	if sizes := Sizes(); c.Size != 0 && !slices.Contains(sizes, c.Size) {
		return fmt.Errorf("%d is none of %v", c.Size, sizes)
	}
	return nil
}

// parseSeed parses a seed in Cilium's format: 12 bytes in base64.
func parseSeed(text string) (uint64, error) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) != 12 {
		return 0, fmt.Errorf("%q is not 12 bytes in base64", text)
	}
	return xxhash.Sum64(b), nil
}

// SizeFor is the size of the table of that many backends.
func (c Config) SizeFor(backends int) int {
	if c.Size < backends {
		return Size(backends)
	}
	return c.Size
}

// Sizes are primes just below powers of two, to which memory is rounded.
func Sizes() []int {
	return []int{251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071, 262139, 524287, 1048573}
}

// Size is the table size for a number of backends, at most 1,048,573. A backend has at least 100 slots, so that shares
// differ by at most 1 % (up to 10,485 backends), and in tables up to 65,521 slots at least 500. With 100 slots each,
// removing one of 100 backends moves 1.4 % of the flows in excess of its own; with 500 it is 0.6 %.
//
// Adding a backend that requires the next size moves most flows. Operators may therefore set one size for all.
func Size(backends int) int {
	sizes := Sizes()
	at, _ := slices.BinarySearch(sizes, max(100*backends, min(500*backends, 65521)))
	return sizes[min(at, len(sizes)-1)]
}

// Table is the lookup table of Maglev hashing (section 3.4 of the paper): slot i has the ID of the backend for flows
// whose hash is i modulo size. It depends on nothing but its arguments, and not on the order of backends. size must be
// prime. The table is nil if no backend has a weight.
//
// A backend's slots follow from its address alone, so that nearly all slots of the others stay when it is removed. A
// backend with half the weight of the heaviest one takes every second turn.
func Table(seed uint64, size int, backends []Backend) []uint32 {
	turns := permutations(seed, size, backends)
	if len(turns) == 0 {
		return nil
	}
	heaviest := uint64(0)
	for i := range turns {
		heaviest = max(heaviest, turns[i].weight)
	}
	table := make([]uint32, size)
	taken := make([]bool, size)
	for left := size; left > 0; {
		for i := range turns {
			t := &turns[i]
			if t.credit += t.weight; t.credit < heaviest {
				continue
			}
			t.credit -= heaviest
			at := t.take(taken, uint64(size))
			table[at], taken[at] = t.id, true
			if left--; left == 0 {
				break
			}
		}
	}
	return table
}

// permutation is the order in which a backend prefers slots.
type permutation struct {
	id             uint32
	next, skip     uint64
	weight, credit uint64
}

// take returns the first free slot of the permutation. There must be one.
func (p *permutation) take(taken []bool, size uint64) uint64 {
	for taken[p.next] {
		p.step(size)
	}
	at := p.next
	p.step(size)
	return at
}

func (p *permutation) step(size uint64) {
	if p.next += p.skip; p.next >= size {
		p.next -= size
	}
}

// permutations are those of the backends with a weight, in the order of their turns. Removing one must not change the
// order of the others.
func permutations(seed uint64, size int, backends []Backend) []permutation {
	weightless := func(b Backend) bool { return b.Weight == 0 }
	sorted := slices.DeleteFunc(slices.Clone(backends), weightless)
	slices.SortFunc(sorted, func(a, b Backend) int {
		return cmp.Or(a.Compare(b.L4Addr), cmp.Compare(a.ID, b.ID))
	})
	offset, skip := xxhash.NewWithSeed(seed), xxhash.NewWithSeed(^seed)
	out := make([]permutation, len(sorted))
	for i, b := range sorted {
		key := b.Key()
		offset.ResetWithSeed(seed)
		skip.ResetWithSeed(^seed)
		offset.Write(key)
		skip.Write(key)
		out[i] = permutation{
			id: b.ID, weight: uint64(b.Weight),
			next: offset.Sum64() % uint64(size), skip: skip.Sum64()%uint64(size-1) + 1,
		}
	}
	return out
}
