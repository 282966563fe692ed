package bpf

import (
	"errors"
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

// sized is the datapath with the sizes of maps that Load would give it, and nothing in the kernel.
func sized(t *testing.T, o Options) *ebpf.CollectionSpec {
	t.Helper()
	spec, err := configured(&o)
	must(t, err)
	d := &Datapath{options: o}
	must(t, errors.Join(d.shrink(spec), d.follow(spec)))
	return spec
}

func wantSize(t *testing.T, what string, o Options, want uint32) {
	t.Helper()
	if got := sized(t, o).Maps["backends"].MaxEntries; got != want {
		t.Errorf("%s: room for %d backends, want %d", what, got, want)
	}
}

// TestGrow: maps are small at first, grow for the rows that they have and for rows that were refused, up to what their
// features say, and shrink when their rows are gone. Rows survive.
func TestGrow(t *testing.T) {
	o := growing(t)
	before, err := Load(o)
	must(t, err)
	t.Cleanup(func() { before.Close() })
	for name, want := range map[string]int{"backends": 65536, "flows": 4096, "nat_replies": 8192, "cpus": 1} {
		if got := before.Room(name); got != want {
			t.Errorf("%s may grow to %d, want %d", name, got, want)
		}
	}
	fill(t, before, o)
	if o.Need = before.Needs(); len(o.Need) != 2 || o.Need["backends"] != 9000 || o.Need["origins"] != 8193 {
		t.Errorf("needs %v", o.Need)
	}
	after, err := Load(o)
	must(t, err)
	t.Cleanup(func() { after.Close() })
	for i := range uint32(9000) {
		var b DatapathBackend
		if err := after.Backends.Lookup(i, &b); (err == nil) != (i < 4096) || err == nil && b.Port != uint16(i) {
			t.Fatalf("backend %d is %+v, %v", i, b, err)
		}
		must(t, after.Backends.Put(i, b))
	}
	takeOverOrigins(t, before, after)
	wantSize(t, "rows", o, 32768)
	o.Stay, o.Need = true, map[string]int{"backends": 60000}
	wantSize(t, "no memory for more", o, 32768)
	for i := range uint32(8000) {
		must(t, after.Backends.Delete(i))
	}
	o.Stay, o.Keep, o.Need = false, true, nil
	wantSize(t, "rows are gone, in a reload", o, 32768)
	o.Keep = false
	wantSize(t, "rows are gone", o, 4096)
	o.Grow = false
	wantSize(t, "at once", o, 65536)
}

// fill fills the map of backends, and gives an endpoint policies.
func fill(t *testing.T, d *Datapath, o Options) {
	t.Helper()
	put := func(from, to uint32) (err error) {
		for i := from; i < to && err == nil; i++ {
			err = d.Backends.Put(i, DatapathBackend{Port: uint16(i)})
		}
		return err
	}
	for i, want := range []string{"", "2049 rows use the map backends, which has room for 4096: it grows"} {
		must(t, put(0, 2048+uint32(i)))
		if got, err := d.Crowded(); err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	wantSize(t, "more than half", o, 8192)
	if put(2048, 9000) == nil {
		t.Error("9,000 rows fit")
	}
	d.Refused("backends", 4904)
	d.Refused("backends", 1)
	d.Refused("origins", 1)
	d.Refused("cpus", 1) // it does not grow
	tracking := func() (on uint32) {
		must(t, sized(t, o).Variables["tracking"].Get(&on))
		return on
	}
	if tracking() != 0 {
		t.Error("entries are cached without policies")
	}
	must(t, d.Policies.Put(uint32(7), make([]byte, unsafe.Sizeof(DatapathEndpointPolicy{}))))
	if tracking() != 1 {
		t.Error("entries are not cached from the first packet on, and an endpoint has policies")
	}
}

// takeOverOrigins: origins of sockets that were connected while their map was copied are not lost, and do not replace
// others.
func takeOverOrigins(t *testing.T, before, after *Datapath) {
	t.Helper()
	put := func(d *Datapath, cookie uint64, backend uint32) {
		t.Helper()
		must(t, d.Origins.Put(DatapathOriginKey{Cookie: cookie}, DatapathOrigin{Backend: backend}))
	}
	put(before, 2, 20)
	put(before, 3, 30)
	put(after, 3, 31)
	for range 2 {
		must(t, after.TakeOverOrigins())
	}
	for cookie, want := range map[uint64]uint32{2: 20, 3: 31} {
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

// TestLateWithSmallMaps: programs that are loaded later take the maps as they are.
func TestLateWithSmallMaps(t *testing.T) {
	o := growing(t)
	o.Settings.L7, o.Settings.Encryption, o.Settings.Ipsec = 1, 1, 1
	d, err := Load(o)
	must(t, err)
	t.Cleanup(func() { d.Close() })
	_, err = d.loadProxy()
	must(t, err)
	_, err = d.loadL3()
	must(t, err)
	_, err = d.loadIPsec()
	must(t, err)
}
