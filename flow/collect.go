package flow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/time/rate"

	"myelin/bpf"
	"myelin/event"
)

// Bounds of the collection's work.
const (
	collectEvery = 10 * time.Second
	collectRate  = 65536 // rows looked at a second, at most
	collectStep  = 1024  // rows between looks at the limit
)

// Collector deletes the rows of flows that are over. The datapath does without
// it, for it takes over such a row when it needs the place; the collector keeps
// counts honest and tells of the end.
type Collector struct {
	Datapath *bpf.Datapath
	Log      *slog.Logger
	// Ended is called for each flow that no packet ended; nil: nobody cares.
	Ended func(*event.Raw)

	expired atomic.Uint64
}

// Expired is how many rows were deleted since the start.
func (c *Collector) Expired() uint64 { return c.expired.Load() }

// Run collects until ctx ends.
func (c *Collector) Run(ctx context.Context) error {
	settings, err := c.Datapath.Settings()
	if err != nil {
		return err
	}
	if c.Datapath.Flows.MaxEntries() <= 1 { // no feature needs rows
		return nil
	}
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		if err := c.Pass(ctx, settings.Hz); err != nil && ctx.Err() == nil {
			c.Log.Warn("flows that are over stay for another while", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Pass looks at every row once. hz is the datapath's ticks a second.
func (c *Collector) Pass(ctx context.Context, hz uint32) error {
	clock, err := ReadClock(hz)
	if err != nil {
		return fmt.Errorf("collect flows: %w", err)
	}
	limit := rate.NewLimiter(collectRate, collectStep)
	seen := 0
	var failed error
	err = Each(c.Datapath, func(k *Key, r *Row) bool {
		if clock.Expired(k, r) {
			failed = c.remove(clock, k)
		}
		if seen++; seen%collectStep == 0 && failed == nil {
			failed = limit.WaitN(ctx, collectStep)
		}
		return failed == nil
	})
	return errors.Join(err, failed)
}

// remove looks once more, since a packet may have passed after the row was
// a translated flow gets the same port, which follows from its addresses.
func (c *Collector) remove(clock Clock, k *Key) error {
	var r Row
	err := c.Datapath.Flows.Lookup(k, &r)
	if errors.Is(err, ebpf.ErrKeyNotExist) || err == nil && !clock.Expired(k, &r) {
		return nil
	}
	if err == nil {
		err = c.Datapath.Flows.Delete(k)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("collect flows: %w", err)
	}
	c.expired.Add(1)
	if c.Ended != nil && StateOf(&r) != Closing { // whose end a packet has told
		c.Ended(ended(clock, k, &r))
	}
	return nil
}

// ended is the event of a flow that was not seen for too long.
func ended(clock Clock, k *Key, r *Row) *event.Raw {
	from := origin(r)
	e := &event.Raw{
		TimeNs: uint64(clock.Since), Type: uint8(bpf.DatapathEventTypeEVENT_FLOW_END), Hook: event.Expired,
		Src: k.Addr[from], Dst: k.Addr[1-from], Sport: k.Port[from], Dport: k.Port[1-from], Proto: k.Proto, Slot: r.Slot,
		TcpFlags: r.Side[0].TcpFlags | r.Side[1].TcpFlags, Family: 6,
	}
	if translated(r) && podSide(r) == from {
		e.Src, e.Sport = r.Pod, r.PodPort
	}
	if e.Src.Netip().Is4() {
		e.Family = 4
	}
	return e
}
