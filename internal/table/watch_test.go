package table

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/statedb"
)

// TestLoop: a round runs at the start, when a channel closes, and not before
// the pause is over; it ends with ctx, or with the error of a round.
func TestLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pause = time.Minute
		ctx, cancel := context.WithCancel(t.Context())
		changed := make(chan struct{})
		start, rounds := time.Now(), []time.Duration{}
		ended := make(chan error, 1)
		go func() {
			ended <- Loop(ctx, pause, func(w *Watch) error {
				rounds = append(rounds, time.Since(start))
				w.Add(changed, nil)
				return nil
			})
		}()
		synctest.Wait()
		if len(rounds) != 1 {
			t.Fatalf("%d rounds before a change", len(rounds))
		}
		time.Sleep(time.Second)
		old := changed
		changed = make(chan struct{})
		close(old)
		time.Sleep(2 * pause)
		synctest.Wait()
		if len(rounds) != 2 || rounds[1] != time.Second+pause {
			t.Errorf("rounds at %v", rounds)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the end of ctx is error %v", err)
		}
		begin, runs := time.Now(), 0
		wrong := errors.New("wrong")
		err := Loop(t.Context(), 0, func(w *Watch) error {
			if runs++; runs == 3 {
				return wrong
			}
			w.Add(changed)
			w.After(time.Hour)
			return nil
		})
		if after := time.Since(begin); !errors.Is(err, wrong) || after != 2*time.Hour {
			t.Errorf("two rounds by time alone: %v after %v", err, after)
		}
		if err := Loop(t.Context(), 0, func(*Watch) error { return wrong }); !errors.Is(err, wrong) {
			t.Errorf("a round fails: %v", err)
		}
	})
}

// TestWaitInitialized: all tables count, and the wait ends with ctx.
func TestWaitInitialized(t *testing.T) {
	db := statedb.New()
	var done []func(statedb.WriteTxn)
	var tables []statedb.TableMeta
	for _, name := range []string{"lamps", "bulbs"} {
		lamps, err := statedb.NewTable(db, name, byName())
		if err != nil {
			t.Fatal(err)
		}
		txn := db.WriteTxn(lamps)
		done = append(done, lamps.RegisterInitializer(txn, "test"))
		txn.Commit()
		tables = append(tables, lamps)
	}
	stopped, stop := context.WithCancelCause(t.Context())
	why := errors.New("stopped")
	for i, finish := range done {
		short, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, why)
		if err := WaitInitialized(short, db, tables...); !errors.Is(err, why) {
			t.Errorf("%d of 2 are initialized: %v", i, err)
		}
		cancel()
		txn := db.WriteTxn(tables[i])
		finish(txn)
		txn.Commit()
	}
	if err := WaitInitialized(t.Context(), db, tables...); err != nil {
		t.Error(err)
	}
	stop(why)
	var w Watch
	if err := w.Wait(stopped); !errors.Is(err, why) {
		t.Errorf("without channels: %v", err)
	}
}
