// Package stats counts packets, bytes and new flows of Services by backend: it says which counters of the datapath are
// whose, and reads them.
package stats

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"myelin/bpf"
	"myelin/flow"
	"myelin/service/nat"
)

// Counters are those of a pair.
type Counters = bpf.DatapathServiceStat

// Stats owns the map service_stats. Its methods may be called at the same time.
type Stats struct {
	datapath *bpf.Datapath

	mu      sync.Mutex
	indexes *indexes
	// base is what an index had counted when the agent began, and gone what released pairs of a Service have counted
	// since then: totals of a Service never fall.
	base map[uint32]Counters
	gone map[uint32]Counters

	scanMu sync.Mutex
	open   map[uint32]int // flows by index
	opened time.Time      // when open was read
	took   time.Duration
}

// Row is what a pair has counted. The zero Pair is all pairs without an index.
type Row struct {
	Pair
	// Held says that the backend is none of the Service any more.
	Held bool
	// Open is the number of flows now, -1 if packets are not translated.
	Open int
	Counters
}

// New reads what the previous agent left. members are the indexes of pairs.
func New(d *bpf.Datapath, members map[Pair]uint32, now time.Time) (*Stats, error) {
	s := &Stats{datapath: d, indexes: newIndexes(d.ServiceStats.MaxEntries()), base: map[uint32]Counters{},
		gone: map[uint32]Counters{}}
	err := d.EachServiceStat(func(i uint32, sum *bpf.DatapathServiceStat) bool {
		s.base[i] = *sum
		return true
	})
	if err != nil {
		return nil, err
	}
	s.indexes.adopt(members, func(i uint32) bool { return s.base[i] != (Counters{}) }, now)
	return s, nil
}

// Take returns the index of a pair, which gets one if it has none; 0 if there is none left.
func (s *Stats) Take(p Pair) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.indexes.take(p)
}

// Release is called when the pair's entry in members was deleted.
func (s *Stats) Release(p Pair, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.indexes.release(p, now)
}

// Usage is how many indexes there are, how many are in use, and whether a pair got none.
func (s *Stats) Usage() (size, used int, short bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.indexes.size) - 1, len(s.indexes.taken) + len(s.indexes.held), s.indexes.short
}

// Reuse makes indexes available that have been held for HoldTime and that no flow counts into any more. It reports
// whether pairs without an index may get one now. It reads all NAT entries, if any index is due.
func (s *Stats) Reuse(now time.Time) (bool, error) {
	s.mu.Lock()
	due := s.indexes.due(now)
	s.mu.Unlock()
	if len(due) == 0 {
		return false, nil
	}
	used, err := s.countedInto()
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	short := s.indexes.short
	freed := false
	for _, i := range due {
		if _, held := s.indexes.held[i]; !held {
			continue // the pair has come back
		}
		if used[i] {
			s.indexes.retry(i, now)
			continue
		}
		if err := s.clear(i); err != nil {
			return freed && short, err
		}
		freed = true
	}
	return freed && short, nil
}

// clear adds the counters of a held index to those of its Service, and makes it available.
func (s *Stats) clear(i uint32) error {
	sum, err := s.since(i)
	if err == nil {
		err = s.datapath.ClearServiceStat(i)
	}
	if err != nil {
		return err
	}
	if p := s.indexes.held[i].pair; p != (Pair{}) && sum != (Counters{}) {
		total := s.gone[p.Service]
		total.Add(&sum)
		s.gone[p.Service] = total
	}
	delete(s.base, i)
	s.indexes.reuse(i)
	return nil
}

// since is what an index has counted since the agent began.
func (s *Stats) since(i uint32) (Counters, error) {
	sum, err := s.datapath.ServiceStat(i)
	base := s.base[i]
	sum.Sub(&base)
	return sum, err
}

// countedInto returns the indexes in entries of flows.
func (s *Stats) countedInto() (map[uint32]bool, error) {
	used := map[uint32]bool{}
	err := bpf.Each(s.datapath.NatEntries, func(_ *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry) bool {
		used[uint32(r.Stat)] = true
		return true
	})
	if err == nil {
		err = bpf.Each(s.datapath.NatReplies, func(_ *bpf.DatapathNatTuple, r *bpf.DatapathNatReply) bool {
			used[uint32(r.Stat)] = true
			return true
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read which counters flows of Services use: %w", err)
	}
	return used, nil
}

// Read returns the counters of all pairs, first those of pairs without an index. They go on over restarts of the agent.
func (s *Stats) Read(clock flow.Clock, now time.Time) ([]Row, error) {
	open, err := s.openFlows(clock, now)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []Row{}
	add := func(i uint32, p Pair, held bool) {
		sum, bad := s.datapath.ServiceStat(i)
		err = errors.Join(err, bad)
		row := Row{Pair: p, Held: held, Counters: sum, Open: -1}
		if open != nil {
			row.Open = open[i]
		}
		list = append(list, row)
	}
	add(0, Pair{}, false)
	for p, i := range s.indexes.taken {
		add(i, p, false)
	}
	for p, i := range s.indexes.heldOf {
		add(i, p, true)
	}
	return list, err
}

// Totals are what each Service has counted since the agent began, by number. 0 is all pairs without an index.
func (s *Stats) Totals() (map[uint32]Counters, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	totals := maps.Clone(s.gone)
	var errs []error
	add := func(p Pair, i uint32) {
		sum, err := s.since(i)
		errs = append(errs, err)
		total := totals[p.Service]
		total.Add(&sum)
		totals[p.Service] = total
	}
	add(Pair{}, 0)
	for _, pairs := range []map[Pair]uint32{s.indexes.taken, s.indexes.heldOf} {
		for p, i := range pairs {
			add(p, i)
		}
	}
	return totals, errors.Join(errs...)
}

// Forget drops what was counted for Services that are deleted: known says which are not.
func (s *Stats) Forget(known func(uint32) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.gone, func(id uint32, _ Counters) bool { return !known(id) })
}

// Flows are counted again when that took openShare of the time since the last count, but not before openInterval.
const (
	openInterval = 2 * time.Second
	openShare    = 20
)

// openFlows counts the flows of each index that have not ended. It returns nil if packets are not translated.
func (s *Stats) openFlows(clock flow.Clock, now time.Time) (map[uint32]int, error) {
	if s.datapath.NatEntries.MaxEntries() <= 1 {
		return nil, nil
	}
	s.scanMu.Lock()
	defer s.scanMu.Unlock()
	if s.open != nil && now.Sub(s.opened) < max(openInterval, openShare*s.took) {
		return s.open, nil
	}
	began, open := time.Now(), map[uint32]int{}
	err := bpf.Each(s.datapath.NatEntries, func(k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry) bool {
		if ended := []flow.State{nat.Gone, flow.Closing}; !slices.Contains(ended, nat.State(r)) &&
			!nat.Expired(clock, k, r) {
			open[uint32(r.Stat)]++
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("count flows of Services: %w", err)
	}
	s.open, s.opened, s.took = open, now, time.Since(began)
	return open, nil
}
