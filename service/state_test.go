package service

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
)

// ids are the numbers of all Services and backends, by name.
func (w *world) ids() map[string]uint32 {
	out := map[string]uint32{}
	for s := range w.Desired.Services.All(w.DB.ReadTxn()) {
		out[s.Key().String()] = s.ID
	}
	for b := range w.Desired.Backends.All(w.DB.ReadTxn()) {
		out[b.L4().String()] = b.ID
	}
	return out
}

// Numbers outlive the agent, also one that was killed while it wrote; those of
// what is gone are not given to others soon.
func TestNumbersStay(t *testing.T) {
	dir := t.TempDir()
	o := many(6, 3)
	w := newWorld(t, Config{}, dir)
	w.set(t, o)
	first := w.ids()
	for _, name := range []string{"services.json", "backends.json"} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString(`{"id":77,"ke`)
		f.Close()
	}
	// In another order, without two, and with one more.
	next := objects{Services: []*cluster.Service{o.Services[5], o.Services[2], o.Services[3], o.Services[4]}, Slices: o.Slices[2:]}
	again := newWorld(t, Config{}, dir)
	again.set(t, next)
	seven := many(7, 3)
	next.Services, next.Slices = append(next.Services, seven.Services[6]), append(next.Slices, seven.Slices[6])
	again.set(t, next)
	used := map[uint32]string{}
	for name, id := range first {
		if strings.HasPrefix(name, "x/") {
			used[id] = name
		}
	}
	if got := again.ids(); len(got) != 5*4 {
		t.Errorf("got %d numbers, want 20", len(got))
	} else {
		for name, id := range got {
			if was, ok := first[name]; ok && was != id {
				t.Errorf("%s: number %d became %d", name, was, id)
			}
			if name == "x/s6" && used[id] != "" {
				t.Errorf("%s has number %d, which was %s's", name, id, used[id])
			}
		}
	}
}

// What is said of a backend decides who gets new flows.
func TestSetState(t *testing.T) {
	w := newWorld(t, Config{}, "")
	o := many(2, 2)
	o.Slices = append(o.Slices[:1], o.Slices[1])
	w.set(t, o)
	four := o.Services[0].ClusterIPs[0]
	set := func() string {
		f, _, ok := w.Desired.Frontends.Get(w.DB.ReadTxn(), FrontendByAddress(L4(four, 80, TCP)))
		if !ok {
			t.Fatal("no frontend")
		}
		return f.TableRow()[4]
	}
	backend := func(i int) L4Addr { return L4(o.Slices[0].Endpoints[i].Address, 8080, TCP) }
	one := w.ids()[backend(0).String()]
	for _, step := range []struct {
		backend int
		state   State
		want    string
	}{
		{0, Quarantined, "2"}, {1, Maintenance, "1"}, {0, Maintenance, "reject"}, {0, Active, "1"}, {1, Active, "1,2"},
	} {
		if err := w.SetState(backend(step.backend), step.state); err != nil {
			t.Fatal(err)
		}
		w.round(w.follow)
		if got := set(); got != step.want {
			t.Errorf("backend %d %s: got %s, want %s", step.backend+1, step.state, got, step.want)
		}
	}
	if one != 1 {
		t.Errorf("the first backend has number %d", one)
	}
	if err := w.SetState(backend(0), Terminating); err == nil {
		t.Error("terminating is not the operator's to say")
	}
}

// Tables count as initialized once the cluster is known, and Run follows it.
func TestRun(t *testing.T) {
	w := newWorld(t, Config{}, t.TempDir())
	txn := w.DB.WriteTxn(w.Tables.Services)
	known := w.Tables.Services.RegisterInitializer(txn, "test")
	txn.Commit()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	o := many(1, 1)
	txn = w.DB.WriteTxn(w.Tables.Services, w.Tables.Slices)
	w.Tables.Slices.Insert(txn, o.Slices[0])
	w.Tables.Services.Insert(txn, o.Services[0])
	txn.Commit()
	q := FrontendByAddress(L4(o.Services[0].ClusterIPs[0], 80, TCP))
	wait(ctx, t, func(r statedb.ReadTxn) (bool, <-chan struct{}) {
		_, _, changed, ok := w.Desired.Frontends.GetWatch(r, q)
		return ok, changed
	}, w.DB)
	if ok, _ := w.Desired.Frontends.Initialized(w.DB.ReadTxn()); ok {
		t.Error("frontends are initialized before the cluster is known")
	}
	txn = w.DB.WriteTxn(w.Tables.Services)
	known(txn)
	txn.Commit()
	wait(ctx, t, w.Desired.Frontends.Initialized, w.DB)
	if err := w.SetState(L4(o.Slices[0].Endpoints[0].Address, 8080, TCP), Maintenance); err != nil {
		t.Fatal(err)
	}
	wait(ctx, t, func(r statedb.ReadTxn) (bool, <-chan struct{}) {
		f, _, changed, _ := w.Desired.Frontends.GetWatch(r, q)
		return len(f.Internal) == 0, changed
	}, w.DB)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func wait(ctx context.Context, t *testing.T, done func(statedb.ReadTxn) (bool, <-chan struct{}), db *statedb.DB) {
	t.Helper()
	for {
		ok, changed := done(db.ReadTxn())
		if ok {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		}
	}
}
