package service_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/cluster/clustertest"
	"myelin/service"
	"myelin/service/servicetest"
)

// ids are the numbers of all Services and backends, by name.
func ids(w *servicetest.Cluster) map[string]uint32 {
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
	o := servicetest.Many(6, 3)
	w := servicetest.New(t, service.Config{}, dir)
	w.Set(t, o)
	first := ids(w)
	for _, name := range []string{"services.json", "backends.json"} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteString(`{"id":77,"ke`)
		f.Close()
	}
	// In another order, without two, and with one more.
	next := clustertest.Objects{
		Services: []*cluster.Service{o.Services[5], o.Services[2], o.Services[3], o.Services[4]},
		Slices:   o.Slices[2:],
	}
	again := servicetest.New(t, service.Config{}, dir)
	again.Set(t, next)
	seven := servicetest.Many(7, 3)
	next.Services, next.Slices = append(next.Services, seven.Services[6]), append(next.Slices, seven.Slices[6])
	again.Set(t, next)
	used := map[uint32]string{}
	for name, id := range first {
		if strings.HasPrefix(name, "x/") {
			used[id] = name
		}
	}
	if got := ids(again); len(got) != 5*4 {
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

// States of backends decide which of them get new flows.
func TestSetState(t *testing.T) {
	w := servicetest.New(t, service.Config{}, "")
	o := servicetest.Many(2, 2)
	o.Slices = append(o.Slices[:1], o.Slices[1])
	w.Set(t, o)
	four := o.Services[0].ClusterIPs[0]
	set := func() string {
		f, _, ok := w.Desired.Frontends.Get(w.DB.ReadTxn(),
			service.FrontendByAddress(service.L4(four, 80, service.TCP)))
		if !ok {
			t.Fatal("no frontend")
		}
		return f.TableRow()[4]
	}
	backend := func(i int) service.L4Addr { return service.L4(o.Slices[0].Endpoints[i].Address, 8080, service.TCP) }
	one := ids(w)[backend(0).String()]
	for _, step := range []struct {
		backend int
		state   service.State
		want    string
	}{
		{0, service.Quarantined, "2"}, {1, service.Maintenance, "1"}, {0, service.Maintenance, "reject"},
		{0, service.Active, "1"}, {1, service.Active, "1,2"},
	} {
		if err := w.SetState(backend(step.backend), step.state); err != nil {
			t.Fatal(err)
		}
		w.Step()
		if got := set(); got != step.want {
			t.Errorf("backend %d %s: got %s, want %s", step.backend+1, step.state, got, step.want)
		}
	}
	if one != 1 {
		t.Errorf("the first backend has number %d", one)
	}
	if err := w.SetState(backend(0), service.Terminating); err == nil {
		t.Error("terminating is not the operator's to say")
	}
}

// Tables count as initialized once the cluster is known, and Run follows it.
func TestRun(t *testing.T) {
	w := servicetest.New(t, service.Config{}, t.TempDir())
	txn := w.DB.WriteTxn(w.Tables.Services)
	known := w.Tables.Services.RegisterInitializer(txn, "test")
	txn.Commit()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	o := servicetest.Many(1, 1)
	txn = w.DB.WriteTxn(w.Tables.Services, w.Tables.Slices)
	w.Tables.Slices.Insert(txn, o.Slices[0])
	w.Tables.Services.Insert(txn, o.Services[0])
	txn.Commit()
	q := service.FrontendByAddress(service.L4(o.Services[0].ClusterIPs[0], 80, service.TCP))
	servicetest.Wait(ctx, t, func(r statedb.ReadTxn) (bool, <-chan struct{}) {
		_, _, changed, ok := w.Desired.Frontends.GetWatch(r, q)
		return ok, changed
	}, w.DB)
	if ok, _ := w.Desired.Frontends.Initialized(w.DB.ReadTxn()); ok {
		t.Error("frontends are initialized before the cluster is known")
	}
	txn = w.DB.WriteTxn(w.Tables.Services)
	known(txn)
	txn.Commit()
	servicetest.Wait(ctx, t, w.Desired.Frontends.Initialized, w.DB)
	if err := w.SetState(service.L4(o.Slices[0].Endpoints[0].Address, 8080, service.TCP),
		service.Maintenance); err != nil {
		t.Fatal(err)
	}
	servicetest.Wait(ctx, t, func(r statedb.ReadTxn) (bool, <-chan struct{}) {
		f, _, changed, _ := w.Desired.Frontends.GetWatch(r, q)
		return len(f.Internal) == 0, changed
	}, w.DB)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
