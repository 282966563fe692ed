package bpf

import "unsafe"

// hashOverhead is what the kernel needs for an entry of a hash map beside key and value, in bytes: its struct htab_elem
// and a bucket.
const hashOverhead = 64

// EntryBytes is what an entry of the maps that grow with traffic costs, in bytes of kernel memory: a flow, with nat
// (Settings.Services) also as one that is translated, and a decision of the forwarding cache.
func EntryBytes(nat bool) (flow, path int) {
	flow = hashOverhead + int(unsafe.Sizeof(DatapathFlowKey{})+unsafe.Sizeof(DatapathFlow{}))
	if nat {
		tuple := unsafe.Sizeof(DatapathNatTuple{})
		flow += 2*hashOverhead + int(3*tuple+unsafe.Sizeof(DatapathNatEntry{})+unsafe.Sizeof(DatapathNatReply{}))
	}
	return flow, int(unsafe.Sizeof(DatapathCachedPath{}))
}
