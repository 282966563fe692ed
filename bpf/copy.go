package bpf

import (
	"errors"
	"reflect"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// copyRows copies the rows of a map to one with the same layout, and counts those that the other one does not take. A
// million rows take seconds: tables are copied while packets add to them.
func copyRows(from, to *ebpf.Map) (copied, lost int) {
	if t := from.Type(); t != ebpf.Hash && t != ebpf.LRUHash && t != ebpf.Array {
		return copyRowsSlowly(from, to)
	}
	size := int(min(batch, from.MaxEntries()))
	keys, values := rows(from.KeySize(), size), rows(from.ValueSize(), size)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := from.BatchLookup(&cursor, keys, values, nil)
		if errors.Is(err, unix.ENOSPC) { // a bucket that is larger than the batch
			size *= 2
			keys, values = rows(from.KeySize(), size), rows(from.ValueSize(), size)
			continue
		}
		last := errors.Is(err, ebpf.ErrKeyNotExist)
		if err != nil && !last { // a kernel without batches: 5.6 has them
			return copyRowsSlowly(from, to)
		}
		taken := putRows(to, keys, values, n)
		copied, lost = copied+taken, lost+n-taken
		if last {
			return copied, lost
		}
	}
}

// putRows writes the first n rows of a batch, and returns how many the map takes.
func putRows(to *ebpf.Map, keys, values any, n int) (taken int) {
	part := func(of any, first int) reflect.Value { return reflect.ValueOf(of).Slice(first, n) }
	for first := 0; first < n; {
		done, err := to.BatchUpdate(part(keys, first).Interface(), part(values, first).Interface(), nil)
		taken, first = taken+done, first+done
		if err != nil && first < n { // the map is full for this row, or has no batches
			if to.Put(part(keys, first).Index(0).Interface(), part(values, first).Index(0).Interface()) == nil {
				taken++
			}
			first++
		}
	}
	return taken
}

func copyRowsSlowly(from, to *ebpf.Map) (copied, lost int) {
	key, value := make([]byte, from.KeySize()), make([]byte, from.ValueSize())
	each := from.Iterate()
	for each.Next(&key, &value) {
		if to.Put(key, value) == nil {
			copied++
		} else {
			lost++
		}
	}
	return copied, lost
}
