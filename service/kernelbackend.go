package service

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/cilium/statedb"

	"myelin/bpf"
)

// backendOps write backends.
type backendOps struct{ *Kernel }

// Update implements reconciler.Operations.
func (o *backendOps) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, b *Backend) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.writeBackend(b)
}

// Delete implements reconciler.Operations. A backend that a set still has stays
// until the last one lets it go.
func (o *backendOps) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, b *Backend) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dropBackend(b.ID)
}

// Prune implements reconciler.Operations: it deletes backends that no row and
// no set wants, and ends the flows of those that went before.
func (o *backendOps) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*Backend, statedb.Revision]) error {
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
	o.stray()
	var errs []error
	for _, id := range stale {
		errs = append(errs, o.dropBackend(id))
	}
	return errors.Join(errs...)
}

func (k *Kernel) writeBackend(b *Backend) error {
	row := backendRow(b)
	var old bpf.DatapathBackend
	had, err := bpf.Get(k.datapath.Backends, b.ID, &old)
	if err == nil && (!had || old != row) {
		err = put(k, k.datapath.Backends, b.ID, row)
	}
	if err != nil {
		return fmt.Errorf("write backend %d (%s): %w", b.ID, b.L4(), err)
	}
	return nil
}

// needBackend writes a backend that a frontend is about to name: its own
// reconciler may come later.
func (k *Kernel) needBackend(txn statedb.ReadTxn, id uint32) error {
	b, _, ok := k.tables.Backends.Get(txn, BackendByID(id))
	if !ok {
		return fmt.Errorf("backend %d is not in the table", id)
	}
	return k.writeBackend(b)
}

// dropBackend deletes a backend that is in no set and, as of now, has no row in
// the table.
func (k *Kernel) dropBackend(id uint32) error {
	if k.refs[id] > 0 {
		return nil
	}
	if _, _, wanted := k.tables.Backends.Get(k.db.ReadTxn(), BackendByID(id)); wanted {
		return nil
	}
	var old bpf.DatapathBackend
	_, err := bpf.Get(k.datapath.Backends, id, &old)
	if err == nil {
		err = drop(k, k.datapath.Backends, id)
	}
	if err != nil {
		return fmt.Errorf("delete backend %d: %w", id, err)
	}
	if old.Proto == uint8(UDP) {
		signal(k.gone)
	}
	k.stray()
	return nil
}
