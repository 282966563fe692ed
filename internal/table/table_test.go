package table

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
)

type lamp struct {
	Name   string
	On     bool
	Serial int // found
	Status reconciler.Status
}

func (*lamp) TableHeader() []string { return []string{"Name"} }
func (l *lamp) TableRow() []string  { return []string{l.Name} }

func status(l *lamp) *reconciler.Status { return &l.Status }

func byName() statedb.Index[*lamp, string] {
	return statedb.Index[*lamp, string]{
		Name:       "name",
		FromObject: func(l *lamp) index.KeySet { return index.NewKeySet(index.String(l.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}
}

func lampNamed(name string) statedb.Query[*lamp] {
	i := byName()
	return i.Query(name)
}

// room is what the lamps are in: the kernel of this test.
type room struct {
	mu     sync.Mutex
	on     map[string]bool
	broken error
}

func (r *room) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, l *lamp) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broken != nil {
		return fmt.Errorf("switch %s: %w", l.Name, r.broken)
	}
	r.on[l.Name] = l.On
	return nil
}

func (r *room) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, l *lamp) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.on, l.Name)
	return nil
}

func (r *room) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*lamp, statedb.Revision]) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	left := map[string]bool{}
	for l := range rows {
		left[l.Name] = r.on[l.Name]
	}
	r.on = left
	return nil
}

func (r *room) has(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.on[name]
	return ok
}

type buffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func setup(t *testing.T, r *room) (*statedb.DB, statedb.RWTable[*lamp], *buffer) {
	t.Helper()
	db := statedb.New()
	lamps, err := statedb.NewTable(db, "lamps", byName())
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Start(); err != nil {
		t.Fatal(err)
	}
	out := &buffer{}
	log := slog.New(slog.NewTextHandler(out, nil))
	group, start, stop := Group(log)
	if _, err := Register(log, db, group, lamps, status, r); err != nil {
		t.Fatal(err)
	}
	if err := start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(context.Background()); err != nil {
			t.Error(err)
		}
		db.Stop()
	})
	return db, lamps, out
}

func insert(db *statedb.DB, lamps statedb.RWTable[*lamp], rows ...*lamp) {
	txn := db.WriteTxn(lamps)
	for _, row := range rows {
		row.Status = reconciler.StatusPending()
		lamps.Insert(txn, row)
	}
	txn.Commit()
}

func TestReconcile(t *testing.T) {
	r := &room{on: map[string]bool{"left over": true}}
	db, lamps, _ := setup(t, r)
	insert(db, lamps, &lamp{Name: "desk", On: true}, &lamp{Name: "door"})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := WaitAll(ctx, db, lamps, status); err != nil {
		t.Fatal(err)
	}
	if !r.has("desk") || !r.has("door") {
		t.Errorf("rows are done and the room has %v", r.on)
	}
	for r.has("left over") {
		if ctx.Err() != nil {
			t.Fatal("what has no row was not pruned")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestWaitReportsError(t *testing.T) {
	r := &room{on: map[string]bool{}, broken: errors.New("no current")}
	db, lamps, out := setup(t, r)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := WaitAll(ctx, db, lamps, status); err != nil {
		t.Errorf("wait for a table without rows: %v", err)
	}
	insert(db, lamps, &lamp{Name: "desk"})
	err := WaitAll(ctx, db, lamps, status)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "switch desk: no current") {
		t.Errorf("wait for a row that fails: %v", err)
	}
	r.mu.Lock()
	r.broken = nil
	r.mu.Unlock()
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := WaitAll(ctx, db, lamps, status); err != nil {
		t.Errorf("the row is not tried again: %v", err)
	}
	out.mu.Lock()
	defer out.mu.Unlock()
	if n := strings.Count(out.String(), "will retry"); n < 1 || n > 2 {
		t.Errorf("an error that stays the same is logged %d times:\n%s", n, out.String())
	}
}

// TestKeep: a row is written when something else is wanted, or when what was made is not what it was.
func TestKeep(t *testing.T) {
	r := &room{on: map[string]bool{}}
	db, lamps, _ := setup(t, r)
	fits := func(_ statedb.ReadTxn, l *lamp) bool { return r.has(l.Name) }
	single := Single[lamp]{
		Same: func(a, b *lamp) bool { return a.On == b.On }, Status: status, Fits: fits,
		Found: func(to, from *lamp) { to.Serial = from.Serial },
	}
	keep := func(on bool, serial int) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			want := &lamp{Name: "desk", On: on, Serial: serial, Status: reconciler.StatusPending()}
			done, err := Keep(db, lamps, lampNamed("desk"), want, single)
			if err != nil {
				t.Fatal(err)
			}
			if done == nil {
				return
			}
			select {
			case <-done:
			case <-time.After(10 * time.Second):
				t.Fatal("the row is worked on for ever")
			}
		}
		t.Fatal("the row never fits")
	}
	keep(true, 7)
	keep(false, 8)
	row, first, _ := lamps.Get(db.ReadTxn(), lampNamed("desk"))
	if row.On || row.Serial != 7 || !r.has("desk") {
		t.Errorf("got %+v, %v; want what was found to be kept", row, r.on)
	}
	keep(false, 9)
	if _, again, _ := lamps.Get(db.ReadTxn(), lampNamed("desk")); again != first {
		t.Error("the row was written without a reason")
	}
	if err := r.Delete(t.Context(), nil, 0, row); err != nil {
		t.Fatal(err)
	}
	if keep(false, 9); !r.has("desk") {
		t.Error("what another program removed is not there again")
	}
}

func TestReplace(t *testing.T) {
	db := statedb.New()
	lamps, err := statedb.NewTable(db, "lamps", byName())
	if err != nil {
		t.Fatal(err)
	}
	same := func(a, b *lamp) bool { return a.On == b.On }
	replace := func(rows ...*lamp) int {
		txn := db.WriteTxn(lamps)
		defer txn.Commit()
		n, err := Replace(txn, lamps, lamps.All(txn), rows, same)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := replace(&lamp{Name: "desk"}, &lamp{Name: "door"}); n != 2 {
		t.Errorf("first: %d changes", n)
	}
	kept, _, _ := lamps.Get(db.ReadTxn(), lampNamed("desk"))
	if n := replace(&lamp{Name: "desk"}, &lamp{Name: "hall"}, &lamp{Name: "hall", On: true}); n != 2 {
		t.Errorf("one same, one gone, one new and twice: %d changes", n)
	}
	if row, _, _ := lamps.Get(db.ReadTxn(), lampNamed("desk")); row != kept {
		t.Error("a row that is the same was replaced, and with it its status")
	}
	if row, _, _ := lamps.Get(db.ReadTxn(), lampNamed("hall")); row == nil || !row.On {
		t.Error("of two rows with one key the last one must count")
	}
	if n := replace(); n != 2 || lamps.NumObjects(db.ReadTxn()) != 0 {
		t.Errorf("nothing desired: %d changes", n)
	}
}
