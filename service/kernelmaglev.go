package service

import (
	"fmt"
	"slices"

	"github.com/cilium/statedb"
)

// maglevChoices are the places of the Maglev table of a set, last if that is
// it: the same flow then gets the same backend on every node. Sets for clients
// inside have none, for those are on one node each, unless they are the same as
// those outside; nor has a single backend, which every flow gets anyway.
func (k *Kernel) maglevChoices(txn statedb.ReadTxn, refs []BackendRef, last []uint32) ([]uint32, error) {
	if len(refs) == 1 {
		return choicesOf(refs, last), nil
	}
	list := make([]MaglevBackend, len(refs))
	for i, r := range refs {
		b, _, ok := k.tables.Backends.Get(txn, BackendByID(r.ID))
		if !ok {
			return nil, fmt.Errorf("backend %d is not in the table", r.ID)
		}
		list[i] = MaglevBackend{L4Addr: b.L4(), ID: r.ID, Weight: r.Weight}
	}
	places := MaglevTable(k.Maglev.Seed, k.Maglev.size(len(refs)), list)
	if slices.Equal(places, last) {
		return last, nil
	}
	return places, nil
}
