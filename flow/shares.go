package flow

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"myelin/bpf"
)

const shareSlots = uint32(bpf.DatapathShareBoundSHARE_SLOTS)

// shareGood is for how long the datapath enforces what was counted: the agent
// may be gone.
const shareGood = 30 * time.Second

// For how long an entry that is not proven has had no packet when it makes room. The faster entries come, the sooner,
// but not before flows had the time to be proven that flow_had_time gives them in the datapath.
const (
	shareYield      = time.Second
	shareYieldLeast = 250 * time.Millisecond
)

// Evidence is what the packets of a flow have shown.
type Evidence int

// The evidence of a flow.
const (
	Proven    Evidence = iota // both ends exist, and the flow goes on
	Unproven                  // nothing: the flow is half open, and its source may be forged; or it has ended
	Lingering                 // neither; with a NAT port whose next SYN the server may refuse: half open, or TIME-WAIT
)

// Usage is how full a table is.
type Usage struct {
	Entries, Max int
	// Demand is how many entries the table must have room for, as the agent counted last: see the function Demand.
	Demand int
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
	current        Usage    // as the datapath counts, at the beginning of the current pass
	looked         look
	demands        []int // by cell, of the current pass
	neediest       int   // the cell of endpoints with the largest demand, by the last pass; 0: none has any
	demand         demand
	// slots has, by cell, the slot that passes have seen last: a cell's own number before one has entries.
	slots atomic.Pointer[[]uint16]
}

// look is what the last look at the table has found. The last one may have been that of a pass.
type look struct {
	entries int
	at      time.Time
	rate    float64 // entries per second that came since the look before, at most since the last pass
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

// Room is the part of Usage that does not depend on which endpoints have entries. It reads one count of a map with
// thousands, so that it may be called often.
func (s *Shares) Room() (Usage, error) {
	u := Usage{Max: s.size, Demand: int(s.demand.soon.Load())}
	var all uint32
	if err := s.datapath.Shares.Lookup(s.index(0), &all); err != nil {
		return u, fmt.Errorf("read shares: %w", err)
	}
	u.Entries = int(all)
	return u, nil
}

// due looks at the table, and reports whether a pass is due.
func (s *Shares) due(now time.Time) bool {
	u, err := s.Room()
	if err != nil {
		return false
	}
	l := &s.looked
	if came, elapsed := u.Entries-l.entries, now.Sub(l.at); elapsed > 0 {
		l.rate = max(l.rate, float64(came)/elapsed.Seconds())
	}
	l.entries, l.at = u.Entries, now
	return s.wanted(u)
}

// usageOf is a usage by the counts of all cells; the first one is of all
// endpoints.
func (s *Shares) usageOf(cells []uint32) Usage {
	u, slots := Usage{Max: s.size, Demand: int(s.demand.soon.Load())}, *s.slots.Load()
	for i, n := range cells {
		if i == 0 {
			u.Entries = int(n)
		} else if own := int(int32(n)); own > u.Most { // below 0 after Lend
			u.Slot, u.Most = slots[i], own
		}
	}
	return u
}

// Expect notes how long a reload with a larger table takes: for so long the demand includes what comes.
func (s *Shares) Expect(reload time.Duration) {
	s.demand.lead.Store(int64(min(max(reload, demandLead), leadLimit)))
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
	s.counts, s.leads, s.demands = make([]uint32, shareSlots), make([]lead, shareSlots), make([]int, shareSlots)
	s.demand.begin()
	s.before, err = s.read()
	s.current = s.usageOf(s.before)
	return err
}

// add counts an entry of an endpoint that remains.
func (s *Shares) add(slot uint16, demand int) {
	s.demand.add(demand)
	s.demands[cell(slot)] += demand
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
	s.demand.end(clock.Since)
	s.neediest = neediest(s.demands)
	s.counted = s.usageOf(s.counts)
	s.looked = look{entries: int(s.counts[0] + after[0] - s.before[0]), at: time.Now()}
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

// neediest is the cell of endpoints with the largest demand, 0 if none has any.
func neediest(demands []int) (most int) {
	for cell, demand := range demands[1:] {
		if demand > 0 && (most == 0 || demand > demands[most]) {
			most = cell + 1
		}
	}
	return most
}

// Lend lets the endpoint that needs most of the table have up to 7/8 of it until the next pass, instead of half: no
// pass runs while the datapath is reloaded with a larger table, and nothing expires. Others have what it leaves, so
// that the table does not get full. It is called when no pass runs.
func (s *Shares) Lend() error {
	if s.neediest == 0 {
		return nil
	}
	var own uint32
	err := s.datapath.Shares.Lookup(s.index(s.neediest), &own)
	if err == nil {
		// The datapath compares the sum of both with the size, as signed numbers.
		err = s.datapath.Shares.Put(s.index(s.neediest), own-uint32(s.size)*3/4)
	}
	if err != nil {
		return fmt.Errorf("lend a share: %w", err)
	}
	return nil
}

func (s *Shares) index(cell int) uint32 { return uint32(s.kind)*shareSlots + uint32(cell) }

// read returns the counts of all cells.
func (s *Shares) read() ([]uint32, error) {
	const size = 8 // of an element, which the kernel aligns
	memory, err := s.datapath.Shares.Memory()
	if err != nil {
		return nil, fmt.Errorf("map shares into memory: %w", err)
	}
	elements := make([]byte, shareSlots*size)
	if _, err := memory.ReadAt(elements, int64(s.index(0))*size); err != nil {
		return nil, fmt.Errorf("read shares: %w", err)
	}
	counts := make([]uint32, shareSlots)
	for i := range counts {
		counts[i] = binary.LittleEndian.Uint32(elements[i*size:])
	}
	return counts, nil
}

// wanted reports whether a pass is due, by the room that there is and what the last one has counted: the table fills
// up, or an endpoint gets no more entries. Where few entries that came before need room (Demand), that is when an
// endpoint's share would be used up by the look after the next: the fewer entries each pass evicts, the more they cost.
func (s *Shares) wanted(now Usage) bool {
	u := s.counted
	if u.Limited() || now.Entries > u.Max*7/8 {
		return true
	}
	if u.Entries > u.Max/16 && now.Demand < u.Entries/4 {
		ahead := s.looked.rate * (2 * LookInterval).Seconds()
		return now.Entries > u.Entries && float64(now.Entries)+ahead > float64(u.Max/2)
	}
	return now.Entries > u.Entries+u.Max/16
}

// yieldAfter returns for how long an entry of the endpoint has had no packet when it is evicted.
func (s *Shares) yieldAfter(slot uint16, e Evidence) time.Duration {
	switch {
	case e == Unproven && s.looked.at.IsZero() && s.current.Entries > s.size/8:
		return shareYieldLeast // it is not known how fast entries came without an agent, nor when the next pass is
	case e == Unproven && s.current.crowdedBy(slot):
		return s.unprovenLife()
	case e != Proven && s.counted.crowdedBy(slot):
		return shareYield
	}
	return math.MaxInt64
}

// crowdedBy reports whether entries of the endpoint that are not proven make room: the table is more than half full, or
// the endpoint has most entries and more than a quarter of it.
func (u Usage) crowdedBy(slot uint16) bool {
	return u.Entries > u.Max/2 || cell(slot) == cell(u.Slot) && u.Most > u.Max/4
}

// unprovenLife is how long it takes at the rate at which entries come to fill an eighth of the table, a quarter of what
// one endpoint may have.
func (s *Shares) unprovenLife() time.Duration {
	if s.current.Limited() {
		return shareYieldLeast
	}
	seconds := float64(s.size/8) / max(s.looked.rate, 1)
	life := time.Duration(min(seconds, 3600) * float64(time.Second))
	return min(max(life, shareYieldLeast), shareYield)
}
