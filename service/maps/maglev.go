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

// maglevTable is the Maglev table of a frontend and its number: the same flow
// then gets the same backend on every node. Frontends of a Service that lead to
// the same backends have one together, which is written once and never changed:
// what changes is a frontend, that gets another one. Sets for clients inside have
// none, for those are on one node each, unless they are the same as those
// outside; nor has a single backend, which every flow gets anyway.
func (k *Kernel) maglevTable(txn statedb.ReadTxn, old *bpf.DatapathFrontend, serviceID uint32, refs []service.BackendRef) (set uint32, slots []uint32, err error) {
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

// findTable is the Service's table that has these slots, 0 if none has: last if
// that does. Tables of other ports mostly differ in the first row.
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
