package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// batch is how many rows one system call reads: enough that the calls don't
// count, and 300 kB of the largest rows.
const batch = 1024

// Each calls fn for the rows of a map until it returns false. The pointers are
// valid during the call only. Rows that come or go meanwhile may be missed, and
// one that is deleted by fn itself may show again. Kernels or maps without
// batches (5.6 has them for hashes) are read row by row.
func Each[K, V any](m *ebpf.Map, fn func(*K, *V) bool) error {
	size := int(min(batch, m.MaxEntries()))
	keys, values := make([]K, size), make([]V, size)
	var cursor ebpf.MapBatchCursor
	for began := false; ; began = true {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		last := errors.Is(err, ebpf.ErrKeyNotExist)
		switch {
		case err == nil || last:
		case errors.Is(err, unix.ENOSPC): // a bucket that is larger than the batch
			keys, values = make([]K, 2*len(keys)), make([]V, 2*len(values))
			continue
		case !began && (errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL)):
			return eachSlowly(m, fn)
		default:
			return fmt.Errorf("read map: %w", err)
		}
		for i := range n {
			if !fn(&keys[i], &values[i]) {
				return nil
			}
		}
		if last {
			return nil
		}
	}
}

func eachSlowly[K, V any](m *ebpf.Map, fn func(*K, *V) bool) error {
	var (
		key   K
		value V
	)
	rows := m.Iterate()
	for rows.Next(&key, &value) {
		if !fn(&key, &value) {
			return nil
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read map: %w", err)
	}
	return nil
}

// eachRow calls fn for the rows of an array per CPU, each with the values of all CPUs, until it returns false. The
// values are valid during the call only. Kernels without batches for such arrays (5.13 has them) are read row by row.
func eachRow[V any](m *ebpf.Map, fn func(index uint32, cpus []V) bool) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count the CPUs: %w", err)
	}
	size := int(min(max(batch/uint32(cpus), 1), m.MaxEntries()))
	keys, values := make([]uint32, size), make([]V, size*cpus)
	var cursor ebpf.MapBatchCursor
	for began := false; ; began = true {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		last := errors.Is(err, ebpf.ErrKeyNotExist)
		switch {
		case err == nil || last:
		case !began && (errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL)):
			return eachRowSlowly(m, fn)
		default:
			return fmt.Errorf("read map: %w", err)
		}
		for i := range n {
			if !fn(keys[i], values[i*cpus:(i+1)*cpus]) {
				return nil
			}
		}
		if last {
			return nil
		}
	}
}

func eachRowSlowly[V any](m *ebpf.Map, fn func(index uint32, cpus []V) bool) error {
	var cpus []V
	for i := range m.MaxEntries() {
		if err := m.Lookup(i, &cpus); err != nil {
			return fmt.Errorf("read row %d of %s: %w", i, m, err)
		}
		if !fn(i, cpus) {
			return nil
		}
	}
	return nil
}
