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

// storage has the slots of a ring of one capacity.
type storage struct {
	capacity uint64
	first    uint64 // no older position was taken over from the storage before
	chunks   []atomic.Pointer[chunk]
}

func newStorage(capacity int, first uint64) *storage {
	return &storage{
		capacity: uint64(capacity), first: first,
		chunks: make([]atomic.Pointer[chunk], (capacity+chunkSlots)/chunkSlots), // of capacity + 1 slots
	}
}

func (s *storage) at(pos uint64) (*atomic.Pointer[chunk], int) {
	i := pos & s.capacity
	return &s.chunks[i/chunkSlots], int(i % chunkSlots)
}

// oldest is the first position that can be read, where next is written next.
func (s *storage) oldest(next uint64) uint64 {
	return max(next-min(next, s.capacity), min(next, s.first))
}

// write is called by one goroutine at a time.
func (s *storage) write(pos uint64, from *[words]uint64) {
	at, i := s.at(pos)
	c := at.Load()
	if c == nil {
		c = new(chunk)
		at.Store(c)
	}
	into := &c[i]
	into.seq.Store(2*pos + 1)
	for w := range from {
		// A load is much cheaper than a store, and many words are mostly zero.
		if into.word[w].Load() != from[w] {
			into.word[w].Store(from[w])
		}
	}
	into.seq.Store(2*pos + 2)
}

func (s *storage) read(pos uint64, into *[words]uint64) bool {
	at, i := s.at(pos)
	c := at.Load()
	if c == nil {
		return false
	}
	from := &c[i]
	if from.seq.Load() != 2*pos+2 {
		return false
	}
	for w := range into {
		into[w] = from.word[w].Load()
	}
	return from.seq.Load() == 2*pos+2
}

// Ring keeps the last events. Positions count the events written since the ring was made, so that the oldest event
// that can still be read is at Oldest, and the next one will be at Next.
type Ring struct {
	storage   atomic.Pointer[storage]
	next      atomic.Uint64
	notes     atomic.Uint64                 // of what was written: entries of lost events
	overtaken atomic.Uint64                 // events that were overwritten before a reader came to them
	waiting   atomic.Pointer[chan struct{}] // closed by the next Write; nil: no reader waits
	mu        sync.Mutex                    // serialises writers and resize; readers never take it
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
	r := &Ring{}
	r.storage.Store(newStorage(capacity, 0))
	return r, nil
}

// resize changes the capacity to one that checkCapacity accepts, and keeps the last events that fit. Writers wait
// meanwhile: for some milliseconds if there are 65,535 events. A reader of events that no longer fit is overtaken.
func (r *Ring) resize(capacity int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, next := r.storage.Load(), r.next.Load()
	if old.capacity == uint64(capacity) {
		return
	}
	first := max(old.oldest(next), next-min(next, uint64(capacity)))
	s := newStorage(capacity, first)
	var event [words]uint64
	for pos := first; pos < next; pos++ {
		if old.read(pos, &event) {
			s.write(pos, &event)
		}
	}
	r.l7.resize(uint64(capacity))
	// A reader that sees a later Next sees this storage, too.
	r.storage.Store(s)
}

// Write adds an event. It neither waits for readers nor, once the ring is full, allocates. It may be called
// concurrently.
func (r *Ring) Write(raw *event.Raw) {
	r.mu.Lock()
	pos := r.next.Load()
	r.storage.Load().write(pos, (*[words]uint64)(unsafe.Pointer(raw)))
	r.next.Store(pos + 1)
	r.mu.Unlock()
	if p := r.waiting.Load(); p != nil && r.waiting.CompareAndSwap(p, nil) {
		close(*p)
	}
}

// L7 returns a record of the proxy by the number that an event has of it, and whether it is still there.
func (r *Ring) L7(n uint64) (control.Record, bool) { return r.l7.get(n) }

// Capacity is how many events can be read, at most.
func (r *Ring) Capacity() uint64 { return r.storage.Load().capacity }

// Next is the position of the next event to be written: how many have been written.
func (r *Ring) Next() uint64 { return r.next.Load() }

// Flows is how many flows have been written.
func (r *Ring) Flows() uint64 { return r.next.Load() - r.notes.Load() }

// Oldest is the position of the oldest event that can still be read. It equals Next while the ring is empty.
func (r *Ring) Oldest() uint64 {
	next := r.next.Load()
	return r.storage.Load().oldest(next)
}

// Len is how many events can be read.
func (r *Ring) Len() uint64 {
	next := r.next.Load()
	return next - r.storage.Load().oldest(next)
}

// Overtaken is how many events were overwritten before a client or an exporter came to them.
func (r *Ring) Overtaken() uint64 { return r.overtaken.Load() }

// Read copies the event at a position into raw. It reports false if the event is overwritten, or not written yet.
func (r *Ring) Read(pos uint64, raw *event.Raw) bool {
	return r.storage.Load().read(pos, (*[words]uint64)(unsafe.Pointer(raw)))
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
