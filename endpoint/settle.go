package endpoint

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"myelin/internal/table"
)

const (
	// quiet is how long after the newest pod lasting links are made: pods come in
	// bursts.
	quiet = time.Second
	// overdue is how long a pod waits for that at most. Filters forward as well,
	// so there is no hurry.
	overdue = time.Minute
)

// settler asks for lasting links where programs hang by filters. Each link
// keeps everybody else from changing devices for as long as a grace period of
// RCU takes, so it asks for one at a time, and for none while pods come or go.
type settler struct {
	db    *statedb.DB
	table statedb.RWTable[*Endpoint]
	now   func() time.Time
}

func (s *settler) run(ctx context.Context, _ cell.Health) error {
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		rows, changed := s.table.AllWatch(s.db.ReadTxn())
		w.Add(changed)
		next, wait := due(rows, s.now())
		if next != nil && wait <= 0 {
			if err := s.refresh(next.ID); err != nil {
				return err
			}
		}
		if wait > 0 {
			w.After(wait)
		}
		return nil
	})
}

// due returns the endpoint whose turn it is, and how long to wait for it; nil
// if there is none, or none before the table changes. An endpoint in error is
// left to the reconciler, which retries it.
func due(rows iter.Seq2[*Endpoint, statedb.Revision], now time.Time) (next *Endpoint, wait time.Duration) {
	for e := range rows {
		switch {
		case e.Status.Kind == reconciler.StatusKindError:
			continue
		case e.State != StateReady || e.Status.IsPendingOrRefreshing():
			return nil, 0
		case e.Interim && (next == nil || e.CreatedAt.Before(next.CreatedAt)):
			next = e
		}
		wait = max(wait, quiet-now.Sub(e.CreatedAt))
	}
	if next == nil || now.Sub(next.CreatedAt) >= overdue {
		return next, 0
	}
	return next, min(wait, quiet)
}

// refresh has the reconciler write the row again. It stays done for callers that
// wait for it.
func (s *settler) refresh(id uint16) error {
	txn := s.db.WriteTxn(s.table)
	defer txn.Abort()
	e, _, found := s.table.Get(txn, ByID(id))
	if !found || e.State != StateReady || e.Status.Kind != reconciler.StatusKindDone {
		return nil // what has changed it makes the table change
	}
	e = e.Clone()
	e.Status = reconciler.StatusRefreshing()
	if _, _, err := s.table.Insert(txn, e); err != nil {
		return fmt.Errorf("ask for the links of endpoint %d: %w", id, err)
	}
	txn.Commit()
	return nil
}
