package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
)

// freshPaths are the forwarding cache entries of all CPUs that no epoch has made stale.
func freshPaths(t testing.TB, w *world) (rows []DatapathCachedPath) {
	t.Helper()
	epoch := func(slot uint16) uint32 {
		n, err := EpochOf(w.Epochs, slot)
		must(t, err)
		return n
	}
	must(t, CachedPaths(w.Paths, func(_ int, _ uint32, p *DatapathCachedPath) bool {
		if p.Path.Epoch == epoch(0)+epoch(p.Path.SrcSlot)+epoch(p.Path.DstSlot) {
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
