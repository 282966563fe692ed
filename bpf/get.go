package bpf

import (
	"errors"

	"github.com/cilium/ebpf"
)

// Get reads a row into value, and reports whether there is one.
func Get[K any](m *ebpf.Map, key K, value any) (bool, error) {
	err := m.Lookup(key, value)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return err == nil, err
}

// DeleteIf deletes a row if over is true of what it has then, and reports whether it did. It returns it; over
// may complete it. A row that goes on is put back as it was, unless packets have begun another one. Kernels before 5.14
// can't look up and delete at once: there, a row that begins in between is deleted.
func DeleteIf[K, V any](m *ebpf.Map, key *K, over func(*V) bool) (row V, deleted bool, err error) {
	err = m.LookupAndDelete(key, &row)
	taken := err == nil
	if errors.Is(err, ebpf.ErrNotSupported) {
		err = m.Lookup(key, &row)
	}
	before := row
	switch {
	case err != nil:
	case over(&row):
		if !taken {
			err = m.Delete(key)
		}
		deleted = err == nil
	case taken:
		err = m.Update(key, &before, ebpf.UpdateNoExist)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) || errors.Is(err, ebpf.ErrKeyExist) {
		err = nil
	}
	return row, deleted, err
}

// End is one end of a flow, as the rows of the datapath have it.
type End struct {
	Addr DatapathAddr
	Port uint16 // network byte order
}

// FindFlow reads the row of the flow between two ends, and reports which side
// of its key a is; -1 if there is no row. The smaller address comes first in a
// key, in the machine's order of bytes: both ways are tried instead of knowing
// that here.
func FindFlow(flows *ebpf.Map, a, b End, proto uint8, r *DatapathFlow) (side int, err error) {
	for side := range 2 {
		k := DatapathFlowKey{Proto: proto}
		k.Addr[side], k.Port[side] = a.Addr, a.Port
		k.Addr[1-side], k.Port[1-side] = b.Addr, b.Port
		if found, err := Get(flows, &k, r); found || err != nil {
			return side, err
		}
	}
	return -1, nil
}
