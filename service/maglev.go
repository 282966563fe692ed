package service

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// MaglevBackend is a backend as a Maglev table sees it.
type MaglevBackend struct {
	// L4Addr is what decides the places, so that all nodes have the same table
	// but for the numbers in it.
	L4Addr
	ID uint32
	// Weight is relative to the others'; 0 gets no place.
	Weight uint16
}

// MaglevConfig says how look-up tables are made. All nodes should have the same.
type MaglevConfig struct {
	// Size is that of all tables, in places; 0: MaglevSize of the backends, as
	// for Services that have more backends than places.
	Size int
	Seed uint64
}

// Check refuses sizes that no table has.
func (c MaglevConfig) Check() error {
	if sizes := MaglevSizes(); c.Size != 0 && !slices.Contains(sizes, c.Size) {
		return fmt.Errorf("%d is none of %v", c.Size, sizes)
	}
	return nil
}

// MaglevSeed reads a seed as Cilium has it: 12 bytes in base64.
func MaglevSeed(text string) (uint64, error) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) != 12 {
		return 0, fmt.Errorf("%q is not 12 bytes in base64", text)
	}
	return xxhash.Sum64(b), nil
}

// size is how many places a number of backends get.
func (c MaglevConfig) size(backends int) int {
	if c.Size < backends {
		return MaglevSize(backends)
	}
	return c.Size
}

// MaglevSizes are primes just below powers of two: memory is rounded to those.
func MaglevSizes() []int {
	return []int{251, 509, 1021, 2039, 4093, 8191, 16381, 32749, 65521, 131071, 262139, 524287, 1048573}
}

// MaglevSize is the table size for a number of backends, at most 1,048,573: at
// least 100 places each, so that shares differ by 1 % at most (10,485 backends),
// and in tables up to 65,521 at least 500. With only 100, one of 100 backends
// that goes moves 1.4 % of the flows beyond its share; with 500, 0.6 %.
//
// A backend more that needs the next size moves most flows, which is why
// operators may set one size for all.
func MaglevSize(backends int) int {
	sizes := MaglevSizes()
	at, _ := slices.BinarySearch(sizes, max(100*backends, min(500*backends, 65521)))
	return sizes[min(at, len(sizes)-1)]
}

// MaglevTable is the look-up table of Maglev hashing (Eisenbud et al., NSDI
// 2016, 3.4): place i has the ID of the backend for flows whose hash is i modulo
// size. It depends on nothing but its arguments, whatever the order of backends.
// size must be a prime. Without a backend that has a weight it is nil.
//
// A backend's places follow from its address alone, so that one that goes leaves
// nearly all places of the others as they are. A backend with half the weight of
// the heaviest one takes every second turn.
func MaglevTable(seed uint64, size int, backends []MaglevBackend) []uint32 {
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

// permutation is the order in which a backend wants the places.
type permutation struct {
	id             uint32
	next, skip     uint64
	weight, credit uint64
}

// take is the first place of the permutation that is free. There is one.
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

// permutations are those of the backends with a weight, in the order of their
// turns: one that goes must not change who of the others comes first.
func permutations(seed uint64, size int, backends []MaglevBackend) []permutation {
	sorted := slices.DeleteFunc(slices.Clone(backends), func(b MaglevBackend) bool { return b.Weight == 0 })
	slices.SortFunc(sorted, func(a, b MaglevBackend) int { return cmp.Or(a.Compare(b.L4Addr), cmp.Compare(a.ID, b.ID)) })
	offset, skip := xxhash.NewWithSeed(seed), xxhash.NewWithSeed(^seed)
	out := make([]permutation, len(sorted))
	for i, b := range sorted {
		key := b.key()
		offset.ResetWithSeed(seed)
		skip.ResetWithSeed(^seed)
		offset.Write(key)
		skip.Write(key)
		out[i] = permutation{
			id: b.ID, next: offset.Sum64() % uint64(size), skip: skip.Sum64()%uint64(size-1) + 1, weight: uint64(b.Weight),
		}
	}
	return out
}
