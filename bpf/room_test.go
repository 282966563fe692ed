package bpf

import (
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func TestRoom(t *testing.T) {
	r := Room{Start: 4096, Limit: 60000}
	for rows, want := range map[int]uint32{0: 4096, 2048: 4096, 2049: 8192, 4097: 16384, 30000: 60000, 1 << 40: 60000} {
		if got := r.For(rows); got != want {
			t.Errorf("%d rows: %d, want %d", rows, got, want)
		}
	}
	for _, tc := range []struct {
		rows int
		size uint32
		want bool
	}{{2048, 4096, false}, {2049, 4096, true}, {60000, 60000, false}} {
		if got := r.Crowded(tc.rows, tc.size); got != tc.want {
			t.Errorf("%d rows of %d: %v", tc.rows, tc.size, got)
		}
	}
}

// growing are options with which maps are small at first.
func growing(t *testing.T) Options {
	t.Helper()
	return Options{Dir: filepath.Join(bpffs(t), "myelin"), Settings: Settings{Services: 1, Policy: 1}, Grow: true,
		Sizes:    Sizes{Flows: 2048, Translations: 2048, Services: 65536, Peers: 65536},
		FlowRoom: Room{2048, 4096, "a key"}, NatRoom: Room{2048, 8192, "a key"}}
}

// grower loads a datapath whose maps grow.
type grower struct {
	*testing.T
	*Datapath
	options Options
}

// load replaces the datapath with one that has room for so many backends.
func (g *grower) load(size uint32) {
	g.Helper()
	if g.Datapath != nil {
		must(g, g.Datapath.Close())
	}
	d, err := Load(g.options)
	must(g, err)
	if g.Datapath = d; d.Backends.MaxEntries() != size {
		g.Errorf("room for %d backends, want %d", d.Backends.MaxEntries(), size)
	}
}

func (g *grower) put(from, to uint32) (err error) {
	for i := from; i < to && err == nil; i++ {
		err = g.Backends.Put(i, DatapathBackend{Port: uint16(i)})
	}
	return err
}

func (g *grower) crowded(want string) {
	g.Helper()
	got, err := g.Crowded()
	if must(g, err); got != want {
		g.Errorf("%q, want %q", got, want)
	}
}

// TestGrow: maps are small at first, grow for the rows that they have and for rows that were refused, up to what their
// features say, and shrink when their rows are gone. Rows survive.
func TestGrow(t *testing.T) {
	g := &grower{T: t, options: growing(t)}
	g.load(4096)
	for name, want := range map[string]int{"backends": 65536, "flows": 4096, "nat_replies": 8192, "cpus": 1} {
		if got := g.Room(name); got != want {
			t.Errorf("%s may grow to %d, want %d", name, got, want)
		}
	}
	must(t, g.put(0, 2048))
	g.crowded("")
	must(t, g.put(2048, 2049))
	g.crowded("2049 rows use the map backends, which has room for 4096: it grows")
	g.load(8192)
	g.crowded("")
	if g.put(2049, 9000) == nil {
		t.Error("9,000 rows fit")
	}
	g.Refused("backends", 808)
	g.Refused("backends", 1)
	g.Refused("cpus", 1) // it does not grow
	if g.options.Need = g.Needs(); len(g.options.Need) != 1 || g.options.Need["backends"] != 9000 {
		t.Errorf("needs %v", g.options.Need)
	}
	g.load(32768)
	must(t, g.put(8192, 9000))
	for i := range uint32(9000) {
		var b DatapathBackend
		if err := g.Backends.Lookup(i, &b); err != nil || b.Port != uint16(i) {
			t.Fatalf("backend %d is %+v, %v", i, b, err)
		}
	}
	g.options.Stay, g.options.Need = true, map[string]int{"backends": 60000} // no memory for more
	g.load(32768)
	for i := range uint32(8000) {
		must(t, g.Backends.Delete(i))
	}
	g.options.Stay, g.options.Need = false, nil
	g.load(4096)
	g.options.Grow = false
	g.load(65536)
	must(t, g.Datapath.Close())
}

// TestGrowPolicies: entries are cached from the first packet on if an endpoint has had policies, also if their map has
// another size now.
func TestGrowPolicies(t *testing.T) {
	o := growing(t)
	for _, want := range []uint32{0, 1} {
		d, err := Load(o)
		must(t, err)
		var tracking uint32
		must(t, d.Tracking.Get(&tracking))
		if tracking != want {
			t.Errorf("tracking %d, want %d", tracking, want)
		}
		must(t, d.Policies.Put(uint32(7), make([]byte, unsafe.Sizeof(DatapathEndpointPolicy{}))))
		must(t, d.Close())
		o.Grow = false
	}
}

// TestTakeOverOrigins: origins of sockets that were connected while their map was copied are not lost, and do not
// replace others.
func TestTakeOverOrigins(t *testing.T) {
	o := growing(t)
	before, err := Load(o)
	must(t, err)
	t.Cleanup(func() { before.Close() })
	put := func(d *Datapath, cookie uint64, backend uint32) {
		t.Helper()
		must(t, d.Origins.Put(DatapathOriginKey{Cookie: cookie}, DatapathOrigin{Backend: backend}))
	}
	put(before, 1, 10)
	o.Grow = false
	after, err := Load(o)
	must(t, err)
	t.Cleanup(func() { after.Close() })
	put(before, 2, 20)
	put(before, 3, 30)
	put(after, 3, 31)
	for range 2 {
		must(t, after.TakeOverOrigins())
	}
	for cookie, want := range map[uint64]uint32{1: 10, 2: 20, 3: 31} {
		var got DatapathOrigin
		if must(t, after.Origins.Lookup(DatapathOriginKey{Cookie: cookie}, &got)); got.Backend != want {
			t.Errorf("socket %d has %d, want %d", cookie, got.Backend, want)
		}
	}
}

// TestDistributedLRU: LRU maps in use have a list for each CPU, are not small at first, and are adopted.
func TestDistributedLRU(t *testing.T) {
	o := growing(t)
	o.DistributedLRU, o.Sizes.Flows, o.Sizes.Services = true, 3001, 10000
	for _, adopted := range []bool{false, true} {
		d, err := Load(o)
		must(t, err)
		for name, m := range d.MapsByName() {
			info, err := m.Info()
			must(t, err)
			byCPU := info.Flags&unix.BPF_F_NO_COMMON_LRU != 0
			if want := m.Type() == ebpf.LRUHash && m.MaxEntries() > 1; byCPU != want {
				t.Errorf("%s: a list for each CPU: %v, want %v", name, byCPU, want)
			}
			if byCPU && m.MaxEntries()%uint32(ebpf.MustPossibleCPU()) != 0 {
				t.Errorf("%s: CPUs do not get equal parts of %d entries", name, m.MaxEntries())
			}
		}
		if n := d.Origins.MaxEntries(); n < 10000 {
			t.Errorf("room for %d origins", n)
		}
		for _, m := range d.Maps {
			if m.Adopted != adopted {
				t.Errorf("adopted %v: %+v", adopted, m)
			}
		}
		var s Settings
		must(t, d.Config.Get(&s))
		if s.FlowEntries != d.Flows.MaxEntries() {
			t.Errorf("shares are of %d entries, and there are %d", s.FlowEntries, d.Flows.MaxEntries())
		}
		usage, err := d.usage()
		must(t, err)
		for _, u := range usage {
			if row := strings.Join(u.TableRow(), " "); u.Name == "flows" && !strings.Contains(row, "LRUHash, by CPU") {
				t.Error(row)
			}
		}
		must(t, d.Close())
	}
}
