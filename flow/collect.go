package flow

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"myelin/bpf"
	"myelin/event"
)

// Collector deletes the rows of flows that are over. The datapath does without
// it, for it takes over such a row when it needs the place; the collector keeps
// counts honest and tells of the end.
type Collector struct {
	Datapath *bpf.Datapath
	Log      *slog.Logger
	// Ended is called for each flow that no packet ended; nil: not reported.
	Ended func(*event.Raw)

	expired atomic.Uint64
	shares  *Shares
}

// NewCollector makes the collector of the table of flows.
func NewCollector(d *bpf.Datapath, log *slog.Logger) *Collector {
	return &Collector{Datapath: d, Log: log, shares: NewShares(d, bpf.DatapathShareKindSHARE_FLOWS,
		int(d.Flows.MaxEntries()))}
}

// Usage is how full the table is.
func (c *Collector) Usage() (Usage, error) { return c.shares.Usage() }

// Room is the part of Usage that may be asked for often.
func (c *Collector) Room() (Usage, error) { return c.shares.Room() }

// Lend is Shares.Lend of the table.
func (c *Collector) Lend() error { return c.shares.Lend() }

// Expect is Shares.Expect of the table.
func (c *Collector) Expect(reload time.Duration) { c.shares.Expect(reload) }

// Expired is how many rows were deleted since the start.
func (c *Collector) Expired() uint64 { return c.expired.Load() }

// Run collects until ctx ends.
func (c *Collector) Run(ctx context.Context) error { return c.expiry().Run(ctx) }

// Pass looks at every row once. hz is the datapath's ticks a second.
func (c *Collector) Pass(ctx context.Context, hz uint32) error { return c.expiry().Pass(ctx, hz) }

func (c *Collector) expiry() *Expiry[Key, Row] {
	var pending bpf.Pending // an answer may be known to a CPU alone, and makes the difference of hours
	return &Expiry[Key, Row]{
		Datapath: c.Datapath, Log: c.Log, Map: c.Datapath.Flows, Rows: "flows", Count: &c.expired, Shares: c.shares,
		Slot: func(_ *Key, r *Row) uint16 { return r.Slot }, Evidence: evidence, Demand: Demand,
		Before: func() (err error) {
			pending, err = bpf.ReadPending(c.Datapath)
			return err
		},
		Over: func(clock Clock, k *Key, r *Row) bool {
			pending.Add(k, r)
			return clock.Expired(k, r)
		},
		Ended: func(clock Clock, k *Key, r *Row) {
			if c.Ended != nil && stateOf(r) != Closing { // whose end a packet has told
				c.Ended(ended(clock, k, r))
			}
		},
	}
}

// ended is the event of a flow that was not seen for too long.
func ended(clock Clock, k *Key, r *Row) *event.Raw {
	from := origin(r)
	e := &event.Raw{
		TimeNs: uint64(clock.Since), Type: uint8(bpf.DatapathEventTypeEVENT_FLOW_END), Hook: event.Expired,
		Src: k.Addr[from], Dst: k.Addr[1-from], Sport: k.Port[from], Dport: k.Port[1-from], Proto: k.Proto,
		Slot:     r.Slot,
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
