package event

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"myelin/bpf"
)

// queue is how many events wait for a subscriber, at most, before they are
// lost to it: about one second of what a CPU may send by default.
const queue = 8192

// Hub hands events to subscribers. While there are none the datapath sends none
// of flows, and the ring is not read: it is full of drops, and wakes
// no reader.
type Hub struct {
	log      *slog.Logger
	datapath *bpf.Datapath
	// refused is how many events the kernel has not sent.
	refused func() (uint64, error)

	subscribers atomic.Pointer[[]*Subscription] // replaced, never changed
	lost        atomic.Uint64                   // to slow subscribers

	mu     sync.Mutex // guards what follows, and writes to subscribers
	stop   func()     // ends the reader and waits for it
	before uint64     // events refused when the reader started
	missed uint64     // events refused while it ran before
}

// NewHub makes a hub for a datapath's events. refused counts those that the
// kernel could not send, see drop.Counters.
func NewHub(log *slog.Logger, datapath *bpf.Datapath, refused func() (uint64, error)) *Hub {
	h := &Hub{log: log, datapath: datapath, refused: refused}
	h.subscribers.Store(&[]*Subscription{})
	return h
}

// Subscription receives events from when it was made on.
type Subscription struct {
	hub    *Hub
	wanted func(*Raw) bool
	events chan Raw
	lost   atomic.Uint64
}

// Subscribe starts to keep the events for which wanted returns true; it is
// called by one goroutine for all subscribers and must be quick. Close ends the
// subscription.
func (h *Hub) Subscribe(wanted func(*Raw) bool) (*Subscription, error) {
	s := &Subscription{hub: h, wanted: wanted, events: make(chan Raw, queue)}
	h.mu.Lock()
	defer h.mu.Unlock()
	list := *h.subscribers.Load()
	next := append(slices.Clip(list), s)
	h.subscribers.Store(&next)
	if len(list) > 0 {
		return s, nil
	}
	if err := h.start(); err != nil {
		h.subscribers.Store(&list)
		return nil, err
	}
	return s, nil
}

// Events are those that were wanted, in the order of the ring.
func (s *Subscription) Events() <-chan Raw { return s.events }

// Lost is how many events did not fit the queue since the last call.
func (s *Subscription) Lost() uint64 { return s.lost.Swap(0) }

// Close ends the subscription. The last one ends the reader with it.
func (s *Subscription) Close() {
	h := s.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	list := *h.subscribers.Load()
	next := slices.DeleteFunc(slices.Clone(list), func(o *Subscription) bool { return o == s })
	h.subscribers.Store(&next)
	if len(list) > 0 && len(next) == 0 {
		h.end()
	}
}

// Listening reports whether anybody wants events.
func (h *Hub) Listening() bool { return len(*h.subscribers.Load()) > 0 }

// Publish hands an event to the subscribers that want it. It never waits.
func (h *Hub) Publish(r *Raw) {
	for _, s := range *h.subscribers.Load() {
		if !s.wanted(r) {
			continue
		}
		select {
		case s.events <- *r:
		default:
			s.lost.Add(1)
			h.lost.Add(1)
		}
	}
}

// Lost is how many events subscribers have missed since the hub was made:
// for they were slow, and for the kernel could not send them.
func (h *Hub) Lost() (slow, kernel uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost.Load(), h.missed + h.since()
}

// since is how many events were refused since the reader began.
func (h *Hub) since() uint64 {
	if h.stop == nil {
		return 0
	}
	now, err := h.refused()
	if err != nil || now < h.before {
		return 0
	}
	return now - h.before
}
