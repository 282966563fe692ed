package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// seenRig writes files into a directory that a source reads.
type seenRig struct {
	*Source
	t   *testing.T
	dir string
}

// write replaces a file of a node as one step.
func (r *seenRig) write(name, cidrs string) {
	r.t.Helper()
	tmp := filepath.Join(r.dir, ".new")
	text := fmt.Sprintf("apiVersion: v1\nkind: Node\nmetadata: {name: %s}\nspec: {podCIDRs: [%s]}\n", name, cidrs)
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(r.dir, name+".yaml")); err != nil {
		r.t.Fatal(err)
	}
}

// wait returns when the file's row has the stamp of the file as it is.
func (r *seenRig) wait(name string) {
	r.t.Helper()
	info, err := os.Stat(filepath.Join(r.dir, name+".yaml"))
	if err != nil {
		r.t.Fatal(err)
	}
	for end := time.Now().Add(4 * time.Second); ; {
		row, _, changed, ok := r.seen.GetWatch(r.DB.ReadTxn(), fileNames().Query(name+".yaml"))
		if ok && row.Stamp == Stamp(info) {
			return
		}
		select {
		case <-changed:
		case <-time.After(time.Until(end)):
			r.t.Fatalf("%s has the row %+v, want the stamp %s", name, row, Stamp(info))
		}
	}
}

func (r *seenRig) has(cidrs, problems int) {
	r.t.Helper()
	txn, n := r.DB.ReadTxn(), 0
	for row := range r.Tables.Nodes.All(txn) {
		n += len(row.PodCIDRs)
	}
	if got := r.Problems().NumObjects(txn); n != cidrs || got != problems {
		r.t.Fatalf("%d podCIDRs and %d problems, want %d and %d", n, got, cidrs, problems)
	}
}

// A file's row has the stamp of its version when its objects, or their problems, are in the tables.
func TestSeen(t *testing.T) {
	dir := t.TempDir()
	r := &seenRig{start(t, dir), t, dir}
	for range 20 {
		r.write("a", "10.0.1.0/24")
		r.write("b", "10.0.2.0/24")
		r.wait("a")
		r.wait("b")
		r.has(2, 0)
		r.write("b", `10.0.2.0/24, "fd00::/64"`)
		r.wait("b")
		r.has(3, 0)
		r.write("b", "10.0.2.0/99")
		r.wait("b")
		r.has(3, 1) // what was good is in force
		r.write("b", "10.0.2.0/24")
		r.wait("b")
		r.has(2, 0)
	}
	if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	expect(t, r.Source, "a=10.0.1.0/24")
	for end := time.Now().Add(4 * time.Second); r.seen.NumObjects(r.DB.ReadTxn()) != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a file that is gone has a row")
		}
	}
}
