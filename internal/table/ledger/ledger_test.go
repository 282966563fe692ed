package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

type line struct {
	Head
	Key string `json:"key,omitempty"`
}

func of(id uint32, key string) line { return line{Head: Head{ID: id}, Key: key} }

// What is written is read again, and a torn line at the end is ignored.
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
	if _, err := l.Read(1, func(line) error {
		return errors.New("not mine")
	}); err == nil || !strings.Contains(err.Error(), path+": line 2: not mine") {
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
	if err = errors.Join(err, l.Rewrite(3, nil), l.Append([]line{of(3, "a")})); err != nil || next != 3 ||
		l.Wasteful(0) {
		t.Errorf("got %d, %v", next, err)
	}
}

// A full disk: what was there stays and is read, new records wait, and are kept when there is room again.
func TestFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=12k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	path, filler := filepath.Join(dir, "n.json"), filepath.Join(dir, "filler")
	before, _, err := NewNumbers[word](path, 10)
	if err != nil || before.Get("a") != 11 || before.Save() != nil {
		t.Fatal(err)
	}
	before.Close()
	if err := os.WriteFile(filler, make([]byte, 64<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	n, bad, err := NewNumbers[word](path, 10)
	if err != nil || bad != nil {
		t.Fatal(bad, err)
	}
	if id := n.Get("a"); id != 11 || n.Save() != nil {
		t.Errorf("the number of before is %d", id)
	}
	id := n.Get("b")
	if err := n.Save(); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a new number was saved to a full disk: %v", err)
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) != 2 {
		t.Errorf("left: %v", left)
	}
	if err := errors.Join(os.Remove(filler), n.Save()); err != nil {
		t.Errorf("with room again: %v", err)
	}
	n.Close()
	after, bad, err := NewNumbers[word](path, 10)
	if err != nil || bad != nil || after.Get("a") != 11 || after.Get("b") != id {
		t.Errorf("read again: %v %v, %d %d", bad, err, after.Get("a"), after.Get("b"))
	}
	after.Close()
}

type word string

func (w word) String() string { return string(w) }
