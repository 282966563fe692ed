package bpf

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// bpffs mounts a BPF file system for the test, which needs root.
func bpffs(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	must(t, unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestAdopted: the programs of the next agent use the maps of the one before, all of them, also those that it pinned
// under another name.
func TestAdopted(t *testing.T) {
	fs := bpffs(t)
	if len(formerNames()) == 0 {
		t.Fatal("no former names")
	}
	for _, adopted := range []bool{false, true} {
		d, err := Load(Options{Dir: filepath.Join(fs, "myelin")})
		must(t, err)
		for _, m := range d.Maps {
			if m.Adopted != adopted {
				t.Errorf("adopted %v: %+v", adopted, m)
			}
		}
		must(t, d.Close())
		for name, former := range formerNames() {
			if d.mapByName(former) != nil {
				t.Errorf("%s: %s is a map of today", name, former)
			}
			must(t, os.Rename(d.mapPin(name), d.mapPin(former)))
		}
	}
}

// TestCountPinned: rows count what the function says, and none of a map that is not there does.
func TestCountPinned(t *testing.T) {
	dir := filepath.Join(bpffs(t), "myelin")
	count := func() Pinned {
		t.Helper()
		p, err := CountPinned(dir, "flows", func(k *DatapathFlowKey, f *DatapathFlow) int {
			if k.Proto == 6 {
				return 2
			}
			return 0
		})
		must(t, err)
		return p
	}
	if got := count(); got != (Pinned{}) {
		t.Errorf("%+v, and nothing is pinned", got)
	}
	d, err := Load(Options{Dir: dir, Settings: Settings{FlowAlways: 1}, Sizes: Sizes{Flows: 5000}})
	must(t, err)
	t.Cleanup(func() { d.Close() })
	for i := range uint16(3000) {
		must(t, d.Flows.Put(DatapathFlowKey{Port: [2]uint16{i, 1}, Proto: uint8(6 + 11*(i%3/2))}, DatapathFlow{}))
	}
	if got, want := count(), (Pinned{Counted: 4000, Rows: 3000, Max: 5000}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	other, err := CountPinned(dir, "flows", func(*uint32, *uint32) int { return 1 })
	if want := (Pinned{Max: 5000}); err != nil || other != want {
		t.Errorf("rows of another layout: %+v, %v, want %+v", other, err, want)
	}
}

// TestOverlap: flows that begin while their tables are copied to larger ones are taken over, unless others use their
// place, and rows that were deleted since do not come back.
func TestOverlap(t *testing.T) {
	const early, deleted, late, again, taken = 1, 2, 3, 4, 5 // ports
	o := Options{Dir: filepath.Join(bpffs(t), "myelin"), Settings: Settings{FlowAlways: 1, Services: 1},
		Sizes: Sizes{Flows: 4096, Translations: 4096, Services: 1024}}
	tuple := func(port uint16) *DatapathNatTuple { return &DatapathNatTuple{Sport: port, Proto: 6} }
	put := func(d *Datapath, port uint16, snat uint16) {
		t.Helper()
		now, err := Ticks()
		must(t, err)
		must(t, d.Flows.Put(DatapathFlowKey{Port: [2]uint16{port}}, DatapathFlow{Created: now, Slot: snat}))
		e := DatapathNatEntry{NatPort: snat, Flags: uint8(DatapathNatEntryFlagNAT_ENTRY_SNAT)}
		e.SetCreatedAt(now)
		must(t, d.NatEntries.Put(tuple(port), e))
		must(t, d.NatReplies.Put(ReplyTuple(tuple(port), &e), DatapathNatReply{Request: *tuple(port), Stat: snat}))
	}
	before, err := Load(o)
	must(t, err)
	t.Cleanup(func() { before.Close() })
	put(before, early, 100)
	put(before, deleted, 200)
	time.Sleep(20 * time.Millisecond) // a few ticks
	o.Sizes.Flows, o.Sizes.Translations = 8192, 8192
	after, err := Load(o)
	must(t, err)
	t.Cleanup(func() { after.Close() })
	must(t, after.Flows.Delete(DatapathFlowKey{Port: [2]uint16{deleted}}))
	must(t, after.NatEntries.Delete(tuple(deleted)))
	put(before, late, 300)
	put(before, again, 400)
	put(after, again, 401)
	put(before, taken, 500)
	put(after, taken+1, 500)                              // the NAT port
	if n, err := after.TakeOver(); err != nil || n != 3 { // two rows of late; that of taken in flows
		t.Errorf("%d taken over, %v, want 3", n, err)
	}
	for port, want := range map[uint16][2]uint16{early: {100, 100}, deleted: {}, late: {300, 300}, again: {401, 401},
		taken: {500, 0}} {
		var f DatapathFlow
		var e DatapathNatEntry
		_, err := Get(after.Flows, DatapathFlowKey{Port: [2]uint16{port}}, &f)
		must(t, err)
		_, err = Get(after.NatEntries, *tuple(port), &e)
		must(t, err)
		if got := [2]uint16{f.Slot, e.NatPort}; got != want {
			t.Errorf("port %d has %d, want %d", port, got, want)
		}
		var reply DatapathNatReply
		own, err := after.ReadNatReply(tuple(port), &e, &reply)
		if must(t, err); own != (want[1] != 0) || own && reply.Stat != want[1] {
			t.Errorf("port %d: replies %v with %+v", port, own, reply)
		}
	}
	if n, err := after.TakeOver(); err != nil || n != 0 {
		t.Errorf("again: %d taken over, %v", n, err)
	}
}

// TestCopyRows: rows are copied by many at a time, and those without room are counted.
func TestCopyRows(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	table := func(kind ebpf.MapType, size uint32) *ebpf.Map {
		t.Helper()
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: kind, KeySize: 4, ValueSize: 12, MaxEntries: size})
		must(t, err)
		t.Cleanup(func() { m.Close() })
		return m
	}
	for _, kind := range []ebpf.MapType{ebpf.Hash, ebpf.Array} {
		from, same, small := table(kind, 5000), table(kind, 5000), table(kind, 3000)
		for i := range uint32(5000) {
			must(t, from.Put(i, [3]uint32{i, 7, ^i}))
		}
		if copied, lost := copyRows(from, same); copied != 5000 || lost != 0 {
			t.Errorf("%s: %d copied, %d lost", kind, copied, lost)
		}
		for i := range uint32(5000) {
			var got [3]uint32
			if must(t, same.Lookup(i, &got)); got != [3]uint32{i, 7, ^i} {
				t.Fatalf("%s: row %d is %v", kind, i, got)
			}
		}
		if copied, lost := copyRows(from, small); copied != 3000 || lost != 2000 {
			t.Errorf("%s, too small: %d copied, %d lost", kind, copied, lost)
		}
		if copied, lost := copyRowsSlowly(from, small); copied != 3000 || lost != 2000 {
			t.Errorf("%s, row by row: %d copied, %d lost", kind, copied, lost)
		}
	}
}
