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
	"myelin/internal/ticker"
)

// Bounds of the collection's work.
const (
	collectEvery = 10 * time.Second
	collectPause = 10    // times what a pass took, at least, between two of them
	collectRate  = 65536 // rows looked at a second, at most
	collectStep  = 1024  // rows between looks at the limit
	// collectRow bounds the pause by the rows of the pass: it may have taken long for want of a CPU.
	collectRow = 60 * time.Microsecond
)

// LookInterval is how often it is checked whether a table is filling up.
const LookInterval = 250 * time.Millisecond

// Expiry deletes the rows of a map of flows that are over: every ten seconds it
// looks at all of them, at no more than 65,536 a second.
type Expiry[K, V any] struct {
	Datapath *bpf.Datapath
	Log      *slog.Logger
	Map      *ebpf.Map
	// Rows is what they are called in errors.
	Rows string
	// Before is called before the rows are read; nil: nothing is to be done.
	Before func() error
	// Over reports whether the datapath takes a row for gone. It may complete it.
	Over func(Clock, *K, *V) bool
	// Ended is called for each row that was deleted; nil: not reported.
	Ended func(Clock, *K, *V)
	// Count is how many were.
	Count *atomic.Uint64
	// Shares keeps count of the entries that remain.
	Shares *Shares
	// Slot is the endpoint that an entry counts for, 0 for none.
	Slot func(*K, *V) uint16
	// Evidence is what an entry shows of its flow, which decides whether it makes room where the table is filling up,
	// and the clock tick of the last packet.
	Evidence func(*K, *V) (e Evidence, seen uint32)
	// Demand is how many entries the table must have room for because of one, as the function Demand.
	Demand func(Clock, *K, *V) int

	seen int // rows of the last pass
}

// Run collects until ctx ends.
func (e *Expiry[K, V]) Run(ctx context.Context) error {
	settings, err := e.Datapath.Settings()
	if err != nil {
		return err
	}
	if e.Map.MaxEntries() <= 1 { // no feature needs rows
		return nil
	}
	tick := ticker.New()
	for {
		began := time.Now()
		if err := e.Pass(ctx, settings.Hz); err != nil && ctx.Err() == nil {
			e.Log.Warn(e.Rows+" that are over stay for another while", "error", err)
		}
		pause := min(time.Since(began)*collectPause, time.Duration(e.seen)*collectRow)
		for soonest := began.Add(pause); ; {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.Next(LookInterval):
			}
			now := time.Now()
			due := e.Shares.due(now)
			if now.Sub(began) >= collectEvery || now.After(soonest) && due {
				break
			}
		}
	}
}

// Pass looks at every row once. hz is the datapath's ticks a second.
func (e *Expiry[K, V]) Pass(ctx context.Context, hz uint32) error {
	clock, err := ReadClock(hz)
	if err != nil {
		return fmt.Errorf("collect %s: %w", e.Rows, err)
	}
	if e.Before != nil {
		if err := e.Before(); err != nil {
			return fmt.Errorf("collect %s: %w", e.Rows, err)
		}
	}
	if err := e.Shares.begin(); err != nil {
		return fmt.Errorf("collect %s: %w", e.Rows, err)
	}
	limit := rate.NewLimiter(collectRate, collectStep)
	if u, err := e.Shares.Room(); err == nil && e.Shares.wanted(u) {
		limit.SetLimit(rate.Inf) // before others run out of room
	}
	e.seen = 0
	var failed error
	err = bpf.Each(e.Map, func(k *K, r *V) bool {
		switch {
		case e.Over(clock, k, r):
			failed = e.remove(clock, k)
		case e.evicts(clock, k, r):
			e.Shares.demand.evicted += e.Demand(clock, k, r)
			failed = e.remove(clock, k)
		default:
			e.Shares.add(e.Slot(k, r), e.Demand(clock, k, r))
		}
		if e.seen++; e.seen%collectStep == 0 && failed == nil {
			failed = limit.WaitN(ctx, collectStep)
		}
		return failed == nil
	})
	if err = errors.Join(err, failed); err == nil {
		err = e.Shares.end(clock)
	}
	if err != nil {
		return fmt.Errorf("collect %s: %w", e.Rows, err)
	}
	return nil
}

// evicts reports whether an entry goes that is not over.
func (e *Expiry[K, V]) evicts(clock Clock, k *K, r *V) bool {
	evidence, seen := e.Evidence(k, r)
	return evidence != Proven && clock.Idle(seen) > e.Shares.yieldAfter(e.Slot(k, r), evidence)
}

// remove looks once more, since a packet may have passed after the row was read, and puts the row back if it goes on.
// One that passes between that and the deletion begins a new row; a translated flow gets the same port, which follows
// from its addresses.
func (e *Expiry[K, V]) remove(clock Clock, k *K) error {
	r, deleted, err := bpf.DeleteIf(e.Map, k, func(r *V) bool { return e.Over(clock, k, r) || e.evicts(clock, k, r) })
	if err != nil || !deleted {
		return err
	}
	e.Count.Add(1)
	if e.Ended != nil {
		e.Ended(clock, k, &r)
	}
	return nil
}
