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
