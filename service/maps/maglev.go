package maps

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/service"
	"myelin/service/maglev"
)

// maglevTable returns the Maglev table of a frontend and its number, so that a flow gets the same backend on every
// node. Frontends of a Service with the same backends share a table. Tables are never changed: a frontend whose
// backends change gets another one. Internal sets have no table, because their clients are on one node each, unless the
// set equals the external one. Nor have sets of one backend.
func (k *Kernel) maglevTable(
	txn statedb.ReadTxn, old *bpf.DatapathFrontend, serviceID uint32, refs []service.BackendRef,
) (set uint32, slots []uint32, err error) {
	if len(refs) < 2 {
		return 0, nil, nil
	}
	list := make([]maglev.Backend, len(refs))
	for i, r := range refs {
		b, _, ok := k.tables.Backends.Get(txn, service.BackendByID(r.ID))
		if !ok {
			return 0, nil, fmt.Errorf("backend %d is not in the table", r.ID)
		}
		list[i] = maglev.Backend{L4Addr: b.L4(), ID: r.ID, Weight: r.Weight}
	}
	if slots = maglev.Table(k.maglev.Seed, k.maglev.SizeFor(len(refs)), list); len(slots) == 0 {
		return 0, nil, nil
	}
	if set, err = k.findTable(old.Set[external].Id, serviceID, slots); err == nil && set == 0 {
		set, err = k.newSet(tableFlag)
	}
	return set, slots, err
}

// findTable returns the number of the Service's table that has these slots, 0 if there is none. It tries last first.
// Tables of other ports mostly differ in the first row.
func (k *Kernel) findTable(last, serviceID uint32, slots []uint32) (uint32, error) {
	same := func(set uint32, n int) (bool, error) {
		got, err := k.read(bpf.DatapathBackendSet{Id: set, Count: uint32(n)})
		return err == nil && slices.Equal(got, slots[:n]), err
	}
	sets := k.tally.tables[serviceID]
	order := slices.Sorted(maps.Keys(sets))
	if sets[last] > 0 {
		order = append([]uint32{last}, order...)
	}
	for _, set := range order {
		ok, err := same(set, min(len(slots), tableRowSize))
		if ok {
			ok, err = same(set, len(slots))
		}
		if ok || err != nil {
			return set, err
		}
	}
	return 0, nil
}
