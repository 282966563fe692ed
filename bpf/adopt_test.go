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
