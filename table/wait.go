package table

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
)

// ErrNoRow says that no row matched the query of WaitDone.
var ErrNoRow = errors.New("no such row")

// WaitDone waits until every row of t that matches query is reconciled. A row
// whose status is an error is waited for too, because the reconciler retries
// it; when ctx ends first, that error is part of the one returned, with the
// cause of ctx. Returns ErrNoRow as soon as no row matches: a row has to be
// inserted before it is waited for.
func WaitDone[Row any](ctx context.Context, db *statedb.DB, t statedb.Table[*Row], query statedb.Query[*Row],
	status func(*Row) *reconciler.Status,
) error {
	return wait(ctx, db, t.Name(), status, true,
		func(txn statedb.ReadTxn) (iter.Seq2[*Row, statedb.Revision], <-chan struct{}) {
			return t.ListWatch(txn, query)
		})
}

// WaitAll waits like WaitDone, for every row of t; an empty table is done.
func WaitAll[Row any](ctx context.Context, db *statedb.DB, t statedb.Table[*Row],
	status func(*Row) *reconciler.Status,
) error {
	return wait(ctx, db, t.Name(), status, false, t.AllWatch)
}

func wait[Row any](ctx context.Context, db *statedb.DB, name string, status func(*Row) *reconciler.Status, some bool,
	list func(statedb.ReadTxn) (iter.Seq2[*Row, statedb.Revision], <-chan struct{}),
) error {
	for {
		rows, changed := list(db.ReadTxn())
		found, pending, problem := 0, 0, ""
		for row := range rows {
			found++
			s := *status(row)
			if s.Kind == reconciler.StatusKindDone || s.Kind == reconciler.StatusKindRefreshing {
				continue
			}
			pending++
			if text := s.GetError(); text != "" {
				problem = ": " + text
			}
		}
		switch {
		case found == 0 && some:
			return fmt.Errorf("wait for row of %s: %w", name, ErrNoRow)
		case pending == 0:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %d row(s) of %s%s: %w", pending, name, problem, context.Cause(ctx))
		}
	}
}
