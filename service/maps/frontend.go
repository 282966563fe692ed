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

// frontendOps are the operations of the reconciler of frontends.
type frontendOps struct{ *Kernel }

// Update implements reconciler.Operations.
func (o *frontendOps) Update(_ context.Context, txn statedb.ReadTxn, _ statedb.Revision, f *service.Frontend) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	key, row := frontendKey(f.L4()), frontendRow(f)
	has, err := o.ensureAddress(key.Addr, row.Flags)
	if err == nil {
		// Also if the map of source ranges is full: clients in the ranges that fit are served.
		err = errors.Join(o.writeRanges(f, &row), o.writeFrontend(txn, f, key, row), o.updateServiceRows(txn, f))
	}
	if err != nil {
		err = errors.Join(err, o.restrict(key, &row))
	}
	if err = errors.Join(err, o.syncAddress(key.Addr, has), o.deleteUnusedRanges(f.ServiceID)); err != nil {
		return fmt.Errorf("write frontend %s of %s: %w", f.L4(), f.Service, err)
	}
	return nil
}

// Delete implements reconciler.Operations. If another frontend has the address by now, its Update writes the row.
func (o *frontendOps) Delete(_ context.Context, txn statedb.ReadTxn, _ statedb.Revision, f *service.Frontend) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, _, again := o.tables.Frontends.Get(txn, service.FrontendByAddress(f.L4())); again {
		return nil
	}
	key := frontendKey(f.L4())
	has, err := o.ensureAddress(key.Addr, 0)
	if err != nil {
		return err
	}
	delete(o.serviceOf, key)
	return errors.Join(
		o.deleteFrontend(key), o.writeServiceRows(txn, frontendService{f.Service, f.ServiceID}),
		o.syncAddress(key.Addr, has), o.deleteUnusedRanges(f.ServiceID))
}

// Prune implements reconciler.Operations. It deletes frontends without a row, sets and rows of sets that no frontend
// uses, and affinities to backends that are in no set.
func (o *frontendOps) Prune(
	_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*service.Frontend, statedb.Revision],
) error {
	wanted := map[bpf.DatapathFrontendKey]bool{}
	members, services := map[uint32]map[uint32]bool{}, map[uint32]bool{}
	for f := range rows {
		services[f.ServiceID] = true
		wanted[frontendKey(f.L4())] = true
		if f.Affinity == 0 {
			continue
		}
		if members[f.ServiceID] == nil {
			members[f.ServiceID] = map[uint32]bool{}
		}
		for _, refs := range [][]service.BackendRef{f.External, f.Internal} {
			for _, r := range refs {
				members[f.ServiceID][r.ID] = true
			}
		}
	}
	stale := func(serviceID, backend uint32) bool { return !members[serviceID][backend] }
	return errors.Join(o.pruneFrontends(wanted), o.pruneServiceRows(services), o.deleteAffinities(stale))
}

func (k *Kernel) pruneFrontends(wanted map[bpf.DatapathFrontendKey]bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var stale []bpf.DatapathFrontendKey
	err := bpf.Each(k.datapath.Frontends, func(key *bpf.DatapathFrontendKey, _ *bpf.DatapathFrontend) bool {
		if !wanted[*key] && !isAddress(key) {
			stale = append(stale, *key)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("read frontends: %w", err)
	}
	var errs []error
	for _, key := range stale {
		errs = append(errs, k.deleteFrontend(key))
	}
	surplus, err := k.scan()
	errs = append(errs, err, k.syncAddresses(), k.deleteAllUnusedRanges())
	for _, key := range surplus {
		m, _, _ := k.rowOf(key.Set)
		if err := deleteRow(k, m, key); err != nil {
			errs = append(errs, fmt.Errorf("delete row %d of set %d: %w", key.Row, key.Set, err))
		}
	}
	return errors.Join(errs...)
}

// scan reads the numbers of sets, how many backend slots name each backend, what frontends require, and the source
// ranges. It returns rows of sets that no frontend uses.
func (k *Kernel) scan() (surplus []bpf.DatapathBackendSlotsKey, err error) {
	counts := map[uint32]uint32{}
	found := newTally(k.tally.nodePorts)
	err = bpf.Each(k.datapath.Frontends, func(key *bpf.DatapathFrontendKey, f *bpf.DatapathFrontend) bool {
		if isAddress(key) {
			return true
		}
		found.count(key, f, 1)
		for _, set := range f.Set {
			counts[set.Id] = set.Count
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("read frontends: %w", err)
	}
	refs, last := map[uint32]uint32{}, uint32(0)
	row := func(key *bpf.DatapathBackendSlotsKey, slots []uint32) bool {
		last = max(last, key.Set&^tableFlag)
		first := uint64(key.Row) * uint64(len(slots))
		if first >= uint64(counts[key.Set]) {
			surplus = append(surplus, *key)
			return true
		}
		for _, id := range slots[:min(uint64(len(slots)), uint64(counts[key.Set])-first)] {
			refs[id]++
		}
		return true
	}
	err = bpf.Each(k.datapath.BackendSlots,
		func(key *bpf.DatapathBackendSlotsKey, r *bpf.DatapathBackendSlotsRow) bool {
			return row(key, r.Backend[:])
		})
	if err == nil {
		err = bpf.Each(k.datapath.MaglevTables, func(key *bpf.DatapathBackendSlotsKey, r *bpf.DatapathMaglevRow) bool {
			return row(key, r.Backend[:])
		})
	}
	if err != nil {
		return nil, fmt.Errorf("read backend slots: %w", err)
	}
	ranges, err := k.readRanges()
	if err != nil {
		return nil, err
	}
	k.ranges = ranges
	k.refs = refs
	k.tally = found
	k.updateLoadCounting()
	k.nextSet = max(k.nextSet, last+1)
	return surplus, nil
}

// writeFrontend writes a frontend and its sets. Packets never find an incomplete state: backends are written before the
// backend slots that name them, slots before the frontend that counts them, and they are deleted in the opposite order.
func (k *Kernel) writeFrontend(
	txn statedb.ReadTxn, f *service.Frontend, key bpf.DatapathFrontendKey, row bpf.DatapathFrontend,
) error {
	var old bpf.DatapathFrontend
	had, err := bpf.Get(k.datapath.Frontends, key, &old)
	if err != nil {
		return err
	}
	var lists [2][]service.BackendRef
	if f.Scopes&service.External != 0 {
		lists[external] = f.External
	}
	if f.Scopes&service.Internal != 0 {
		lists[internal] = f.Internal
	}
	ids, changes, err := k.plan(txn, &old, &row, lists)
	if err != nil {
		return err
	}
	for scope, id := range ids {
		row.Set[scope] = bpf.DatapathBackendSet{Id: id, Count: uint32(len(changes.of(id).next))}
	}
	if err := k.prepare(txn, changes); err != nil {
		return err
	}
	if !had || row != old {
		if err := putRow(k, k.datapath.Frontends, key, row); err != nil {
			return errors.Join(err, k.rollBack(changes))
		}
		k.tally.count(&key, &old, -1)
		k.tally.count(&key, &row, 1)
		k.updateLoadCounting()
	}
	k.noteRemovals(&old, &row, changes)
	return errors.Join(k.cleanUp(changes), k.deleteUnusedRanges(old.Service))
}

// plan returns the numbers of the sets that a frontend is to have, and the changes that this takes.
func (k *Kernel) plan(
	txn statedb.ReadTxn, old, row *bpf.DatapathFrontend, lists [2][]service.BackendRef,
) (ids [2]uint32, all changes, err error) {
	var table uint32
	var slots []uint32
	if row.Flags&maglevFlag != 0 {
		if table, slots, err = k.maglevTable(txn, old, row.Service, lists[external]); err != nil {
			return ids, nil, err
		}
	}
	if ids, err = k.setIDs(old, row.Service, table, lists); err != nil {
		return ids, nil, err
	}
	all, err = k.changes(old, row.Service, ids, func(scope int, last []uint32) []uint32 {
		if isTable(ids[scope]) {
			return slots
		}
		return slotsOf(lists[scope], last)
	})
	return ids, all, err
}

// deleteFrontend deletes a frontend, then its sets.
func (k *Kernel) deleteFrontend(key bpf.DatapathFrontendKey) error {
	var old bpf.DatapathFrontend
	had, err := bpf.Get(k.datapath.Frontends, key, &old)
	if err == nil && had {
		err = k.clearFrontend(key, &old)
	}
	if err != nil {
		return fmt.Errorf("delete frontend %s: %w", frontendL4(key), err)
	}
	return nil
}

// clearFrontend deletes the row of a frontend, and then its sets.
func (k *Kernel) clearFrontend(key bpf.DatapathFrontendKey, old *bpf.DatapathFrontend) error {
	changes, err := k.changes(old, 0, [2]uint32{}, nil)
	if err != nil {
		return err
	}
	if err := deleteRow(k, k.datapath.Frontends, key); err != nil {
		return err
	}
	k.tally.count(&key, old, -1)
	k.updateLoadCounting()
	return errors.Join(k.cleanUp(changes), k.deleteUnusedRanges(old.Service))
}
