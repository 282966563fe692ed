package event

import (
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// start reads the ring until end; h.mu is held. What is in the ring from the
// time without listeners is skipped.
func (h *Hub) start() error {
	ring, err := ringbuf.NewReader(h.datapath.Events)
	if err != nil {
		return fmt.Errorf("open the ring of events: %w", err)
	}
	since, err := Monotonic()
	if err == nil {
		h.before, err = h.refused()
	}
	if err == nil {
		err = h.datapath.Listen(true)
	}
	if err != nil {
		ring.Close()
		return err
	}
	done := make(chan struct{})
	h.stop = func() {
		ring.Close()
		<-done
	}
	go func() {
		defer close(done)
		if err := h.read(ring, uint64(since)); err != nil {
			h.log.Error("events are not read any more", "error", err)
		}
	}()
	return nil
}

func (h *Hub) end() {
	if err := h.datapath.Listen(false); err != nil {
		h.log.Warn("the datapath goes on telling of flows", "error", err)
	}
	h.missed += h.since()
	h.stop()
	h.stop = nil
}

// read hands out events that happened at since, on CLOCK_MONOTONIC in
// nanoseconds, or later. One buffer serves for all.
func (h *Hub) read(ring *ringbuf.Reader, since uint64) error {
	var (
		record ringbuf.Record
		raw    Raw
	)
	into := unsafe.Slice((*byte)(unsafe.Pointer(&raw)), unsafe.Sizeof(raw))
	for {
		err := ring.ReadInto(&record)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the ring of events: %w", err)
		}
		if n := copy(into, record.RawSample); n < len(into) {
			return fmt.Errorf("read the ring of events: one has %d bytes, want %d", n, len(into))
		}
		if raw.TimeNs >= since {
			h.Publish(&raw)
		}
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
