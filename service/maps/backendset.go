package maps

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/statedb"

	"myelin/bpf"
)

const (
	// rowSize is how many backend slots are in a row of a set, tableRowSize in a row of a Maglev table.
	rowSize      = len(bpf.DatapathBackendSlotsRow{}.Backend)
	tableRowSize = len(bpf.DatapathMaglevRow{}.Backend)
	// tableFlag is set in the number of a set that is a Maglev table.
	tableFlag = uint32(bpf.DatapathBackendSetFlagSET_TABLE)
)

func isTable(set uint32) bool { return set&tableFlag != 0 }

// rowsOf is how many rows n backend slots of a set take.
func rowsOf(set uint32, n int) int {
	size := rowSize
	if isTable(set) {
		size = tableRowSize
	}
	return (n + size - 1) / size
}

// rowOf returns the map of a set, an empty row of it, and the backend slots in that row.
func (k *Kernel) rowOf(set uint32) (m *ebpf.Map, row any, slots []uint32) {
	if isTable(set) {
		r := new(bpf.DatapathMaglevRow)
		return k.datapath.MaglevTables, r, r.Backend[:]
	}
	r := new(bpf.DatapathBackendSlotsRow)
	return k.datapath.BackendSlots, r, r.Backend[:]
}

// change is the change of one set: its backend slots before and after. A new set has none before, a deleted one has
// none after.
type change struct {
	set        uint32
	last, next []uint32
	// stays is set for a Maglev table that the kernel has and keeps, for this frontend or for others. There is nothing
	// to write.
	stays bool
}

// changes are those of one frontend: at most two for each scope.
type changes []change

func (c changes) of(set uint32) change {
	for _, one := range c {
		if one.set == set && set != 0 {
			return one
		}
	}
	return change{}
}

// written returns the changes that require writes.
func (c changes) written() changes {
	return slices.DeleteFunc(slices.Clone(c), func(one change) bool { return one.stays })
}

// changes compares the sets of a frontend with those that it is to have. next returns the backend slots of a scope,
// given those that the set has.
func (k *Kernel) changes(
	old *bpf.DatapathFrontend, serviceID uint32, ids [2]uint32, next func(scope int, last []uint32) []uint32,
) (changes, error) {
	var out changes
	for _, set := range old.Set {
		if set.Id == 0 || out.of(set.Id).set != 0 {
			continue
		}
		last, err := k.read(set)
		if err != nil {
			return nil, err
		}
		out = append(out, change{set: set.Id, last: last, stays: k.tally.tables[old.Service][set.Id] > 1})
	}
	for scope, id := range ids {
		at := slices.IndexFunc(out, func(c change) bool { return c.set == id })
		if id == 0 || at >= 0 && out[at].next != nil {
			continue
		}
		if at < 0 {
			at, out = len(out), append(out, change{set: id})
		}
		out[at].next = next(scope, out[at].last)
		out[at].stays = k.tally.tables[serviceID][id] > 0
	}
	return out, nil
}

// read returns the backend slots of a set in the kernel. It stops at a missing row, so that the rest is written again.
func (k *Kernel) read(set bpf.DatapathBackendSet) ([]uint32, error) {
	var out []uint32
	m, row, slots := k.rowOf(set.Id)
	for r := range rowsOf(set.Id, int(set.Count)) {
		key := bpf.DatapathBackendSlotsKey{Set: set.Id, Row: uint32(r)}
		ok, err := bpf.Get(m, key, row)
		if err != nil {
			return nil, fmt.Errorf("read row %d of set %d: %w", key.Row, key.Set, err)
		}
		if !ok {
			break
		}
		out = append(out, slots[:min(len(slots), int(set.Count)-len(out))]...)
	}
	return out, nil
}

// prepare writes everything that the new row of a frontend requires. If it fails, everything that the old row requires
// is still there.
func (k *Kernel) prepare(txn statedb.ReadTxn, all changes) error {
	all = all.written()
	for _, c := range all {
		for i, id := range c.next {
			if i < len(c.last) && c.last[i] == id || k.refs[id] > 0 {
				continue
			}
			if err := k.ensureBackend(txn, id); err != nil {
				return err
			}
		}
	}
	for _, c := range all {
		k.ref(c.next, c.last)
	}
	for _, c := range all {
		if err := k.writeSet(c); err != nil {
			return errors.Join(err, k.rollBack(all))
		}
	}
	return nil
}

// writeSet writes the rows that differ. Slots after the last one keep their contents, because the old count may still
// include them.
func (k *Kernel) writeSet(c change) error {
	m, row, slots := k.rowOf(c.set)
	was := make([]uint32, len(slots))
	for r := range rowsOf(c.set, len(c.next)) {
		first := r * len(slots)
		clear(was)
		if first < len(c.last) {
			copy(was, c.last[first:])
		}
		copy(slots, was)
		copy(slots, c.next[first:])
		if first < len(c.last) && slices.Equal(slots, was) {
			continue
		}
		key := bpf.DatapathBackendSlotsKey{Set: c.set, Row: uint32(r)}
		if err := putRow(k, m, key, row); err != nil {
			return fmt.Errorf("write row %d of set %d: %w", r, c.set, err)
		}
	}
	return nil
}

// cleanUp deletes what the new row does not require.
func (k *Kernel) cleanUp(all changes) error {
	var errs []error
	all = all.written()
	for _, c := range all {
		errs = append(errs, k.deleteRows(c.set, len(c.next), len(c.last)))
	}
	for _, c := range all {
		errs = append(errs, k.unref(c.last, c.next))
	}
	return errors.Join(errs...)
}

// deleteRows deletes the rows that a set of n backend slots has and one of keep slots does not have.
func (k *Kernel) deleteRows(set uint32, keep, n int) error {
	m, _, _ := k.rowOf(set)
	for r := rowsOf(set, keep); r < rowsOf(set, n); r++ {
		if err := deleteRow(k, m, bpf.DatapathBackendSlotsKey{Set: set, Row: uint32(r)}); err != nil {
			return fmt.Errorf("delete row %d of set %d: %w", r, set, err)
		}
	}
	return nil
}

// rollBack deletes rows that the old row does not count, and corrects the reference counts of sets of which only some
// rows were written.
func (k *Kernel) rollBack(all changes) error {
	var errs []error
	for _, c := range all.written() {
		errs = append(errs, k.deleteRows(c.set, len(c.last), len(c.next)))
		now, err := k.read(bpf.DatapathBackendSet{Id: c.set, Count: uint32(len(c.last))})
		if err != nil {
			errs = append(errs, err)
			now = c.last
		}
		k.ref(now, c.last)
		errs = append(errs, k.unref(c.last, now), k.unref(c.next, c.last))
	}
	return errors.Join(errs...)
}

// ref counts references to the backends in slots that differ from others.
func (k *Kernel) ref(slots, others []uint32) {
	for i, id := range slots {
		if i >= len(others) || others[i] != id {
			k.refs[id]++
		}
	}
}

// unref is the opposite of ref. It deletes backends that are in no set any more and have no row in the table.
func (k *Kernel) unref(slots, others []uint32) error {
	var errs []error
	for i, id := range slots {
		if i < len(others) && others[i] == id {
			continue
		}
		if k.refs[id] > 1 {
			k.refs[id]--
			continue
		}
		delete(k.refs, id)
		errs = append(errs, k.deleteBackend(id))
	}
	return errors.Join(errs...)
}
