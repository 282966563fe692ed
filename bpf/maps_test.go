package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
)

// keptPaths are the rows of the table of paths, of all CPUs, that no epoch has made stale.
func keptPaths(t testing.TB, w *world) (rows []DatapathKeptPath) {
	t.Helper()
	epoch := func(slot uint16) (n uint32) {
		must(t, w.Epochs.Lookup(uint32(slot), &n))
		return n
	}
	must(t, KeptPaths(w.Paths, func(_ int, _ uint32, p *DatapathKeptPath) bool {
		sum := epoch(0)
		for _, slot := range []uint16{p.Path.SrcSlot, p.Path.DstSlot} {
			if slot != 0 {
				sum += epoch(slot)
			}
		}
		if p.Path.Epoch == sum {
			rows = append(rows, *p)
		}
		return true
	}))
	return rows
}

// rowsIn reads a whole map.
func rowsIn[K comparable, V any](t testing.TB, m *ebpf.Map) map[K]V {
	t.Helper()
	var (
		key   K
		value V
		rows  = map[K]V{}
	)
	all := m.Iterate()
	for all.Next(&key, &value) {
		rows[key] = value
	}
	must(t, all.Err())
	return rows
}
