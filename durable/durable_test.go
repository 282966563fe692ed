package durable

import (
	"os"
	"path/filepath"
	"testing"
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
