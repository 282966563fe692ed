package event

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"myelin/bpf"
)

const (
	// idlePause is how long the reader sleeps after an event in the ring buffer, and how often it reads while there are
	// followers. The kernel wakes it for the first event afterwards only, so that an event costs the CPU that sends it
	// a wake-up 50 times a second at most.
	idlePause = 20 * time.Millisecond
	// pendingMax is how many events of the ring buffer wait to be pulled, before they are published anyway.
	pendingMax = 1024
	// busyPause is the pause after more than busyEvents were published, and the least time between two polls.
	busyPause  = 2 * time.Millisecond
	busyEvents = 256
	// unsettled is how young events are that followers get the next time: a CPU may still be writing an older one.
	unsettled = time.Millisecond
)

// reader reads the events of the ring buffer (drops and sockets) and of the map traces (all others), and publishes
// them in the order of time. One goroutine runs it; followers that are busy help it (poll).
type reader struct {
	hub    *Hub
	ring   *ringbuf.Reader
	traces *bpf.Traces // nil: there are none
	since  uint64      // older events are skipped
	wake   chan struct{}

	mu      sync.Mutex    // guards what follows, and traces
	pending []Raw         // from the ring buffer, and reports, not published yet
	busy    bool          // many events were published
	last    time.Duration // when events were published
}

// start starts the reader; h.mu is held. What is in the ring buffer from the time without listeners is for sinks only.
func (h *Hub) start() error {
	ring, err := ringbuf.NewReader(h.datapath.Events)
	if err != nil {
		return fmt.Errorf("open the ring of events: %w", err)
	}
	r := &reader{hub: h, ring: ring, wake: make(chan struct{}, 1)}
	if err := r.begin(); err != nil {
		r.close()
		return err
	}
	done := make(chan struct{})
	h.reader.Store(r)
	h.stop = func() {
		h.reader.Store(nil)
		ring.Close()
		r.rouse()
		<-done
	}
	go func() {
		defer close(done)
		if err := r.run(); err != nil {
			h.log.Error("events are not read any more", "error", err)
		}
		r.close()
		h.release()
	}()
	return nil
}

func (r *reader) begin() error {
	h := r.hub
	since, err := Monotonic()
	if err != nil {
		return err
	}
	if (*h.subscribers.Load())[0].sink == nil {
		r.since = uint64(since)
	}
	if h.before, err = h.refused(); err != nil {
		return err
	}
	slots, err := h.datapath.TraceSlots()
	if err != nil {
		return err
	}
	if slots != 0 {
		if r.traces, err = bpf.OpenTraces(h.datapath.Traces, h.datapath.DnsReports, slots); err != nil {
			return err
		}
	}
	return h.datapath.Listen(wantedBy(*h.subscribers.Load()))
}

func (r *reader) close() {
	r.ring.Close()
	if r.traces != nil {
		r.traces.Close()
	}
}

func (h *Hub) end() {
	h.missed += h.since()
	h.stop()
	h.stop = nil
}

// run reads until the ring buffer is closed.
func (r *reader) run() error {
	var record ringbuf.Record
	n := 0 // events since the last call of serve
	for {
		var deadline time.Time
		if r.hub.Following() {
			deadline = time.Now().Add(r.pause())
		}
		r.ring.SetDeadline(deadline)
		err := r.ring.ReadInto(&record)
		switch {
		case errors.Is(err, os.ErrClosed):
			return nil
		case err == nil:
			if err := r.keep(record.RawSample); err != nil {
				return err
			}
			if n++; r.ring.AvailableBytes() > 0 && n < pendingMax {
				continue
			}
		case !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, ringbuf.ErrFlushed):
			return fmt.Errorf("read the ring of events: %w", err)
		}
		n = 0
		if e := r.serve(); e != nil {
			return e
		}
		if err == nil {
			r.sleep()
		}
	}
}

// pause is how long to wait for more events.
func (r *reader) pause() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy {
		return busyPause
	}
	return idlePause
}

// keep keeps an event of the ring buffer.
func (r *reader) keep(sample []byte) error {
	var raw Raw
	into := unsafe.Slice((*byte)(unsafe.Pointer(&raw)), unsafe.Sizeof(raw))
	if n := copy(into, sample); n < len(into) {
		return fmt.Errorf("read the ring of events: one has %d bytes, want %d", n, len(into))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if raw.TimeNs >= r.since {
		r.pending = append(r.pending, raw)
	}
	return nil
}

// serve publishes what there is, if it is pulled or followed.
func (r *reader) serve() error {
	pulls := r.hub.takePulls()
	defer func() {
		for _, p := range pulls {
			close(p)
		}
	}()
	following := r.hub.Following()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(pulls) == 0 && !following && len(r.pending) < pendingMax {
		return nil
	}
	now, err := Monotonic()
	if err != nil {
		return err
	}
	if len(pulls) == 0 && following {
		now -= unsettled
	}
	r.publish(now)
	return nil
}

// poll publishes what there is, unless that was done shortly before.
func (r *reader) poll() {
	now, err := Monotonic()
	if err != nil || !r.mu.TryLock() {
		return
	}
	defer r.mu.Unlock()
	if now-r.last > busyPause {
		r.publish(now - unsettled)
	}
}

// filling is Hub.Filling. It does not wait for a reading that is under way.
func (r *reader) filling() bool {
	if r.traces == nil || !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	return r.traces.Fill() >= 0.5
}

// publish hands out the events that are not newer than until, in the order of time. r.mu
// is held.
func (r *reader) publish(now time.Duration) {
	r.last = now
	until := uint64(now)
	slices.SortStableFunc(r.pending, func(a, b Raw) int { return cmp.Compare(a.TimeNs, b.TimeNs) })
	n, traced := 0, 0
	pendingUntil := func(until uint64) {
		for ; n < len(r.pending) && r.pending[n].TimeNs <= until; n++ {
			r.hub.Publish(&r.pending[n])
		}
	}
	if r.traces != nil {
		missed := r.traces.Read(until, func(e *Raw, dns *DNS) {
			traced++
			pendingUntil(e.TimeNs)
			switch {
			case e.TimeNs < r.since:
			case e.Type == uint8(bpf.DatapathEventTypeEVENT_DNS):
				r.hub.publishDNS(e, dns)
			default:
				r.hub.Publish(e)
			}
		})
		if missed > 0 {
			r.hub.overwritten(missed, now)
		}
	}
	pendingUntil(until)
	r.pending = slices.Delete(r.pending, 0, n)
	r.busy = traced > busyEvents
}

// sleep lets events gather, until they are pulled or followed.
func (r *reader) sleep() {
	t := time.NewTimer(r.pause())
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.wake:
	}
}

// rouse ends sleep.
func (r *reader) rouse() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Monotonic is the datapath's clock: CLOCK_MONOTONIC.
func Monotonic() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read CLOCK_MONOTONIC: %w", err)
	}
	return time.Duration(now.Nano()), nil
}
