package maps

import (
	"myelin/bpf"
	"myelin/service"
)

// tally counts what the frontends in the kernel require besides their sets.
type tally struct {
	nodePorts service.PortRange // that the datapath was loaded with

	scopes map[bpf.DatapathAddr][2]int // how many frontends an address has in each scope
	// others counts external frontends whose port is not a node port, by address. If the address is the node's own, the
	// datapath must look up every port.
	others     map[bpf.DatapathAddr]int
	restricted map[uint32]int // frontends with source ranges, by Service
	least      map[uint32]int // frontends that use least-conn, by Service
	// tables counts the frontends that use each Maglev table, by Service and set.
	tables map[uint32]map[uint32]int
}

func newTally(nodePorts service.PortRange) tally {
	return tally{
		nodePorts: nodePorts, scopes: map[bpf.DatapathAddr][2]int{}, others: map[bpf.DatapathAddr]int{},
		restricted: map[uint32]int{}, least: map[uint32]int{}, tables: map[uint32]map[uint32]int{},
	}
}

const (
	externalFlag = uint32(bpf.DatapathFrontendFlagFRONTEND_EXTERNAL)
	internalFlag = uint32(bpf.DatapathFrontendFlagFRONTEND_INTERNAL)
	maglevFlag   = uint32(bpf.DatapathFrontendFlagFRONTEND_MAGLEV)
	leastFlag    = uint32(bpf.DatapathFrontendFlagFRONTEND_LEAST)
	rangesFlag   = uint32(bpf.DatapathFrontendFlagFRONTEND_RANGES)
)

// count adds n frontends with such a row.
func (t *tally) count(key *bpf.DatapathFrontendKey, row *bpf.DatapathFrontend, n int) {
	scopes := t.scopes[key.Addr]
	if row.Flags&internalFlag != 0 {
		scopes[internal] += n
	}
	if row.Flags&externalFlag != 0 {
		scopes[external] += n
		if port := bpf.Port(key.Port); port < t.nodePorts.First || port > t.nodePorts.Last {
			addTo(t.others, key.Addr, n)
		}
	}
	t.scopes[key.Addr] = scopes
	if scopes == ([2]int{}) {
		delete(t.scopes, key.Addr)
	}
	if row.Flags&rangesFlag != 0 {
		addTo(t.restricted, row.Service, n)
	}
	if row.Flags&leastFlag != 0 {
		addTo(t.least, row.Service, n)
	}
	if set := row.Set[external].Id; isTable(set) {
		if t.tables[row.Service] == nil {
			t.tables[row.Service] = map[uint32]int{}
		}
		addTo(t.tables[row.Service], set, n)
		if len(t.tables[row.Service]) == 0 {
			delete(t.tables, row.Service)
		}
	}
}

// addTo adds to a count, and deletes it if it becomes 0.
func addTo[K comparable](counts map[K]int, key K, n int) {
	if counts[key] += n; counts[key] == 0 {
		delete(counts, key)
	}
}
