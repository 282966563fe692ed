package encryption

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/statedb"

	"myelin/cluster"
)

// TestDetours: an agent that starts has the detours of the one before; without any there is no file.
func TestDetours(t *testing.T) {
	dir := t.TempDir()
	open := func() *Encryption {
		db := statedb.New()
		detours, err := cluster.NewDetourTable(db)
		if err != nil {
			t.Fatal(err)
		}
		e := &Encryption{params: Params{DB: db, RunDir: dir, Detours: detours}}
		if err := e.openDetours(); err != nil {
			t.Fatal(err)
		}
		return e
	}
	check := func(e *Encryption, want ...string) {
		t.Helper()
		var nodes []string
		for d := range e.params.Detours.All(e.params.DB.ReadTxn()) {
			if nodes = append(nodes, d.Node); d.Device != RotationDevice {
				t.Errorf("%s is reached by %s", d.Node, d.Device)
			}
		}
		if !slices.Equal(nodes, want) {
			t.Errorf("detours to %v, want %v", nodes, want)
		}
	}
	write := func(e *Encryption, nodes ...string) {
		t.Helper()
		var list []*cluster.Detour
		for _, n := range nodes {
			list = append(list, &cluster.Detour{Node: n, Device: RotationDevice})
		}
		if err := e.writeDetours(list); err != nil {
			t.Fatal(err)
		}
		check(e, nodes...)
	}
	e := open()
	check(e)
	write(e, "node2", "node3")
	e = open()
	check(e, "node2", "node3")
	write(e, "node3")
	e = open()
	check(e, "node3")
	write(e)
	if _, err := os.Stat(filepath.Join(Dir(dir), detoursFile)); !os.IsNotExist(err) {
		t.Errorf("without detours there is a file: %v", err)
	}
	check(open())
}
