package feature

import (
	"errors"
	"reflect"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
)

type row struct{ Status reconciler.Status }

func TestCountTable(t *testing.T) {
	rows := []*row{
		{Status: reconciler.StatusDone()}, {Status: reconciler.StatusRefreshing()},
		{Status: reconciler.StatusPending()},
		{Status: reconciler.StatusError(errors.New("no device"))},
	}
	for range MaxErrors {
		rows = append(rows, rows[3])
	}
	each := func(yield func(*row, statedb.Revision) bool) {
		for i, r := range rows {
			if !yield(r, statedb.Revision(i)) {
				return
			}
		}
	}
	got := countTable("routes", each, func(r *row) *reconciler.Status { return &r.Status })
	if len(got.Errors) != MaxErrors || got.Errors[0] != "no device" {
		t.Errorf("errors %q", got.Errors)
	}
	got.Errors = nil
	if want := (TableCount{Name: "routes", Rows: 24, Done: 2, Pending: 1, Failed: 21}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
