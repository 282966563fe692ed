package table

import (
	"context"
	"time"

	"github.com/cilium/statedb"
)

// Watch collects the channels that a loop waits on. The zero value is ready to
// use.
type Watch struct {
	channels []<-chan struct{}
	timers   []*time.Timer
}

// Add adds channels; nil ones, which never close, are left out.
func (w *Watch) Add(channels ...<-chan struct{}) {
	for _, c := range channels {
		if c != nil {
			w.channels = append(w.channels, c)
		}
	}
}

// After ends the wait after d at the latest.
func (w *Watch) After(d time.Duration) {
	over := make(chan struct{})
	w.channels = append(w.channels, over)
	w.timers = append(w.timers, time.AfterFunc(d, func() { close(over) }))
}

// Initialized adds the channel of the first table that is not initialized, and
// reports whether all are.
func (w *Watch) Initialized(txn statedb.ReadTxn, tables ...statedb.TableMeta) bool {
	for _, t := range tables {
		if ok, initialized := t.Initialized(txn); !ok {
			w.Add(initialized)
			return false
		}
	}
	return true
}

// Wait returns when one of the channels is closed, at most once. The error is
// the cause of ctx.
func (w *Watch) Wait(ctx context.Context) error {
	defer func() {
		for _, t := range w.timers {
			t.Stop()
		}
	}()
	set := statedb.NewWatchSet()
	set.Add(w.channels...)
	if _, err := set.Wait(ctx, 0); err != nil {
		return context.Cause(ctx)
	}
	return nil
}

// Loop runs round, and runs it again when one of the channels that it adds to
// its Watch is closed, until ctx ends, which is no error, or round returns one.
// pause is the least time from the end of a round to the next one.
func Loop(ctx context.Context, pause time.Duration, round func(*Watch) error) error {
	for {
		var w Watch
		if err := round(&w); err != nil {
			return err
		}
		if w.Wait(ctx) != nil || !sleep(ctx, pause) {
			return nil
		}
	}
}

// sleep reports whether ctx lasted as long as d.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// WaitInitialized waits until all tables are initialized. The error is the
// cause of ctx.
func WaitInitialized(ctx context.Context, db *statedb.DB, tables ...statedb.TableMeta) error {
	for {
		var w Watch
		if w.Initialized(db.ReadTxn(), tables...) {
			return nil
		}
		if err := w.Wait(ctx); err != nil {
			return err
		}
	}
}

// RetryAfter is the delay after a number of failures in a row, which grows up to 30 s.
func RetryAfter(failures int) time.Duration {
	return min(100*time.Millisecond<<min(failures, 9), 30*time.Second)
}
