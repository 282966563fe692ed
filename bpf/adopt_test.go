package bpf

import (
	"os"
	"path/filepath"
	"testing"

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

// TestCountPinned: only rows that satisfy the condition count, and none of a map that is not there.
func TestCountPinned(t *testing.T) {
	dir := filepath.Join(bpffs(t), "myelin")
	count := func() Pinned {
		t.Helper()
		p, err := CountPinned(dir, "flows", func(k *DatapathFlowKey, f *DatapathFlow) bool { return k.Proto == 6 })
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
	if got, want := count(), (Pinned{Counted: 2000, Max: 5000}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	other, err := CountPinned(dir, "flows", func(*uint32, *uint32) bool { return true })
	if want := (Pinned{Max: 5000}); err != nil || other != want {
		t.Errorf("rows of another layout: %+v, %v, want %+v", other, err, want)
	}
}
