package flow

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"myelin/bpf"
)

const shareSlots = uint32(bpf.DatapathShareBoundSHARE_SLOTS)

// shareGood is for how long the datapath enforces what was counted: the agent
// may be gone.
const shareGood = 30 * time.Second

// ShareYield is for how long an entry that is closed, or that nothing proves,
// has had no packet when it makes room.
const ShareYield = time.Second

// Usage is how full a table is.
type Usage struct {
	Entries, Max int
	// Proven are the entries of flows whose both ends have shown that they exist, as the agent counted last.
	Proven int
	// Slot is the endpoint with the most entries, 0 if no endpoint has any.
	Slot uint16
	Most int
}

// Limited reports whether the endpoint with the most entries gets no more.
func (u Usage) Limited() bool { return u.Most > 0 && u.Most+u.Entries >= u.Max }

// Shares tells the datapath how many entries of a table each endpoint has, so
// that it admits no more than its share. The datapath counts on from there.
type Shares struct {
	datapath *bpf.Datapath
	kind     bpf.DatapathShareKind
	size     int

	before, counts []uint32 // by cell
	leads          []lead   // by cell, of the current pass
	counted        Usage    // by the last pass
	passed         int      // proven entries, of the current pass
	proven         atomic.Int64
	// slots has, by cell, the slot that passes have seen last: a cell's own number before one has entries.
	slots atomic.Pointer[[]uint16]
}

// lead is the slot that has most of a cell's entries, if one has more than half (the majority vote of Boyer and Moore).
type lead struct {
	slot uint16
	by   uint32
}

func (l *lead) add(slot uint16) {
	switch {
	case l.by == 0:
		l.slot, l.by = slot, 1
	case l.slot == slot:
		l.by++
	default:
		l.by--
	}
}

// NewShares makes the shares of a table.
func NewShares(d *bpf.Datapath, kind bpf.DatapathShareKind, size int) *Shares {
	s := &Shares{datapath: d, kind: kind, size: size, counted: Usage{Max: size}}
	slots := make([]uint16, shareSlots)
	for i := range slots {
		slots[i] = uint16(i)
	}
	s.slots.Store(&slots)
	return s
}

// Usage is what the datapath counts now: entries that ended since the last pass
// are still in it. It may be called while a pass runs.
func (s *Shares) Usage() (Usage, error) {
	counts, err := s.read()
	return s.usageOf(counts), err
}

// usageOf is a usage by the counts of all cells; the first one is of all
// endpoints.
func (s *Shares) usageOf(cells []uint32) Usage {
	u, slots := Usage{Max: s.size, Proven: int(s.proven.Load())}, *s.slots.Load()
	for i, n := range cells {
		if i == 0 {
			u.Entries = int(n)
		} else if int(n) > u.Most {
			u.Slot, u.Most = slots[i], int(n)
		}
	}
	return u
}

// cell is where a slot's count is: share_cell.
func cell(slot uint16) uint16 {
	if c := slot % uint16(shareSlots); slot == 0 || c != 0 {
		return c
	}
	return 1
}

// begin is called before the entries are read.
func (s *Shares) begin() (err error) {
	s.counts, s.leads, s.passed = make([]uint32, shareSlots), make([]lead, shareSlots), 0
	s.before, err = s.read()
	return err
}

// add counts an entry of an endpoint that remains.
func (s *Shares) add(slot uint16, proven bool) {
	if proven {
		s.passed++
	}
	s.counts[cell(slot)]++
	s.leads[cell(slot)].add(slot)
}

// end writes what was counted, and what the datapath has added meanwhile: an
// entry that is counted twice so is corrected by the next pass.
func (s *Shares) end(clock Clock) error {
	after, err := s.read()
	if err != nil {
		return err
	}
	for _, n := range s.counts[1:] {
		s.counts[0] += n
	}
	slots := slices.Clone(*s.slots.Load())
	for i, l := range s.leads {
		if l.by > 0 {
			slots[i] = l.slot
		}
	}
	s.slots.Store(&slots)
	s.proven.Store(int64(s.passed))
	s.counted = s.usageOf(s.counts)
	for i, n := range s.counts {
		if n += after[i] - s.before[i]; n != after[i] {
			if err := s.datapath.Shares.Put(s.index(i), n); err != nil {
				return fmt.Errorf("write share: %w", err)
			}
		}
	}
	until := uint32(clock.Ticks + uint64(shareGood/time.Second)*uint64(clock.Hz))
	if err := s.datapath.SharesUntil.Set(max(until, 1)); err != nil {
		return fmt.Errorf("say how long shares are good: %w", err)
	}
	return nil
}

func (s *Shares) index(cell int) uint32 { return uint32(s.kind)*shareSlots + uint32(cell) }

func (s *Shares) read() ([]uint32, error) {
	counts := make([]uint32, shareSlots)
	err := bpf.Each(s.datapath.Shares, func(i, n *uint32) bool {
		if *i/shareSlots == uint32(s.kind) {
			counts[*i%shareSlots] = *n
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("read shares: %w", err)
	}
	return counts, nil
}

// wanted reports whether a pass is due, by what the datapath has counted since
// the last one: the table fills up, or an endpoint gets no more entries.
func (s *Shares) wanted() bool {
	var all uint32
	if s.datapath.Shares.Lookup(s.index(0), &all) != nil {
		return false
	}
	u := s.counted
	return int(all) > u.Entries+u.Max/16 || u.Limited() || int(all) > u.Max*7/8
}

// yields reports whether what is not proven to live makes room, of the
// endpoint: the table is more than half full of it, or it has a quarter.
func (s *Shares) yields(slot uint16) bool {
	u := s.counted
	return u.Entries > u.Max/2 || cell(slot) == cell(u.Slot) && u.Most > u.Max/4
}
