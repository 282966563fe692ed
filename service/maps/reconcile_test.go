package maps

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/cluster/clustertest"
	"myelin/internal/table"
	"myelin/service"
	"myelin/service/servicetest"
)

// The number of writes if one of 5,000 backends changes.
func TestWritesOfOneOfMany(t *testing.T) {
	r := newRig(t, service.Config{}, nil)
	o := servicetest.Many(1, 5000)
	r.Set(t, o)
	if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	move := func(e *cluster.Endpoint) { e.Address = netip.MustParseAddr("10.9.0.1") }
	for _, step := range []struct {
		name string
		part *cluster.EndpointSlice
		want string
	}{
		{"drains", servicetest.With(o.Slices[2], 500, servicetest.Drain), "backend_slots 1, frontends 1"},
		{"is back", o.Slices[2], "backend_slots 1, frontends 1"},
		{"moves", servicetest.With(o.Slices[4], 10, move),
			// when the last set releases it, and by the Delete of its row, without effect
			"backends 1, backend_slots 1, delete backends 2"},
		{"zone", servicetest.With(o.Slices[2], 500, func(e *cluster.Endpoint) { e.Zone = "z" }), ""},
	} {
		r.PutSlice(t, step.part)
		if got := r.wrote(t); got != step.want {
			t.Errorf("%s: wrote %q, want %q", step.name, got, step.want)
		}
	}
}

// wrote syncs, and counts writes.
func (r *rig) wrote(t testing.TB) string {
	t.Helper()
	n := map[string]int{}
	r.before = func(op string) error { n[strings.TrimPrefix(op, "put ")]++; return nil }
	defer func() { r.before = nil }()
	if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, op := range []string{"backends", "backend_slots", "frontends", "delete frontends", "delete backend_slots",
		"delete backends", "delete affinities"} {
		if n[op] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", op, n[op]))
		}
	}
	return strings.Join(parts, ", ")
}

// An agent with the same sets in another order writes nothing, and new sets get free numbers: neither those of sets,
// nor of rows that a crash left.
func TestAdopted(t *testing.T) {
	r := newRig(t, service.Config{}, nil)
	o := servicetest.Many(4, 100)
	r.Set(t, o)
	if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	before := r.maps(t)
	txn := r.DB.WriteTxn(r.Desired.Frontends)
	for f := range r.Desired.Frontends.All(txn) {
		next := *f
		next.Internal = slices.Clone(f.Internal)
		slices.Reverse(next.Internal)
		r.Desired.Frontends.Insert(txn, &next)
	}
	txn.Commit()
	r.agent(t, r.datapath)
	if got := r.wrote(t); got != "" {
		t.Errorf("wrote %s for another order", got)
	}
	if got := r.maps(t); got != before {
		t.Errorf("got\n%s\nwant\n%s", got, before)
	}
	left := bpf.DatapathBackendSlotsKey{Set: 77}
	if err := r.datapath.BackendSlots.Put(left, bpf.DatapathBackendSlotsRow{}); err != nil {
		t.Fatal(err)
	}
	r.agent(t, r.datapath)
	r.nextSet = 3 // as after 2^32
	got := []uint32{}
	for range 2 {
		id, err := r.newSet(0)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, id)
	}
	other, err := New(Params{Log: r.log, DB: r.DB, Tables: r.Desired, Datapath: r.datapath})
	if err != nil {
		t.Fatal(err)
	}
	if id, err := other.newSet(0); err != nil || id != 78 || !slices.Equal(got, []uint32{5, 6}) {
		t.Errorf("new sets are %v, and %d after a start: %v", got, id, err)
	}
	r.again(t)
	if got := r.maps(t); got != before {
		t.Errorf("after Prune: got\n%s\nwant\n%s", got, before)
	}
}

// With full maps, the rows that fit are written, errors name the others, and these follow when there is room. This uses
// the real reconcilers, which change nothing of the previous agent's before the tables are initialized.
func TestReconcile(t *testing.T) {
	dir := t.TempDir() // keeps the numbers
	r := newRigIn(t, service.Config{}, map[string]uint32{"frontends": 64, "backend_slots": 64, "backends": 9,
		"affinities": 64}, dir)
	log := slog.New(slog.DiscardHandler)
	o := servicetest.Many(6, 3)
	half := clustertest.Objects{Services: o.Services[:2], Slices: o.Slices[:2]}
	// The previous agent.
	r.Set(t, half)
	if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	before := r.maps(t)

	r.Cluster = servicetest.New(t, service.Config{}, dir)
	txn := r.DB.WriteTxn(r.Tables.Services)
	known := r.Tables.Services.RegisterInitializer(txn, "test")
	txn.Commit()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	group, start, stop := table.Group(log)
	if err := start(ctx); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	k, err := New(Params{Log: log, DB: r.DB, Tables: r.Desired, Datapath: r.datapath})
	if err != nil {
		t.Fatal(err)
	}
	k.Reconcile(group)
	r.Kernel = k
	// Services are known, their endpoints are not yet.
	r.Set(t, clustertest.Objects{Services: o.Services})
	if f, _, ok := r.Desired.Frontends.Get(r.DB.ReadTxn(),
		service.FrontendByAddress(service.L4(o.Services[0].ClusterIPs[0], 80, service.TCP))); !ok ||
		len(f.Internal) != 0 {
		t.Fatal("the frontend has a set")
	}
	soon, cancelSoon := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancelSoon()
	if table.WaitAll(soon, r.DB, r.Desired.Frontends, service.FrontendStatus) == nil {
		t.Error("frontends were written before the cluster was known")
	}
	if got := r.maps(t); got != before {
		t.Errorf("not initialized: got\n%s\nwant\n%s", got, before)
	}
	txn = r.DB.WriteTxn(r.Tables.Services)
	known(txn)
	txn.Commit()
	r.Set(t, o)
	r.fullThenRoom(t, ctx, clustertest.Objects{Services: o.Services[3:], Slices: o.Slices[3:]})
}

func (r *rig) fullThenRoom(t *testing.T, ctx context.Context, less clustertest.Objects) {
	t.Helper()
	failed := r.waitFailed(t, ctx, 3)
	for _, text := range failed {
		if !strings.Contains(text, "map backends is full: it has room for 9 rows") ||
			!strings.Contains(text, "write ") {
			t.Errorf("error %q says too little", text)
		}
	}
	r.Set(t, less)
	if err := table.WaitAll(ctx, r.DB, r.Desired.Frontends, service.FrontendStatus); err != nil {
		t.Fatal(err)
	}
	if err := table.WaitAll(ctx, r.DB, r.Desired.Backends, service.BackendStatus); err != nil {
		t.Fatal(err)
	}
	if got, want := r.maps(t), r.rows(); got != want {
		t.Errorf("got\n%s\nthe tables say\n%s", got, want)
	}
}

// waitFailed waits until every frontend was tried and n can't be, and returns
// the errors of these and of backends.
func (r *rig) waitFailed(t testing.TB, ctx context.Context, n int) (errs []string) {
	t.Helper()
	for {
		rows, changed := r.Desired.Frontends.AllWatch(r.DB.ReadTxn())
		var pending int
		errs = nil
		for f := range rows {
			switch text := f.Status.GetError(); {
			case text != "":
				errs = append(errs, text)
			case f.Status.IsPendingOrRefreshing():
				pending++
			}
		}
		if pending == 0 && len(errs) == n {
			return append(errs, backendErrors(r.DB.ReadTxn(), r.Desired.Backends)...)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("%d frontends fail, want %d, and %d are pending: %v", len(errs), n, pending, errs)
		}
	}
}

func backendErrors(txn statedb.ReadTxn, t statedb.Table[*service.Backend]) (errs []string) {
	for b := range t.All(txn) {
		if text := b.Status.GetError(); text != "" {
			errs = append(errs, text)
		}
	}
	return errs
}

// A refresh restores what another program changed, and a delayed Delete does not affect a frontend that exists again.
func TestRefreshed(t *testing.T) {
	r := newRig(t, service.Config{}, small())
	r.Set(t, servicetest.Many(2, 100))
	if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	before, now := r.maps(t), r.DB.ReadTxn()
	if err := r.datapath.BackendSlots.Delete(bpf.DatapathBackendSlotsKey{Set: 1, Row: 1}); err != nil {
		t.Fatal(err)
	}
	f := &frontendOps{r.Kernel}
	for row, rev := range r.Desired.Frontends.All(now) {
		if err := f.Update(t.Context(), now, rev, row); err != nil {
			t.Error(err)
		}
		if err := f.Delete(t.Context(), now, rev, row); err != nil {
			t.Error(err)
		}
	}
	if got := r.maps(t); got != before {
		t.Errorf("got\n%s\nwant\n%s", got, before)
	}
}
