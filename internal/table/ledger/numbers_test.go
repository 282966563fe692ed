package ledger

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type key string

func (k key) String() string { return string(k) }

// A file that makes no sense is begun anew, after the numbers that the kernel has, and one that can't be written is an
// error.
func TestBadNumbers(t *testing.T) {
	for name, text := range map[string]string{
		"no JSON": "x\n", "other version": `{"version":9}` + "\n",
		"number twice": `{"version":1}` + "\n" + `{"id":1,"key":"a"}` + "\n" + `{"id":1,"key":"b"}` + "\n",
	} {
		path := filepath.Join(t.TempDir(), "n.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		n, bad, err := NewNumbers[key](path, 7)
		if err != nil || bad == nil {
			t.Fatalf("%s: got %v, %v", name, bad, err)
		}
		if id := n.Get(key("a")); id != 8 {
			t.Errorf("%s: got number %d", name, id)
		}
		n.Close()
	}
	if _, _, err := NewNumbers[key](filepath.Join(t.TempDir(), "missing", "n.json"), 0); err == nil {
		t.Error("got no error for a folder that isn't there")
	}
}

// The file doesn't grow with what came and went, and numbers begin again after
// the last one.
func TestNumbersComeAndGo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.json")
	n, _, err := NewNumbers[key](path, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	stays := n.Get(key("stays"))
	for i := range 5000 {
		k := key("n" + strings.Repeat("x", i%7))
		if id := n.Get(k); id <= uint32(i)+1 {
			t.Fatalf("got number %d again", id)
		}
		if err := n.Save(); err != nil {
			t.Fatal(err)
		}
		n.Release(k)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 100<<10 {
		t.Errorf("got %v, %v", info.Size(), err)
	}
	n.next = 0
	if id := n.Get(key("late")); id == 0 || id == stays {
		t.Errorf("got number %d after the last one", id)
	}
}
