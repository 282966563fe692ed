package service

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"myelin/bpf"
	"myelin/cluster/clustertest"
)

// A frontend for clients outside has the table that all nodes have, and what
// one backend that goes costs is the rows that differ.
func TestMaglevRows(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		r := newRig(t, Config{}, map[string]uint32{"frontends": 64, "choices": 512, "backends": 64, "affinities": 64})
		r.Maglev.Size = 2039
		cluster := func(n int) clustertest.Objects {
			return clustertest.Parse(t, sizedAs(v6, n, 0, "2", "Cluster", "service.cilium.io/lb-algorithm: maglev", ""))
		}
		r.world.set(t, cluster(41))
		if err := r.sync(); err != nil {
			t.Fatal(err)
		}
		before := r.maglevSets(t)
		r.world.set(t, cluster(40))
		n := map[string]int{}
		r.before = func(op string) error { n[op]++; return nil }
		if err := r.sync(); err != nil {
			t.Fatal(err)
		}
		after, differ := r.maglevSets(t), 0
		for id, places := range before {
			if !slices.Equal(after[id], r.table(t, 2039)) {
				t.Errorf("set %d is not the table of Maglev", id)
			}
			for row := range slices.Chunk(places, int(rowSize)) {
				if !slices.Equal(row, after[id][:len(row)]) {
					differ++
				}
				after[id] = after[id][len(row):]
			}
		}
		// Of the ClusterIP's set, which is no table, the last place goes.
		if len(before) != 2 || differ < 30 || differ > 120 || n["put choices"] != differ || n["delete choices"] != 0 || n["put frontends"] != 1 {
			t.Errorf("%d tables, of which %d rows differ: did %v", len(before), differ, n)
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
	var list []MaglevBackend
	for b := range r.Desired.Backends.All(r.DB.ReadTxn()) {
		list = append(list, MaglevBackend{b.L4(), b.ID, b.Weight})
	}
	return MaglevTable(testMaglev().Seed, size, list)
}

// A table that doesn't fit is an error that says which map is full, and leaves
// no rows.
func TestMaglevFull(t *testing.T) {
	r := newRig(t, Config{Algorithm: Maglev}, map[string]uint32{"frontends": 64, "choices": 12, "backends": 64, "affinities": 64})
	r.world.set(t, clustertest.Parse(t, sized(false, 3, 0, "1", "Cluster")))
	err := r.sync()
	if err == nil || !strings.Contains(err.Error(), "map choices is full: it has room for 12 rows") {
		t.Errorf("got error %v", err)
	}
	r.whole(t)
	r.counted(t)
	if got := r.maps(t); !strings.Contains(got, "choices in 9 rows\n") || strings.Count(got, "maglev") != 1 {
		t.Errorf("got\n%s", got)
	}
}

func TestMaglevConfig(t *testing.T) {
	for _, tc := range []struct {
		size, backends, want int
		err                  string
	}{
		{0, 3, 2039, ""}, {251, 3, 251, ""}, {251, 252, MaglevSize(252), ""}, {1048573, 1, 1048573, ""},
		{252, 0, 252, "252 is none of"}, {-1, 0, 251, "-1 is none of"},
	} {
		c := MaglevConfig{Size: tc.size}
		if err := fmt.Sprint(c.Check()); tc.err == "" && err != "<nil>" || !strings.Contains(err, tc.err) {
			t.Errorf("size %d: got error %v", tc.size, err)
		}
		if got := c.size(tc.backends); got != tc.want {
			t.Errorf("%d backends in %d places get %d", tc.backends, tc.size, got)
		}
	}
	one, err1 := MaglevSeed("JLfvgnHc2kaSUFaI")
	two, err2 := MaglevSeed("JLfvgnHc2kaSUFaJ")
	if err1 != nil || err2 != nil || one == two {
		t.Errorf("seeds are %d and %d: %v, %v", one, two, err1, err2)
	}
	for _, bad := range []string{"", "x", "JLfvgnHc2kaSUFaIAAAA"} {
		if _, err := MaglevSeed(bad); err == nil {
			t.Errorf("seed %q is taken", bad)
		}
	}
}
