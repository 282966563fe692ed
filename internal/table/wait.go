package table

import (
	"context"
	"fmt"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
)

// WaitAll waits until every row of t is reconciled. A row whose status is an
// error is waited for too, because the reconciler retries it; when ctx ends
// first, that error is part of the one returned, with the cause of ctx.
func WaitAll[Row any](ctx context.Context, db *statedb.DB, t statedb.Table[*Row],
	status func(*Row) *reconciler.Status,
) error {
	for {
		rows, changed := t.AllWatch(db.ReadTxn())
		pending, problem := 0, ""
		for row := range rows {
			s := *status(row)
			if s.Kind == reconciler.StatusKindDone || s.Kind == reconciler.StatusKindRefreshing {
				continue
			}
			pending++
			if text := s.GetError(); text != "" {
				problem = ": " + text
			}
		}
		if pending == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %d row(s) of %s%s: %w", pending, t.Name(), problem, context.Cause(ctx))
		}
	}
}
