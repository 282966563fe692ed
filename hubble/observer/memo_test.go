package observer

import (
	"testing"

	"github.com/cilium/statedb"

	"myelin/cluster"
)

// TestMemo: what was looked up is kept until the table changes, and never for another state of it.
func TestMemo(t *testing.T) {
	db := statedb.New()
	tables, err := cluster.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	known, looked := newMemo[string, int](tables.Nodes), 0
	count := func(txn statedb.ReadTxn) int {
		return known.get(txn, "nodes", func() int {
			looked++
			return tables.Nodes.NumObjects(txn)
		})
	}
	before := db.ReadTxn()
	if n := count(before); n != 0 || count(before) != 0 || looked != 1 {
		t.Errorf("%d nodes, looked %d times, want 0 and 1", n, looked)
	}
	w := db.WriteTxn(tables.Nodes)
	if _, _, err := tables.Nodes.Insert(w, &cluster.Node{Name: "node1"}); err != nil {
		t.Fatal(err)
	}
	w.Commit()
	if n := count(db.ReadTxn()); n != 1 || looked != 2 {
		t.Errorf("%d nodes, looked %d times, want 1 and 2", n, looked)
	}
	if n := count(before); n != 0 {
		t.Errorf("%d nodes before, want 0", n)
	}
	full := newMemo[int, int](tables.Nodes)
	for i := range memoSize + 1 {
		full.get(before, i, func() int { return i })
	}
	if len(full.known) != 1 || full.get(before, memoSize, func() int { return 0 }) != memoSize {
		t.Errorf("%d entries in a memo that was full", len(full.known))
	}
}
