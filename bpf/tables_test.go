package bpf

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"myelin/test/packet"
)

// TestPackets has a world for all tables with the same settings.
func TestPackets(t *testing.T) {
	for _, group := range grouped(tables()) {
		shared := &scope{}
		var w *world
		for _, table := range group {
			t.Run(table.name, func(t *testing.T) {
				if w == nil {
					w = group.newWorld(shared.of(t))
				}
				table.run(t, w)
			})
		}
		shared.end()
	}
}

func (t table) run(tt *testing.T, w *world) {
	for i, r := range t.rows {
		if testing.Short() && r.only == 0 { // a slow machine has each row for one family, in turn
			r.only = []packet.Family{packet.IPv4, packet.IPv6}[i%2]
		}
		tt.Run(r.name, func(t *testing.T) { w.runBoth(t, r) })
	}
}

// group are tables that share a world.
type group []table

// grouped puts tables with the same settings together: the verifier takes its time for each world, above all in a VM.
func grouped(list []table) (groups []group) {
	at := map[Settings]int{}
	for _, t := range list {
		i, found := at[t.settings]
		switch {
		case t.tweak != nil:
			groups = append(groups, group{t})
		case found:
			groups[i] = append(groups[i], t)
		default:
			at[t.settings] = len(groups)
			groups = append(groups, group{t})
		}
	}
	return groups
}

func (g group) newWorld(t testing.TB) *world {
	return newWorld(t, g[0].settings, func(spec *ebpf.CollectionSpec) {
		var names []string
		for _, t := range g {
			names = append(names, t.programs()...)
		}
		onlyPrograms(names...)(spec)
		if g[0].tweak != nil {
			g[0].tweak(spec)
		}
	})
}

// scope is a test whose cleanups wait for end: what it makes outlives it.
type scope struct {
	testing.TB
	cleanups []func()
}

func (s *scope) of(t testing.TB) *scope { s.TB = t; return s }

func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scope) end() {
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}
