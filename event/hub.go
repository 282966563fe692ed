package event

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"myelin/bpf"
)

// queue is how many events wait for a subscriber, at most, before they are
// lost to it: about one second of what a CPU may send by default.
const queue = 8192

// Hub hands events to subscribers. While there are none the datapath sends none
// of flows, and the ring is not read: it is full of drops, and wakes
// no reader. Events wait in the kernel until they are pulled or followed.
type Hub struct {
	log      *slog.Logger
	datapath *bpf.Datapath
	// refused is how many events the kernel has not sent.
	refused func() (uint64, error)

	subscribers atomic.Pointer[[]*Subscription] // replaced, never changed
	lost        atomic.Uint64                   // to slow subscribers
	unread      atomic.Uint64                   // overwritten while there were followers
	followers   atomic.Int32                    // of events as they happen
	reader      atomic.Pointer[reader]          // nil: none runs

	pullMu sync.Mutex
	pulls  []chan struct{} // calls of Pull that wait for the reader

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
	sink   *Sink // instead of wanted and events
	events chan Raw
	lost   atomic.Uint64

	unfollow func() // nil: it does not follow
}

// Subscribe starts to keep the events for which wanted returns true; it is
// called by one goroutine for all subscribers and must be quick. Close ends the
// subscription.
func (h *Hub) Subscribe(wanted func(*Raw) bool) (*Subscription, error) {
	h.Pull() // what is older is not for this subscriber
	s, err := h.add(&Subscription{hub: h, wanted: wanted, events: make(chan Raw, queue)})
	if err == nil {
		s.unfollow = h.Follow()
	}
	return s, err
}

// Sink takes every event without a queue between. Its functions must be quick,
// must not keep the event, and may be called by several goroutines at a time.
type Sink struct {
	Record func(*Raw)
	// DNS takes messages that have passed without the proxy, in the same order; nil: they are left out.
	DNS func(*Raw, *DNS)
	// Overwritten says that n events before a time of CLOCK_MONOTONIC were
	// overwritten while there were no followers. With followers, they are lost.
	Overwritten func(n uint64, before time.Duration)
}

// Sink hands every event to sink, those of flows once they are pulled or
// followed: also those from before, as far as the datapath keeps them.
// Close ends that; a call that has begun may still be under way then.
func (h *Hub) Sink(sink Sink) (*Subscription, error) {
	return h.add(&Subscription{hub: h, sink: &sink})
}

// Follow has events published as they happen, until stop is called, once.
func (h *Hub) Follow() (stop func()) {
	h.followers.Add(1)
	h.rouse()
	return func() { h.followers.Add(-1) }
}

// Following reports whether there are followers.
func (h *Hub) Following() bool { return h.followers.Load() > 0 }

// Filling reports whether the events since the last reading would take half of the room that a CPU has for them: unless
// they are read soon, some may be overwritten.
func (h *Hub) Filling() bool {
	r := h.reader.Load()
	return r != nil && r.filling()
}

// Pull publishes the events so far, and returns when that is done.
func (h *Hub) Pull() {
	done := make(chan struct{})
	h.pullMu.Lock()
	r := h.reader.Load()
	if r == nil {
		h.pullMu.Unlock()
		return
	}
	h.pulls = append(h.pulls, done)
	h.pullMu.Unlock()
	h.rouse()
	<-done
}

// rouse has the reader look what is wanted now.
func (h *Hub) rouse() {
	if r := h.reader.Load(); r != nil {
		r.ring.Flush()
		r.rouse()
	}
}

func (h *Hub) takePulls() []chan struct{} {
	h.pullMu.Lock()
	defer h.pullMu.Unlock()
	pulls := h.pulls
	h.pulls = nil
	return pulls
}

// release ends the calls of Pull that wait for a reader that has ended.
func (h *Hub) release() {
	h.pullMu.Lock()
	h.reader.Store(nil)
	h.pullMu.Unlock()
	for _, p := range h.takePulls() {
		close(p)
	}
}

// Poll helps a busy reader: a follower calls it every now and then while it handles events, so that they are not
// overwritten because the reader gets no CPU. It does not wait.
func (h *Hub) Poll() {
	if r := h.reader.Load(); r != nil {
		r.poll()
	}
}

func (h *Hub) overwritten(n uint64, before time.Duration) {
	if h.Following() {
		h.unread.Add(n)
		return
	}
	for _, s := range *h.subscribers.Load() {
		if s.sink != nil {
			s.sink.Overwritten(n, before)
		}
	}
}

func (h *Hub) add(s *Subscription) (*Subscription, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := *h.subscribers.Load()
	next := append(slices.Clip(list), s)
	h.subscribers.Store(&next)
	var err error
	if len(list) == 0 {
		err = h.start()
	} else {
		err = h.datapath.Listen(wantedBy(next))
	}
	if err != nil {
		h.subscribers.Store(&list)
		return nil, err
	}
	return s, nil
}

// wantedBy is what the datapath has to send beside drops: traces to sinks,
// flows of conntrack entries to subscriptions with a queue.
func wantedBy(list []*Subscription) (to bpf.DatapathListen) {
	for _, s := range list {
		if s.sink != nil {
			to |= bpf.DatapathListenLISTEN_TRACE
		} else {
			to |= bpf.DatapathListenLISTEN_FLOWS
		}
	}
	return to
}

// Events are those that were wanted, in the order of the ring; nil of a Sink.
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
	if s.unfollow != nil && len(next) < len(list) {
		s.unfollow()
	}
	if len(list) == 0 {
		return
	}
	if err := h.datapath.Listen(wantedBy(next)); err != nil {
		h.log.Warn("the datapath goes on reporting flows", "error", err)
	}
	if len(next) == 0 {
		h.end()
	}
}

// Listening reports whether anybody wants events.
func (h *Hub) Listening() bool { return len(*h.subscribers.Load()) > 0 }

// Publish hands an event to the subscribers that want it. It never waits.
func (h *Hub) Publish(r *Raw) {
	for _, s := range *h.subscribers.Load() {
		if s.sink != nil {
			s.sink.Record(r)
			continue
		}
		if r.Type == Report || !s.wanted(r) {
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

// publishDNS hands a DNS message to the sinks that want it.
func (h *Hub) publishDNS(r *Raw, dns *DNS) {
	for _, s := range *h.subscribers.Load() {
		if s.sink != nil && s.sink.DNS != nil {
			s.sink.DNS(r, dns)
		}
	}
}

// Report is the type of events that are no packet's: what a connection has carried. Insert takes them, for sinks alone.
const Report = 0xfd

// Insert hands reports to sinks, in the order of time with the events of the datapath: when those are pulled or
// followed.
func (h *Hub) Insert(list []Raw) {
	r := h.reader.Load()
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = append(r.pending, list...)
}

// Lost is how many events subscribers have missed since the hub was made:
// for they were slow, and for the kernel could not send them, or has overwritten
// them.
func (h *Hub) Lost() (slow, kernel uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost.Load(), h.missed + h.since() + h.unread.Load()
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
