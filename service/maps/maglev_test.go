package maps

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/cluster/clustertest"
	"myelin/service"
	"myelin/service/maglev"
	"myelin/service/servicetest"
)

// Frontends of a Service that lead to the same backends have one table together,
// which all nodes have; what changes is written beside, and the old one goes with
// its last frontend.
func TestMaglevRows(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		r := newRig(t, service.Config{}, map[string]uint32{"frontends": 64, "backend_slots": 512, "backends": 64,
			"affinities": 64})
		r.maglev.Size = 2039
		rows := rowsOf(tableFlag, 2039)
		for _, n := range []int{41, 40} {
			r.Set(t, clustertest.Parse(t, servicetest.SizedAs(v6, n, 0, "2", "Cluster",
				"service.cilium.io/lb-algorithm: maglev", "")))
			did := map[string]int{}
			r.before = func(op string) error { did[op]++; r.whole(t); return nil }
			if err := r.sync(); err != nil {
				t.Fatal(err)
			}
			sets := r.maglevSets(t)
			for id, slots := range sets {
				if !slices.Equal(slots, r.table(t, 2039)) || !isTable(id) {
					t.Errorf("%d backends: set %#x is not the table of Maglev", n, id)
				}
			}
			// Of the ClusterIP's set, which is no table, the last place goes.
			dropped := 0
			if n == 40 {
				dropped = rows
			}
			if len(sets) != 1 || did["put maglev_tables"] != rows || did["delete maglev_tables"] != dropped ||
				did["put frontends"] < 2 {
				t.Errorf("%d backends: %d tables, did %v", n, len(sets), did)
			}
			r.before = nil
			r.counted(t)
		}
	}
}

// maglevSets are those of frontends that say they have one.
func (r *rig) maglevSets(t testing.TB) map[uint32][]uint32 {
	t.Helper()
	out := map[uint32][]uint32{}
	each(t, r.datapath.Frontends, func(_ *bpf.DatapathFrontendKey, f *bpf.DatapathFrontend) {
		if f.Flags&maglevFlag == 0 {
			return
		}
		var err error
		if out[f.Set[external].Id], err = r.read(f.Set[external]); err != nil {
			t.Error(err)
		}
	})
	return out
}

// table is that of all backends.
func (r *rig) table(t testing.TB, size int) []uint32 {
	t.Helper()
	var list []maglev.Backend
	for b := range r.Desired.Backends.All(r.DB.ReadTxn()) {
		list = append(list, maglev.Backend{L4Addr: b.L4(), ID: b.ID, Weight: b.Weight})
	}
	return maglev.Table(testMaglev().Seed, size, list)
}

// A table that doesn't fit is an error on the frontend's row that says which map
// is full, and leaves no rows; the Services whose tables do fit are served.
func TestMaglevFull(t *testing.T) {
	r := newRig(t, service.Config{Algorithm: service.Maglev},
		map[string]uint32{"frontends": 64, "backend_slots": 64, "backends": 64, "affinities": 64, "maglev_tables": 2})
	o := servicetest.Many(3, 3)
	for i, s := range o.Services {
		s.Type, s.Ports[0].NodePort = "NodePort", 30000+uint16(i)
	}
	r.Set(t, o)
	err := r.sync()
	if err == nil || !strings.Contains(err.Error(), "map maglev_tables is full: it has room for 2 rows") {
		t.Errorf("got error %v", err)
	}
	r.whole(t)
	r.counted(t)
	if got := r.maps(t); !strings.Contains(got, ", tables in 2\n") || strings.Count(got, "maglev") != 2 {
		t.Errorf("got\n%s", got)
	}
}

// 10,000 Services with three backends and three addresses for clients outside
// have 10,000 tables, for which there is room at the default bpf.lbMapMax, and
// memory follows the rows that are in use.
func TestMaglevScale(t *testing.T) {
	services := 10000
	if testing.Short() {
		services = 1000
	}
	const room = 4 * 65536
	r := newRig(t, service.Config{Algorithm: service.Maglev},
		map[string]uint32{"frontends": 131072, "maglev_tables": room})
	r.maglev.Size = 0
	locked := func() int {
		info, err := r.datapath.MaglevTables.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, _ := info.Memlock()
		return int(n)
	}
	empty := locked()
	o := servicetest.Many(services, 3)
	for i, s := range o.Services {
		at := func(net int) netip.Addr {
			if s.Families[0] == "IPv4" {
				return netip.AddrFrom4([4]byte{192, byte(net), byte(i >> 8), byte(i)})
			}
			return netip.MustParseAddr(fmt.Sprintf("fd00:%x::%x", net, i))
		}
		s.Type, s.Ingress, s.ExternalIPs = "LoadBalancer", []netip.Addr{at(168)}, []netip.Addr{at(169), at(170)}
	}
	r.Set(t, o)
	begin := time.Now()
	if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	took, rows := time.Since(begin), 0
	each(t, r.datapath.MaglevTables, func(*bpf.DatapathBackendSlotsKey, *bpf.DatapathMaglevRow) { rows++ })
	if want := services * rowsOf(tableFlag, maglev.Size(3)); rows != want {
		t.Errorf("%d rows of tables, want %d", rows, want)
	}
	t.Logf("%d Services: %d rows of tables, %.1f MiB beside %.1f MiB of the empty map, %v", services, rows,
		float64(locked()-empty)/(1<<20), float64(empty)/(1<<20), took.Round(time.Millisecond))
	if empty > 5<<20 {
		t.Errorf("the empty map has %d bytes, want 16 for each row that there may be", empty)
	}
}
