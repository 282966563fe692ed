package bpf

import (
	"encoding/binary"
	"net/netip"
)

// FlowKey is the key of the conntrack entry of packets between two ends: flow_key_of of the datapath. side is the
// index of src in it.
func FlowKey(src, dst netip.AddrPort, proto uint8) (key DatapathFlowKey, side int) {
	key.Proto = proto
	ends := [2]netip.AddrPort{src, dst}
	if flowSwaps(src, dst) {
		ends, side = [2]netip.AddrPort{dst, src}, 1
	}
	for i, e := range ends {
		key.Addr[i], key.Port[i] = Addr(e.Addr()), Port(e.Port())
	}
	return key, side
}

// flowSwaps reports whether dst comes first in a key.
func flowSwaps(src, dst netip.AddrPort) bool {
	a, b := src.Addr().As16(), dst.Addr().As16()
	for i := 0; i < len(a); i += 8 { // as the datapath loads addresses
		x, y := binary.LittleEndian.Uint64(a[i:]), binary.LittleEndian.Uint64(b[i:])
		if x != y {
			return x > y
		}
	}
	return src.Port() > dst.Port()
}
