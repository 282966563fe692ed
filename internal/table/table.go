// Package table holds the few lines that every table of desired state needs
// around statedb: a job group that runs reconcilers without a
// dependency-injection framework, a reconciler with one set of intervals for
// the whole agent, and waits for rows to be reconciled.
package table

import (
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"
)

// Intervals of every reconciler that Register makes, unless an option says
// otherwise.
const (
	retryMin     = 100 * time.Millisecond // first retry of a failed row
	retryMax     = 30 * time.Second       // longest pause between retries of a row
	refreshEvery = 5 * time.Minute        // a row is written again at least this often
	pruneEvery   = 30 * time.Minute       // what has no row is looked for at least this often
	refreshRate  = 200                    // rows a second, so that a refresh never delays a change for long
)

// Register makes a reconciler for t and adds its jobs to group. status returns
// the address of the row's Status field; rows are copied shallowly before they
// are handed to ops.Update, which may change plain fields of the copy.
//
// Prune runs first when all initializers of t are done, then every 30 minutes.
// Errors stay on the row as its status and are logged by the group, once for
// as long as they stay the same.
func Register[Row any](log *slog.Logger, db *statedb.DB, group job.Group, t statedb.RWTable[*Row],
	status func(*Row) *reconciler.Status, ops reconciler.Operations[*Row], options ...reconciler.Option,
) (reconciler.Reconciler[*Row], error) {
	params := reconciler.Params{
		Log:      log.With("table", t.Name()),
		DB:       db,
		JobGroup: named{group, group.Scoped(t.Name())},
		ModuleID: cell.FullModuleID{"myelin", t.Name()},
	}
	clone := func(row *Row) *Row {
		c := *row
		return &c
	}
	set := func(row *Row, s reconciler.Status) *Row {
		*status(row) = s
		return row
	}
	get := func(row *Row) reconciler.Status { return *status(row) }
	options = append([]reconciler.Option{
		reconciler.WithRetry(retryMin, retryMax),
		reconciler.WithRefreshing(refreshEvery, rate.NewLimiter(refreshRate, 1)),
		reconciler.WithPruning(pruneEvery),
	}, options...)
	r, err := reconciler.Register(params, t, clone, set, get, ops, nil, options...)
	if err != nil {
		return nil, fmt.Errorf("register reconciler of %s: %w", t.Name(), err)
	}
	return r, nil
}

// named adds jobs under the name of one table, so that what the group logs
// tells whose reconciler it is.
type named struct {
	job.Group
	scope job.ScopedGroup
}

func (n named) Add(jobs ...job.Job) { n.scope.Add(jobs...) }

// Replace makes the rows of t that current yields equal to desired: rows that
// are new or not the same are inserted, rows that are in current only are
// deleted, and rows that are the same keep their status. Rows are inserted in
// the order of desired, which is the order they are reconciled in. Rows are
// paired by primary key; of two desired rows with one key the last one counts. Desired
// rows must come with a pending status if t is reconciled. Returns how many
// rows it inserted or deleted.
func Replace[Row any](txn statedb.WriteTxn, t statedb.RWTable[*Row], current iter.Seq2[*Row, statedb.Revision],
	desired []*Row, same func(a, b *Row) bool,
) (changed int, err error) {
	key := func(row *Row) string { return string(t.PrimaryIndexer().ObjectToKey(row)) }
	want := make(map[string]*Row, len(desired))
	for _, row := range desired {
		want[key(row)] = row
	}
	var gone []*Row
	for row := range current {
		next, ok := want[key(row)]
		switch {
		case !ok:
			gone = append(gone, row)
		case same(row, next):
			delete(want, key(row))
		}
	}
	for _, row := range gone {
		if _, _, err := t.Delete(txn, row); err != nil {
			return changed, fmt.Errorf("delete row of %s: %w", t.Name(), err)
		}
		changed++
	}
	for _, row := range desired {
		if want[key(row)] != row {
			continue
		}
		if _, _, err := t.Insert(txn, row); err != nil {
			return changed, fmt.Errorf("insert row of %s: %w", t.Name(), err)
		}
		changed++
	}
	return changed, nil
}

// Single is how Keep treats the row of something that there is one of, such as a device.
type Single[Row any] struct {
	Same   func(a, b *Row) bool             // whether both want the same
	Status func(*Row) *reconciler.Status    // as of Register
	Fits   func(statedb.ReadTxn, *Row) bool // whether what was made is as the row says
	Found  func(to, from *Row)              // copies what the reconciler has found
}

// Keep writes the row that q finds: new if something else is wanted, and pending again, as want is, if what was made is
// not what it was. While the row is being worked on Fits can't tell: done is closed when it is worth another look.
func Keep[Row any](db *statedb.DB, t statedb.RWTable[*Row], q statedb.Query[*Row], want *Row, s Single[Row],
) (done <-chan struct{}, err error) {
	txn := db.WriteTxn(t)
	defer txn.Abort()
	row, _, watch, ok := t.GetWatch(txn, q)
	if ok && s.Same(row, want) {
		if s.Status(row).Kind != reconciler.StatusKindDone {
			return watch, nil
		}
		if s.Fits(txn, row) {
			return nil, nil
		}
	}
	if ok {
		s.Found(want, row)
	}
	if _, _, err := t.Insert(txn, want); err != nil {
		return nil, fmt.Errorf("write row of %s: %w", t.Name(), err)
	}
	txn.Commit()
	return watch, nil // closed by this very change
}
