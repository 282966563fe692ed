package agent

import (
	"context"
	"fmt"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"myelin/endpoint"
	"myelin/internal/table"
	"myelin/node"
)

// settle waits until what was restored is in the kernel or has failed: all
// programs of the agent before are replaced then, so that an end of this one
// leaves no mixture, and half the way of a packet is not translated by other
// rows than the other half. What can't be done, like a pod that can't be
// served, keeps nothing else from starting.
func (ep *endpoints) settle(ctx context.Context) error {
	for _, wait := range []func() (failed int, err error){
		func() (int, error) { return tried(ctx, ep.DB, ep.table, endpoint.StatusOf) },
		func() (int, error) {
			return tried(ctx, ep.DB, ep.network.node.Wires, func(r *node.Wire) *reconciler.Status { return &r.Status })
		},
		func() (int, error) {
			return tried(ctx, ep.DB, ep.network.node.Addresses, func(r *node.Address) *reconciler.Status {
				return &r.Status
			})
		},
		func() (int, error) {
			return tried(ctx, ep.DB, ep.network.node.Prefixes, func(r *node.Prefix) *reconciler.Status {
				return &r.Status
			})
		},
	} {
		failed, err := wait()
		if err != nil {
			return err
		}
		if failed > 0 {
			ep.Log.Error("not all that was there is in the kernel; the status has the rows", "failed", failed)
		}
	}
	return nil
}

// tried waits until a table is filled and each of its rows is done or has failed. It returns how many have failed.
func tried[Row any](ctx context.Context, db *statedb.DB, t statedb.Table[*Row],
	status func(*Row) *reconciler.Status) (failed int, err error) {
	for {
		txn := db.ReadTxn()
		rows, changed := t.AllWatch(txn)
		var w table.Watch
		w.Add(changed)
		filled := w.Initialized(txn, t)
		pending := 0
		failed = 0
		for row := range rows {
			switch status(row).Kind {
			case reconciler.StatusKindError:
				failed++
			case reconciler.StatusKindPending:
				pending++
			}
		}
		if filled && pending == 0 {
			return failed, nil
		}
		if err := w.Wait(ctx); err != nil {
			return failed, fmt.Errorf("wait for %d rows of %s: %w", pending, t.Name(), err)
		}
	}
}
