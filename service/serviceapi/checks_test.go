package serviceapi

import (
	"net"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/service"
	"myelin/service/serviceapi/probe"
	"myelin/service/serviceapi/probemap"
)

// TestTravels: whose checks may travel by DSR.
func TestTravels(t *testing.T) {
	check := func(via probe.Via) *probe.Check {
		c := probe.Check{Kind: probe.TCP, Via: via, Interval: time.Hour}.WithDefaults()
		return &c
	}
	for _, c := range []struct {
		node, service service.Forwarding
		check         *probe.Check
		want          bool
	}{
		{service.DSR, "", check(""), true},
		{service.DSR, "", check(probe.Datapath), true},
		{service.DSR, "", check(probe.Direct), false},
		{service.DSR, "", nil, false},
		{service.DSR, service.SNAT, check(""), false},
		{service.SNAT, "", check(""), false},
		{service.SNAT, service.DSR, check(""), true},
		{service.SNAT, service.Hybrid, check(""), true},
		{service.Hybrid, "", check(""), true},
	} {
		w := start(t, t.TempDir())
		w.params.Forwarding = c.node
		travels, changed := w.Travels(w.db.ReadTxn())
		if travels {
			t.Error("a check travels, and there is none")
		}
		s := svc("web", "192.0.2.10:80", "10.0.0.1:8080")
		s.Forwarding, s.Check = c.service, c.check
		w.upsert(t, s)
		select {
		case <-changed:
		default:
			t.Error("the change is not told")
		}
		if travels, _ = w.Travels(w.db.ReadTxn()); travels != c.want {
			t.Errorf("node %q, Service %q, check %v: got %t, want %t", c.node, c.service, c.check, travels, c.want)
		}
	}
}

// TestChecksWithoutPackets: checks are announced to the real map, from which no program reads: they go directly, and
// their first result waits until the datapath should have known them. Backends of the other family are not announced.
func TestChecksWithoutPackets(t *testing.T) {
	d := bpftest.LoadMaps(t, bpf.Settings{}, map[string]uint32{"probes": 64})
	for _, host := range backendHosts(t) {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for frontend, travels := range map[string]bool{"192.0.2.10:80": host == "10.9.0.1",
			"[2001:db8::a]:80": host != "10.9.0.1"} {
			w := start(t, t.TempDir())
			flows, err := probemap.New(d, "IPIP")
			if err != nil {
				t.Fatal(err)
			}
			w.UseFlows(flows)
			s, check := svc("web", frontend, l.Addr().String()), probe.Check{Kind: probe.TCP}.WithDefaults()
			s.Forwarding, s.Check = service.DSR, &check
			began := time.Now()
			w.upsert(t, s)
			row := w.firstResult(t, l4(l.Addr().String()))
			took := time.Since(began)
			if row.Health != Passing || row.Via != probe.Direct || travels && took < time.Second {
				t.Errorf("%s for %s: %+v after %s", host, frontend, row, took)
			}
		}
	}
}

// firstResult waits for the result of a backend's check.
func (w *world) firstResult(t *testing.T, backend service.L4Addr) *Probe {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		for p := range w.Probes.List(w.db.ReadTxn(), ProbesByBackend(backend)) {
			if p.Health != Unknown {
				return p
			}
		}
	}
	t.Fatalf("no result for %s", backend)
	return nil
}
