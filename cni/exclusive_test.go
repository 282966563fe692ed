package cni

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestExclusive puts other networks' configurations aside, and gives back those that have not been written anew.
func TestExclusive(t *testing.T) {
	dir := t.TempDir()
	write := func(names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	has := func(want ...string) {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, e := range entries {
			have = append(have, e.Name())
		}
		slices.Sort(want)
		if !slices.Equal(have, want) {
			t.Errorf("there are %v, want %v", have, want)
		}
	}
	write(ConflistName, "00-first.conflist", "10-other.conf", "99-loopback.json", "README", "calico-kubeconfig")
	aside, err := Exclude(dir)
	if want := []string{"00-first.conflist", "10-other.conf", "99-loopback.json"}; err != nil ||
		!slices.Equal(aside, want) {
		t.Errorf("put aside %v, %v", aside, err)
	}
	has(ConflistName, "00-first.conflist"+asideSuffix, "10-other.conf"+asideSuffix, "99-loopback.json"+asideSuffix,
		"README", "calico-kubeconfig")
	if aside, err = Exclude(dir); len(aside) != 0 || err != nil {
		t.Errorf("put aside again: %v, %v", aside, err)
	}
	write("10-other.conf")
	back, err := Readmit(dir)
	if want := []string{"00-first.conflist" + asideSuffix, "99-loopback.json" + asideSuffix}; err != nil ||
		!slices.Equal(back, want) {
		t.Errorf("gave back %v, %v", back, err)
	}
	has(ConflistName, "00-first.conflist", "10-other.conf", "10-other.conf"+asideSuffix, "99-loopback.json", "README",
		"calico-kubeconfig")
	if aside, err := Exclude(filepath.Join(dir, "missing")); len(aside) != 0 || err != nil {
		t.Errorf("of a directory that is not there: %v, %v", aside, err)
	}
}
