package hubble

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"myelin/event"
	"myelin/l7/control"
)

// Bounds of a ring's capacity in events. Both are 2^n - 1, as every capacity is.
const (
	minCapacity = 1
	maxCapacity = 1<<20 - 1
)

// words is the size of an event in 64-bit words.
const words = int(unsafe.Sizeof(event.Raw{}) / 8)

// chunkSlots is how many slots are allocated together.
const chunkSlots = 256

// slot holds one event. Its words are atomic, so that a reader that is overtaken copies nonsense, which it notices by
// the sequence number, instead of keeping the writer waiting.
type slot struct {
	seq  atomic.Uint64 // 2 * position + 2; odd while it is written; 0: never written
	word [words]atomic.Uint64
}

type chunk [chunkSlots]slot

// Ring keeps the last events. Positions count the events written since the ring was made, so that the oldest event
// that can still be read is at Oldest, and the next one will be at Next.
type Ring struct {
	capacity  uint64
	chunks    []atomic.Pointer[chunk]
	next      atomic.Uint64
	notes     atomic.Uint64                 // of what was written: entries of lost events
	overtaken atomic.Uint64                 // events that were overwritten before a reader came to them
	waiting   atomic.Pointer[chan struct{}] // closed by the next Write; nil: no reader waits
	mu        sync.Mutex                    // serialises writers; readers never take it
	l7        records
}

// checkCapacity refuses a capacity that is not 2^n - 1, or out of bounds.
func checkCapacity(n int) error {
	if n < minCapacity || n > maxCapacity || bits.OnesCount(uint(n+1)) != 1 {
		return fmt.Errorf("%d is not one less than a power of two, from %d to %d", n, minCapacity, maxCapacity)
	}
	return nil
}

// NewRing makes a ring for capacity events, see checkCapacity. Its memory, 176 bytes per event, is allocated as it
// fills.
func NewRing(capacity int) (*Ring, error) {
	if err := checkCapacity(capacity); err != nil {
		return nil, fmt.Errorf("make a ring of events: capacity: %w", err)
	}
	slots := capacity + 1
	return &Ring{
		capacity: uint64(capacity),
		chunks:   make([]atomic.Pointer[chunk], (slots+chunkSlots-1)/chunkSlots),
	}, nil
}

func (r *Ring) slot(pos uint64) (*atomic.Pointer[chunk], int) {
	i := pos & r.capacity
	return &r.chunks[i/chunkSlots], int(i % chunkSlots)
}

// Write adds an event. It neither waits for readers nor, once the ring is full, allocates. It may be called
// concurrently.
func (r *Ring) Write(raw *event.Raw) {
	from := (*[words]uint64)(unsafe.Pointer(raw))
	r.mu.Lock()
	pos := r.next.Load()
	at, i := r.slot(pos)
	c := at.Load()
	if c == nil {
		c = new(chunk)
		at.Store(c)
	}
	s := &c[i]
	s.seq.Store(2*pos + 1)
	for w := range from {
		// A load is much cheaper than a store, and many words are mostly zero.
		if s.word[w].Load() != from[w] {
			s.word[w].Store(from[w])
		}
	}
	s.seq.Store(2*pos + 2)
	r.next.Store(pos + 1)
	r.mu.Unlock()
	if p := r.waiting.Load(); p != nil && r.waiting.CompareAndSwap(p, nil) {
		close(*p)
	}
}

// L7 returns a record of the proxy by the number that an event has of it, and whether it is still there.
func (r *Ring) L7(n uint64) (control.Record, bool) { return r.l7.get(n) }

// Capacity is how many events can be read, at most.
func (r *Ring) Capacity() uint64 { return r.capacity }

// Next is the position of the next event to be written: how many have been written.
func (r *Ring) Next() uint64 { return r.next.Load() }

// Flows is how many flows have been written.
func (r *Ring) Flows() uint64 { return r.next.Load() - r.notes.Load() }

// Oldest is the position of the oldest event that can still be read. It equals Next while the ring is empty.
func (r *Ring) Oldest() uint64 {
	next := r.next.Load()
	return next - min(next, r.capacity)
}

// Len is how many events can be read.
func (r *Ring) Len() uint64 { return min(r.next.Load(), r.capacity) }

// Overtaken is how many events were overwritten before a client or an exporter came to them.
func (r *Ring) Overtaken() uint64 { return r.overtaken.Load() }

// Read copies the event at a position into raw. It reports false if the event is overwritten, or not written yet.
func (r *Ring) Read(pos uint64, raw *event.Raw) bool {
	into := (*[words]uint64)(unsafe.Pointer(raw))
	at, i := r.slot(pos)
	c := at.Load()
	if c == nil {
		return false
	}
	s := &c[i]
	if s.seq.Load() != 2*pos+2 {
		return false
	}
	for w := range into {
		into[w] = s.word[w].Load()
	}
	return s.seq.Load() == 2*pos+2
}

// Wait returns when there is an event at a position, or ctx has ended, with its error.
func (r *Ring) Wait(ctx context.Context, pos uint64) error {
	for {
		written := r.notify()
		// After notify: a Write that comes later closes the channel.
		if r.next.Load() > pos {
			return nil
		}
		select {
		case <-written:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// notify is a channel that is closed by a Write from now on.
func (r *Ring) notify() <-chan struct{} {
	for {
		if p := r.waiting.Load(); p != nil {
			return *p
		}
		c := make(chan struct{})
		if r.waiting.CompareAndSwap(nil, &c) {
			return c
		}
	}
}
