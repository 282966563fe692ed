package maps

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/service"
)

// backendOps are the operations of the reconciler of backends.
type backendOps struct{ *Kernel }

// Update implements reconciler.Operations.
func (o *backendOps) Update(_ context.Context, txn statedb.ReadTxn, _ statedb.Revision, b *service.Backend) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.writeBackend(txn, b)
}

// Delete implements reconciler.Operations. A backend that is in a set is deleted when the last set releases it.
func (o *backendOps) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, b *service.Backend) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.deleteBackend(b.ID)
}

// Prune implements reconciler.Operations. It deletes backends that have no row and are in no set, and ends the flows of
// backends that were deleted before.
func (o *backendOps) Prune(
	_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*service.Backend, statedb.Revision],
) error {
	wanted := map[uint32]bool{}
	for b := range rows {
		wanted[b.ID] = true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var stale []uint32
	err := bpf.Each(o.datapath.Backends, func(id *uint32, _ *bpf.DatapathBackend) bool {
		if !wanted[*id] {
			stale = append(stale, *id)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("read backends: %w", err)
	}
	o.endFlowsOfGone()
	var errs []error
	for _, id := range stale {
		errs = append(errs, o.deleteBackend(id))
	}
	return errors.Join(errs...)
}

func (k *Kernel) writeBackend(txn statedb.ReadTxn, b *service.Backend) error {
	row := backendRow(b)
	var old bpf.DatapathBackend
	had, err := bpf.Get(k.datapath.Backends, b.ID, &old)
	row.SetCounters(old.Counters())
	if !had {
		row.SetCounters(k.countersFor(txn, b, 0))
	}
	if err == nil && (!had || old != row) {
		err = k.putBackend(b.ID, row)
	}
	if err != nil {
		return fmt.Errorf("write backend %d (%s): %w", b.ID, b.L4(), err)
	}
	return nil
}

// putBackend writes the row of a backend, and notes which counters it names.
func (k *Kernel) putBackend(id uint32, row bpf.DatapathBackend) error {
	err := putRow(k, k.datapath.Backends, id, row)
	if err == nil {
		k.noteCounters(id, row.Counters())
	}
	return err
}

// ensureBackend writes a backend that a frontend is about to name, because its own reconciler may run later.
func (k *Kernel) ensureBackend(txn statedb.ReadTxn, id uint32) error {
	b, _, ok := k.tables.Backends.Get(txn, service.BackendByID(id))
	if !ok {
		return fmt.Errorf("backend %d is not in the table", id)
	}
	return k.writeBackend(txn, b)
}

// deleteBackend deletes a backend, unless it is in a set or has a row in the table at this moment.
func (k *Kernel) deleteBackend(id uint32) error {
	if k.refs[id] > 0 {
		return nil
	}
	if _, _, wanted := k.tables.Backends.Get(k.db.ReadTxn(), service.BackendByID(id)); wanted {
		return nil
	}
	var old bpf.DatapathBackend
	_, err := bpf.Get(k.datapath.Backends, id, &old)
	if err == nil {
		err = deleteRow(k, k.datapath.Backends, id)
	}
	if err != nil {
		return fmt.Errorf("delete backend %d: %w", id, err)
	}
	delete(k.counters, id)
	if old.Proto == uint8(service.UDP) {
		signal(k.udpBackendGone)
	}
	k.endFlowsOfGone()
	return nil
}
