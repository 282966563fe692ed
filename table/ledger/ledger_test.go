package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

type line struct {
	Head
	Key string `json:"key,omitempty"`
}

func of(id uint32, key string) line { return line{Head: Head{ID: id}, Key: key} }

// What is written is read again, and a torn line at the end is nobody's.
func TestLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.json")
	l := &Ledger[line]{Path: path}
	if next, err := l.Read(7, nil); next != 7 || err != nil {
		t.Fatalf("no file: got %d, %v", next, err)
	}
	if err := l.Rewrite(9, slices.Values([]line{of(7, "a"), of(8, "b")})); err != nil {
		t.Fatal(err)
	}
	if err := l.Append([]line{of(12, "c")}); err != nil {
		t.Fatal(err)
	}
	l.Close()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"id":99,"ke`)
	f.Close()
	var keys []string
	next, err := l.Read(1, func(r line) error { keys = append(keys, r.Key); return nil })
	if err != nil || next != 13 || !slices.Equal(keys, []string{"a", "b", "c"}) {
		t.Errorf("got %d %v, %v", next, keys, err)
	}
	if _, err := l.Read(1, func(line) error { return errors.New("not mine") }); err == nil || !strings.Contains(err.Error(), path+": line 2: not mine") {
		t.Errorf("got %v", err)
	}
}

// After a write that failed, the file is due to be written anew.
func TestAppendFails(t *testing.T) {
	l := &Ledger[line]{Path: filepath.Join(t.TempDir(), "n.json")}
	if err := l.Rewrite(1, slices.Values([]line(nil))); err != nil {
		t.Fatal(err)
	}
	if l.Wasteful(0) {
		t.Error("a new file is wasteful")
	}
	l.file.Close()
	for range 2 {
		if err := l.Append([]line{of(1, "a")}); err == nil || !l.Wasteful(1<<20) {
			t.Errorf("got %v, and the file is not written anew", err)
		}
	}
	if err := l.Rewrite(2, slices.Values([]line{of(1, "a")})); err != nil || l.Wasteful(1) {
		t.Errorf("got %v", err)
	}
	l.Close()
}

// Without a path nothing is kept.
func TestNoPath(t *testing.T) {
	l := &Ledger[line]{}
	next, err := l.Read(3, nil)
	if err = errors.Join(err, l.Rewrite(3, nil), l.Append([]line{of(3, "a")})); err != nil || next != 3 || l.Wasteful(0) {
		t.Errorf("got %d, %v", next, err)
	}
}
