package compile

import (
	"fmt"
	"net/netip"
)

// Numbers of address sets that no rule names.
const (
	podCIDRs   = 1 // what pods of known nodes have
	apiServers = 2 // what is behind the Service kubernetes
	// allIPv4 is the whole family. It means nothing, but has a row: to the
	// kernel's trie IPv4 is a part of IPv6, and ::/1 would cover it.
	allIPv4  = 3
	firstSet = 4
)

// addressSet is a set of addresses that some rule names.
type addressSet struct {
	id     uint32
	source addressSource
	// include and except are what is marked in the space, or will be when the
	// backlog is over.
	include, except []netip.Prefix
	backlog         *backlog
	ids             map[*Identity]struct{} // those whose addresses are in it
	users           map[*rule]struct{}
	selector        uint32      // number of the names that the set stands for; 0 for other sets
	binding         PortBinding // the named port that the pods in the set have; empty for other sets
	err             error       // it doesn't fit into the kernel
}

// special makes one of the sets that no rule names.
func (s *space) special(id uint32, key string) *addressSet {
	set := &addressSet{id: id, source: addressSource{key: key, pods: true}, ids: map[*Identity]struct{}{}}
	s.sets[id] = set
	return set
}

// useSet finds the set of a source, or makes it; fill says what is in it.
func (s *space) useSet(source addressSource, r *rule, fill func(*addressSet)) *addressSet {
	set := s.bySet[source.key]
	if set == nil {
		s.nextSet = max(s.nextSet+1, firstSet)
		set = &addressSet{id: s.nextSet, source: source, ids: map[*Identity]struct{}{}, users: map[*rule]struct{}{}}
		s.sets[set.id], s.bySet[source.key] = set, set
	}
	set.users[r] = struct{}{}
	// A list that is known by its place may have changed.
	set.source.include, set.source.except = source.include, source.except
	fill(set)
	return set
}

// releaseSet undoes useSet.
func (s *space) releaseSet(set *addressSet, r *rule) {
	delete(set.users, r)
	if len(set.users) == 0 {
		delete(s.bySet, set.source.key)
		if s.fillSet(set, nil, nil); set.backlog == nil {
			delete(s.sets, set.id)
		}
	}
}

// fillSet makes a set hold what is in include and not in except; both are tidy.
// Of many prefixes a slice is marked by each call of advance.
func (s *space) fillSet(set *addressSet, include, except []netip.Prefix) {
	if b := set.backlog; b != nil {
		if b.next = nil; !shared(set.include, include) || !shared(set.except, except) {
			b.next = &contents{include, except}
		}
		return
	}
	had := set.err
	set.err = s.checkRoom(set, include, except)
	s.errorsChanged = s.errorsChanged || (had == nil) != (set.err == nil)
	if set.err != nil {
		s.retryBelow = s.used(0) + s.used(1)
		return
	}
	if !shared(set.include, include) || !shared(set.except, except) {
		s.startLoad(set, include, except)
	}
}

// checkRoom reports whether the kernel has room for what is not there yet.
func (s *space) checkRoom(set *addressSet, include, except []netip.Prefix) error {
	if n := len(include) + len(except); s.used(0)+n <= s.room[0] && s.used(1)+n <= s.room[1] {
		return nil
	}
	var more, upTo [2]int
	for _, p := range include {
		upTo[boolIndex(!p.IsSingleIP())]++
	}
	for _, p := range except {
		upTo[boolIndex(!p.IsSingleIP())]++
	}
	if s.used(0)+upTo[0] <= s.room[0] && s.used(1)+upTo[1] <= s.room[1] {
		return nil
	}
	count := func(p netip.Prefix, added bool) {
		kind := boolIndex(!p.IsSingleIP())
		if !added {
			more[kind] -= boolIndex(s.isOnlyMark(p))
		} else if _, ok := s.cells.Get(p); !ok {
			more[kind]++
		}
	}
	merge(set.include, include, count)
	merge(set.except, except, count)
	for kind, name := range [2]string{"peers", "peer_prefixes"} {
		if n := s.used(kind) + more[kind]; more[kind] > 0 && n > s.room[kind] {
			return fmt.Errorf("map %s is full: it has room for %d rows, and %d are needed", name, s.room[kind], n)
		}
	}
	return nil
}

// used is how many rows there are, of single addresses or of prefixes.
func (s *space) used(kind int) int {
	if kind == 0 {
		return s.count[0] + s.pending[0] + s.owned.Size()
	}
	return s.count[1] + s.pending[1]
}

// isOnlyMark reports whether one set only has a prefix.
func (s *space) isOnlyMark(p netip.Prefix) bool {
	c, ok := s.cells.Get(p)
	return ok && len(s.lists[c.list].of) == 1
}
