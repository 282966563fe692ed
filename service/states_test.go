package service_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"myelin/cluster"
	"myelin/cluster/clustertest"
	"myelin/service"
	"myelin/service/servicetest"
)

// States that an operator has set survive a restart, also those of backends that don't exist.
func TestStatesStay(t *testing.T) {
	dir := t.TempDir()
	o := servicetest.Many(1, 3)
	at := func(i int) service.L4Addr { return service.L4(o.Slices[0].Endpoints[i].Address, 8080, service.TCP) }
	elsewhere, err := service.ParseL4("[fd00::77]:53/udp")
	if err != nil {
		t.Fatal(err)
	}
	states := func(w *servicetest.Cluster) string {
		var out []string
		for i := range 3 {
			b, _, ok := w.Desired.Backends.Get(w.DB.ReadTxn(), service.BackendByAddress(at(i)))
			if !ok {
				t.Fatalf("no backend %s", at(i))
			}
			out = append(out, b.State.String())
		}
		return strings.Join(out, " ")
	}
	w := servicetest.New(t, service.Config{}, dir)
	w.Set(t, o)
	for _, say := range []struct {
		of    service.L4Addr
		state service.State
	}{{at(0), service.Maintenance}, {at(1), service.Quarantined}, {at(2), service.Maintenance},
		{elsewhere, service.Quarantined}, {at(2), service.Active}} {
		if err := w.SetState(say.of, say.state); err != nil {
			t.Fatal(err)
		}
	}
	again := servicetest.New(t, service.Config{}, dir)
	again.Set(t, o)
	if got := states(again); got != "maintenance quarantined active" {
		t.Errorf("after a restart: %s", got)
	}
	if got := again.OperatorState(elsewhere); got != service.Quarantined {
		t.Errorf("%s is %s", elsewhere, got)
	}
	// A file that makes no sense is as none, and what can't be kept is not in force.
	path := filepath.Join(dir, service.StatesFile)
	if err := os.WriteFile(path, []byte(`{"10.0.0.1:1/TCP":"asleep"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	third := servicetest.New(t, service.Config{}, dir)
	third.Set(t, o)
	if got := states(third); got != "active active active" {
		t.Errorf("after a bad file: %s", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(path, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := third.SetState(at(0), service.Maintenance); err == nil || third.OperatorState(at(0)) != service.Active {
		t.Errorf("got %v, and the state %s", err, third.OperatorState(at(0)))
	}
}

// A state that an operator has set is deleted with its backend, whether or not an agent runs, and does not apply to the
// next backend with the address. A state of an address without a backend applies to the next one.
func TestStatesEndWithTheirBackend(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, restart := range []bool{false, true} {
			dir, o := t.TempDir(), servicetest.Many(2, 3)
			at := map[bool]int{false: 0, true: 1}[v6]
			parts := func(n int) clustertest.Objects {
				part := *o.Slices[at]
				part.Endpoints = part.Endpoints[:n]
				return clustertest.Objects{Services: o.Services[at : at+1], Slices: []*cluster.EndpointSlice{&part}}
			}
			addr := func(i int) service.L4Addr {
				return service.L4(o.Slices[at].Endpoints[i].Address, 8080, service.TCP)
			}
			w := servicetest.New(t, service.Config{}, dir)
			w.Set(t, parts(2))
			for i := range 3 {
				if err := w.SetState(addr(i), service.Maintenance); err != nil {
					t.Fatal(err)
				}
			}
			drained := servicetest.With(parts(2).Slices[0], 1, servicetest.Drain)
			w.PutSlice(t, drained)
			if got := w.OperatorState(addr(1)); got != service.Maintenance {
				t.Errorf("while it terminates: %s", got)
			}
			if restart {
				w = servicetest.New(t, service.Config{}, dir)
			}
			w.Set(t, parts(1))
			w = servicetest.New(t, service.Config{}, dir)
			w.Set(t, parts(3))
			for i, want := range []service.State{service.Maintenance, service.Active, service.Maintenance} {
				b, _, ok := w.Desired.Backends.Get(w.DB.ReadTxn(), service.BackendByAddress(addr(i)))
				if !ok || b.State != want {
					t.Errorf("restart %t: %s: got %v, want %s", restart, addr(i), b, want)
				}
			}
		}
	}
}

// A health check of this node's own quarantines a backend for one Service alone.
func TestFailing(t *testing.T) {
	o := servicetest.Many(2, 2)
	o.Slices[0].Endpoints[0].Failing = true
	w := servicetest.New(t, service.Config{}, "")
	w.Set(t, o)
	want := map[string]string{"s0": "2", "s1": "1,2"}
	if o.Slices[1].Endpoints[0].Address != o.Slices[0].Endpoints[0].Address {
		want["s1"] = "3,4"
	}
	for _, s := range o.Services {
		f, _, ok := w.Desired.Frontends.Get(w.DB.ReadTxn(),
			service.FrontendByAddress(service.L4(s.ClusterIPs[0], 80, service.TCP)))
		if got := f.TableRow()[4]; !ok || got != want[s.Name] {
			t.Errorf("%s: got %s, want %s", s.Name, got, want[s.Name])
		}
	}
	next := *o.Slices[0]
	next.Endpoints = append(next.Endpoints[:0:0], next.Endpoints...)
	next.Endpoints[1].Failing = true
	o.Slices[0] = &next
	w.Set(t, o)
	f, _, _ := w.Desired.Frontends.Get(w.DB.ReadTxn(),
		service.FrontendByAddress(service.L4(o.Services[0].ClusterIPs[0], 80, service.TCP)))
	if got := f.TableRow()[4]; got != "2,1" {
		t.Errorf("all fail: got %s, want 2,1", got)
	}
}

func TestParseL4(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1:80/TCP", "192.0.2.1:80/udp": "192.0.2.1:80/UDP",
		"[2001:db8::1]:53/SCTP": "[2001:db8::1]:53/SCTP",
		"192.0.2.1":             "", "192.0.2.1:0": "", "192.0.2.1:80/": "", "192.0.2.1:80/ICMP": "",
		"[fe80::1%eth0]:80":   "",
		"[::ffff:1.2.3.4]:80": "",
		"2001:db8::1:80":      "", "": "", "name:80": "", "192.0.2.1:65536": "",
	} {
		a, err := service.ParseL4(text)
		if got := a.String(); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: got %s, %v", text, got, err)
		}
	}
}
