package manifests

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A file's row has the stamp of its version when its objects, or their problems, are in the tables.
func TestSeen(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	write := func(name, text string) {
		t.Helper()
		tmp := filepath.Join(dir, ".new")
		if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	node := func(name, cidr string) string {
		return "apiVersion: v1\nkind: Node\nmetadata: {name: " + name + "}\nspec: {podCIDRs: [" + cidr + "]}\n"
	}
	seen := func(name string) {
		t.Helper()
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(4 * time.Second); ; {
			row, _, changed, ok := s.seen.GetWatch(s.DB.ReadTxn(), fileNames().Query(name))
			if ok && row.Stamp == Stamp(info) {
				return
			}
			select {
			case <-changed:
			case <-time.After(time.Until(end)):
				t.Fatalf("%s has the row %+v, want the stamp %s", name, row, Stamp(info))
			}
		}
	}
	has := func(cidrs, problems int) {
		t.Helper()
		txn, n := s.DB.ReadTxn(), 0
		for row := range s.Tables.Nodes.All(txn) {
			n += len(row.PodCIDRs)
		}
		if got := s.Problems().NumObjects(txn); n != cidrs || got != problems {
			t.Fatalf("%d podCIDRs and %d problems, want %d and %d", n, got, cidrs, problems)
		}
	}
	for range 20 {
		write("a.yaml", node("a", "10.0.1.0/24"))
		write("b.yaml", node("b", "10.0.2.0/24"))
		seen("a.yaml")
		seen("b.yaml")
		has(2, 0)
		write("b.yaml", node("b", `10.0.2.0/24, "fd00::/64"`))
		seen("b.yaml")
		has(3, 0)
		write("b.yaml", node("b", "10.0.2.0/99"))
		seen("b.yaml")
		has(3, 1) // what was good is in force
		write("b.yaml", node("b", "10.0.2.0/24"))
		seen("b.yaml")
		has(2, 0)
	}
	if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	expect(t, s, "a=10.0.1.0/24")
	for end := time.Now().Add(4 * time.Second); s.seen.NumObjects(s.DB.ReadTxn()) != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a file that is gone has a row")
		}
	}
}
