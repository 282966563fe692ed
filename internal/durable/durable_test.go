package durable

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWriteAndRemove(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b.json")
	for _, text := range []string{"first, and longer", "second"} {
		if err := Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != text {
			t.Errorf("got %q, %v", data, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	for range 2 {
		if err := Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := filepath.Glob(filepath.Dir(path) + "/*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A file that is refused keeps nothing else from being read; what a crash left goes.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a.json", "b.json", "bad.json", "c.json.tmp", "README"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(path string) (string, error) {
		data, err := os.ReadFile(path)
		if string(data) == "bad.json" {
			err = errors.New("bad")
		}
		return string(data), err
	}
	all, bad, err := Load(dir, ".json", read)
	if err != nil || len(bad) != 1 || !slices.Equal(all, []string{"a.json", "b.json"}) {
		t.Errorf("got %q, %v, %v", all, bad, err)
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) != 4 {
		t.Errorf("left: %v", left)
	}
	if all, bad, err := Load(filepath.Join(dir, "none"), ".json", read); err != nil || len(all)+len(bad) > 0 {
		t.Errorf("got %q, %v, %v", all, bad, err)
	}
	if _, _, err := Load(filepath.Join(dir, "README"), ".json", read); err == nil {
		t.Error("a file was read as a directory")
	}
}

// What can't be replaced stays, and nothing is left beside it.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(path, "by a directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, nil); err == nil {
		t.Error("a directory was replaced")
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) != 1 {
		t.Errorf("got %v", left)
	}
	if err := Remove(path); err == nil {
		t.Error("a directory with files in it was removed")
	}
}

// A file system that is full is found, and the probe leaves nothing on it.
func TestProbe(t *testing.T) {
	dir := t.TempDir()
	if err := Probe(dir); err != nil {
		t.Error(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a small file system")
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	if err := Probe(dir); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "filler"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Probe(dir); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("of a full file system: %v", err)
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	if err := Probe(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of no directory: %v", err)
	}
}
