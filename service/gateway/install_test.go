package gateway

import (
	"testing"
	"time"

	apiv1 "myelin/api/v1"
	"myelin/bpf"
)

// eachFamily runs a test for both.
func eachFamily(t *testing.T, run func(t *testing.T, v6 bool)) {
	t.Helper()
	for name, v6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) { run(t, v6) })
	}
}

// Only flows that this node itself would forward in that way get an entry.
func TestInstallHostile(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		r := newRig(t, v6, 4096, "loadBalancer.mode: dsr")
		for _, tc := range []struct {
			name, want string
			change     func(*apiv1.PeerFlow)
		}{
			{"malformed", "malformed", func(m *apiv1.PeerFlow) { m.ClientAddress = make([]byte, 1000) }},
			{"frontend", "no_frontend", func(m *apiv1.PeerFlow) { m.FrontendAddress = r.addr("@ext2").AsSlice() }},
			{"port", "no_frontend", func(m *apiv1.PeerFlow) { m.FrontendPort = 81 }},
			{"protocol", "no_frontend", func(m *apiv1.PeerFlow) { m.Protocol = 17 }},
			{"own address", "no_frontend", func(m *apiv1.PeerFlow) { m.FrontendAddress = r.addr("@node1").AsSlice() }},
			{"internal address", "no_frontend", func(m *apiv1.PeerFlow) {
				m.FrontendAddress = r.addr("@vip1").AsSlice()
			}},
			{"foreign backend", "no_backend", func(m *apiv1.PeerFlow) { m.BackendAddress = r.addr("@pod9").AsSlice() }},
			{"port of the backend", "no_backend", func(m *apiv1.PeerFlow) { m.BackendPort = 22 }},
			{"source range", "source_range", func(m *apiv1.PeerFlow) {
				m.FrontendAddress, m.ClientAddress = r.addr("@lb1").AsSlice(), r.addr("@node8").AsSlice()
			}},
			{"SNAT for a Service with DSR", "forwarding", func(m *apiv1.PeerFlow) { r.snat(m, 20000) }},
			{"a backend that is this node", "forwarding", func(m *apiv1.PeerFlow) {
				m.BackendAddress = r.addr("@pod4").AsSlice()
			}},
			{"expired", "outdated", func(m *apiv1.PeerFlow) { m.IdleMs = 8_001_000 }},
			{"expired long ago", "outdated", func(m *apiv1.PeerFlow) { m.IdleMs, m.AgeSeconds = 1<<31, 1<<31 }},
		} {
			m := r.flow(40000)
			tc.change(m)
			if got := r.install(m); got != tc.want {
				t.Errorf("%s: got %s, want %s", tc.name, got, tc.want)
			}
		}
		if got := r.entries(); len(got) > 0 {
			t.Errorf("entries %v", got)
		}
		m := r.flow(40001)
		m.FrontendAddress = r.addr("@lb1").AsSlice()
		if got := r.install(m); got != "installed" {
			t.Errorf("a client in the source ranges: %s", got)
		}
	})
}

// No peer changes a flow of this node, and none changes a flow into what it was before.
func TestInstallOverLocal(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		r := newRig(t, v6, 4096, "loadBalancer.mode: dsr")
		pod1, pod2 := r.named("@pod1:8080"), r.named("@pod2:8080")
		r.forward(r.flow(40000), 1)
		theft := r.flow(40000)
		theft.BackendAddress = r.addr("@pod2").AsSlice()
		end := &apiv1.PeerFlow{ClientAddress: theft.ClientAddress, ClientPort: 40000, Protocol: 6, State: ended,
			FrontendAddress: theft.FrontendAddress, FrontendPort: 80}
		for what, m := range map[string]*apiv1.PeerFlow{"another backend": theft, "its end": end} {
			if got := r.install(m); got != "local" {
				t.Errorf("%s: %s", what, got)
			}
		}
		if got := r.entries()[40000]; got != pod1 {
			t.Errorf("got %s", got)
		}
		steps := func(port int, more ...func(*apiv1.PeerFlow)) *apiv1.PeerFlow {
			m := r.flow(port)
			for _, change := range more {
				change(m)
			}
			return m
		}
		toPod2 := func(m *apiv1.PeerFlow) { m.BackendAddress = r.addr("@pod2").AsSlice() }
		closes := func(m *apiv1.PeerFlow) { m.State = closing }
		ends := func(m *apiv1.PeerFlow) { m.State = ended }
		old := func(m *apiv1.PeerFlow) { m.IdleMs = 10_000 }
		for i, step := range []struct {
			m          *apiv1.PeerFlow
			want, then string
		}{
			{steps(40001), "installed", pod1 + " learned"},
			{steps(40001, toPod2, old), "outdated", pod1 + " learned"},
			{steps(40001, toPod2), "installed", pod2 + " learned"},
			{steps(40001, toPod2, closes), "installed", pod2 + " closing learned"},
			{steps(40001, old, ends), "outdated", pod2 + " closing learned"},
			{steps(40001, ends), "installed", ""},
			{steps(40001, ends), "outdated", ""},
		} {
			if got := r.install(step.m); got != step.want {
				t.Errorf("step %d: %s, want %s", i, got, step.want)
			}
			if got := r.entries()[40001]; got != step.then {
				t.Errorf("step %d: got %q, want %q", i, got, step.then)
			}
		}
	})
}

// With SNAT a flow needs an address and a port of this node that no other flow has.
func TestInstallSNAT(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		r := newRig(t, v6, 4096, "")
		install := func(what, want string, change func(*apiv1.PeerFlow)) {
			t.Helper()
			m := r.flow(40000)
			r.snat(m, 20000)
			change(m)
			if got := r.install(m); got != want {
				t.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		install("DSR for a Service with SNAT", "forwarding", func(m *apiv1.PeerFlow) {
			m.SnatAddress, m.SnatPort = nil, 0
		})
		install("an address of another node", "snat_address", func(m *apiv1.PeerFlow) {
			m.SnatAddress = r.addr("@node2").AsSlice()
		})
		install("a port of this node's own", "snat_address", func(m *apiv1.PeerFlow) { m.SnatPort = 22 })
		install("", "installed", func(*apiv1.PeerFlow) {})
		install("again", "installed", func(*apiv1.PeerFlow) {})
		install("the same port for another client", "snat_port", func(m *apiv1.PeerFlow) { m.ClientPort = 40001 })
		install("the same port to another backend", "installed", func(m *apiv1.PeerFlow) {
			m.ClientPort, m.BackendAddress = 40002, r.addr("@pod2").AsSlice()
		})
		if n, all := r.replies(), r.entries(); n != 2 || len(all) != 2 {
			t.Errorf("%d entries of replies of %v", n, all)
		}
		install("another port", "installed", func(m *apiv1.PeerFlow) { m.SnatPort = 20007 })
		install("its end", "installed", func(m *apiv1.PeerFlow) { m.State, m.ClientPort = ended, 40002 })
		if n, all := r.replies(), r.entries(); n != 1 || len(all) != 1 {
			t.Errorf("%d entries of replies of %v", n, all)
		}
	})
}

// Flows of peers take no more than half of the table, and nothing when it is nearly full.
func TestInstallFull(t *testing.T) {
	r := newRig(t, false, 4096, "loadBalancer.mode: dsr")
	for i := range 2060 {
		want := "installed"
		if i >= 2048 {
			want = "full"
		}
		if got := r.install(r.flow(40000 + i)); got != want {
			t.Fatalf("flow %d: %s, want %s", i, got, want)
		}
	}
	if got := r.install(r.flow(40000)); got != "installed" {
		t.Errorf("what is known is %s", got)
	}
	r.installer.learned.Store(0)
	r.installer.entries.Store(4096 - 409)
	if got := r.install(r.flow(50000)); got != "full" {
		t.Errorf("the table is nearly full: %s", got)
	}
}

// A packet that arrives makes a peer's flow one of this node.
func TestLearnedBecomesLocal(t *testing.T) {
	r := newRig(t, false, 4096, "loadBalancer.mode: dsr")
	if got := r.install(r.flow(40000)); got != "installed" {
		t.Fatal(got)
	}
	key := r.forward(r.flow(40000), 1) // as nat_entry_count does
	var e bpf.DatapathNatEntry
	if ok, err := bpf.Get(r.Datapath.NatEntries, &key, &e); !ok || err != nil || learned(&e) {
		t.Fatal(ok, err)
	}
	if got := r.install(r.flow(40000)); got != "local" {
		t.Errorf("got %s", got)
	}
	if err := r.walk.pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f := r.Flows(); f.Own != 1 || f.Active != 1 || f.Learned != 0 || time.Since(f.At) > time.Minute {
		t.Errorf("got %+v", f)
	}
}
