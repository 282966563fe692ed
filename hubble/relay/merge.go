package relay

import (
	"container/heap"
	"context"
	"io"
	"sync"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
)

// item is a response of a source that waits for earlier ones of other sources.
type item struct {
	res     *observerpb.GetFlowsResponse
	source  string
	at      time.Time // what it is sorted by
	number  uint64    // of its arrival
	arrived time.Time
}

// items is a heap: the earliest is the first, and of those the one that arrived first.
type items []*item

func (s items) Len() int      { return len(s) }
func (s items) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s items) Less(i, j int) bool {
	return s[i].at.Before(s[j].at) || s[i].at.Equal(s[j].at) && s[i].number < s[j].number
}

// Push implements heap.Interface.
func (s *items) Push(x any) { *s = append(*s, x.(*item)) }

// Pop implements heap.Interface.
func (s *items) Pop() any {
	last := len(*s) - 1
	x := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return x
}

// merger puts responses of several sources, each nearly in the order of time, in the order of time. A response leaves
// when each source that is open has sent another one, or after the time that the merger waits for silent ones. It
// keeps at most limit responses of a source, whose push then blocks.
type merger struct {
	limit  int
	wait   time.Duration
	follow bool // sources are silent for long: responses leave also when one source has sent limit of them
	now    func() time.Time

	mu      sync.Mutex
	first   []*observerpb.GetFlowsResponse // those that need no order
	waiting items
	open    map[string]bool
	counts  map[string]int
	number  uint64
	sealed  bool
	arrival chan struct{} // has a token when next has something to look at
	room    chan struct{} // closed, and made anew, when something has left
}

func newMerger(limit int, wait time.Duration, follow bool, now func() time.Time) *merger {
	return &merger{limit: limit, wait: wait, follow: follow, now: now, open: map[string]bool{},
		counts: map[string]int{}, arrival: make(chan struct{}, 1), room: make(chan struct{})}
}

// start makes next wait for a source.
func (m *merger) start(source string) { m.set(func() { m.open[source] = true }) }

// end makes next wait for a source no more. What it has sent stays.
func (m *merger) end(source string) { m.set(func() { delete(m.open, source) }) }

// seal makes next end when all sources have ended.
func (m *merger) seal() { m.set(func() { m.sealed = true }) }

func (m *merger) set(change func()) {
	m.mu.Lock()
	change()
	m.mu.Unlock()
	m.poke()
}

func (m *merger) poke() {
	select {
	case m.arrival <- struct{}{}:
	default:
	}
}

// push adds a response of a source.
func (m *merger) push(ctx context.Context, source string, at time.Time, res *observerpb.GetFlowsResponse) error {
	return m.add(ctx, func() bool {
		if m.counts[source] >= m.limit {
			return false
		}
		m.number++
		m.counts[source]++
		heap.Push(&m.waiting, &item{res: res, source: source, at: at, number: m.number, arrived: m.now()})
		return true
	})
}

// pushFirst adds a response that leaves before all others.
func (m *merger) pushFirst(ctx context.Context, res *observerpb.GetFlowsResponse) error {
	return m.add(ctx, func() bool {
		if len(m.first) >= m.limit {
			return false
		}
		m.first = append(m.first, res)
		return true
	})
}

// add calls try until it returns true, again each time when something has left.
func (m *merger) add(ctx context.Context, try func() bool) error {
	for {
		m.mu.Lock()
		done, room := try(), m.room
		m.mu.Unlock()
		if done {
			m.poke()
			return nil
		}
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// next returns the response that comes next, or io.EOF when no more will come. One goroutine may call it.
func (m *merger) next(ctx context.Context) (*observerpb.GetFlowsResponse, error) {
	for {
		m.mu.Lock()
		res, wait := m.take()
		end := res == nil && m.sealed && len(m.open) == 0 && len(m.waiting) == 0
		m.mu.Unlock()
		if res != nil {
			return res, nil
		}
		if end {
			return nil, io.EOF
		}
		timer := time.NewTimer(wait)
		select {
		case <-m.arrival:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, ctx.Err()
		}
		timer.Stop()
	}
}

// take returns a response that may leave, or how long to wait for more.
func (m *merger) take() (*observerpb.GetFlowsResponse, time.Duration) {
	if len(m.first) > 0 {
		res := m.first[0]
		m.first = m.first[1:]
		m.left()
		return res, 0
	}
	if len(m.waiting) == 0 {
		return nil, m.wait
	}
	earliest := m.waiting[0]
	if wait := m.wait - m.now().Sub(earliest.arrived); wait > 0 && !m.settled() {
		return nil, wait
	}
	heap.Pop(&m.waiting)
	if m.counts[earliest.source]--; m.counts[earliest.source] == 0 {
		delete(m.counts, earliest.source)
	}
	m.left()
	return earliest.res, 0
}

// settled reports whether the earliest response is known to be it, or may not wait longer for lack of room.
func (m *merger) settled() bool {
	if m.follow {
		for _, n := range m.counts {
			if n >= m.limit {
				return true
			}
		}
	}
	for source := range m.open {
		if m.counts[source] == 0 {
			return false
		}
	}
	return true
}

func (m *merger) left() {
	close(m.room)
	m.room = make(chan struct{})
}
