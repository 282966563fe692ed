package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"myelin/endpoint"
)

// TestTried: tried waits for a row that is pending and for a table that is not filled, but not for a row that has
// failed.
func TestTried(t *testing.T) {
	db := statedb.New()
	rows, err := endpoint.NewTable(db)
	if err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(rows)
	filled := rows.RegisterInitializer(txn, "test")
	txn.Commit()
	put := func(id uint16, s reconciler.Status) {
		t.Helper()
		txn := db.WriteTxn(rows)
		if _, _, err := rows.Insert(txn, &endpoint.Endpoint{
			ID: id, ContainerID: string(rune('a' + id)), Status: s,
		}); err != nil {
			t.Fatal(err)
		}
		txn.Commit()
	}
	waits := func(what string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := tried(ctx, db, rows, endpoint.StatusOf); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", what, err)
		}
	}
	put(2, reconciler.StatusError(errors.New("no device")))
	put(3, reconciler.StatusDone())
	waits("not filled")
	txn = db.WriteTxn(rows)
	filled(txn)
	txn.Commit()
	put(4, reconciler.StatusPending())
	waits("pending")
	put(4, reconciler.StatusDone())
	if failed, err := tried(t.Context(), db, rows, endpoint.StatusOf); failed != 1 || err != nil {
		t.Errorf("%d failed, %v", failed, err)
	}
}
