package durable_test

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"myelin/internal/durable"
)

// TestMap: what a map has is in its file, a change that can't be written leaves it as it is, and an empty one has none.
func TestMap(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dir", "map.json")
	open := func() *durable.Map[int] {
		m, err := durable.OpenMap[int](file)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	put := func(known map[string]int) bool {
		known["a"], known["b"] = 1, 2
		return true
	}
	m := open()
	if err := m.Change(put); err != nil {
		t.Fatal(err)
	}
	if got := open().All(); !maps.Equal(got, map[string]int{"a": 1, "b": 2}) {
		t.Errorf("read %v", got)
	}
	m.All()["c"] = 3
	if err := m.Change(func(known map[string]int) bool { known["d"] = 4; return false }); err != nil {
		t.Error(err)
	}
	if got := m.All(); len(got) != 2 {
		t.Errorf("a copy, or a change that was taken back, changed the map: %v", got)
	}
	if err := m.Change(func(known map[string]int) bool { clear(known); return true }); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty map has a file: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(file, "in-the-way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.Change(put); err == nil {
		t.Error("a directory was replaced")
	}
	if _, ok := m.Get("a"); ok {
		t.Error("what was not written is there")
	}
}

// TestMapOfGarbage: a file that is no map is an error, and stays.
func TestMapOfGarbage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "map.json")
	if err := os.WriteFile(file, []byte("[1]"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := durable.OpenMap[int](file); err == nil {
		t.Error("no error")
	}
	if m, err := durable.OpenMap[int](""); err != nil || len(m.All()) > 0 {
		t.Errorf("without a file: %v, %v", m, err)
	}
}
