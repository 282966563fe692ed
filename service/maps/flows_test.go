package maps

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/cluster/clustertest"
	"myelin/service"
	"myelin/service/nat/nattest"
	"myelin/service/servicetest"
)

// flowTo writes the NAT entry of a flow from a client's port to a backend of a Service.
func (r *rig) flowTo(
	t testing.TB, v6 bool, proto service.Protocol, port uint16, serviceID, backend uint32, flags uint8,
	idle time.Duration,
) {
	t.Helper()
	nattest.Put(t, r.datapath, nattest.Flow{
		V6: v6, Protocol: proto, Port: port, Service: serviceID, Backend: backend, Flags: flags, Idle: idle,
	})
}

func (r *rig) flowTexts(t testing.TB) string { return nattest.Texts(t, r.datapath) }

func (r *rig) loadTexts(t testing.TB) string {
	t.Helper()
	var out []string
	each(t, r.datapath.Loads, func(id, n *uint32) { out = append(out, fmt.Sprintf("%d:%d", *id, *n)) })
	slices.Sort(out)
	return strings.Join(out, " ")
}

// Flows of a deleted backend end: TCP clients get a reset, and the next packet of other protocols begins a flow to
// another backend. It is the same if the backend was deleted while no agent ran.
func TestFlowsOfGone(t *testing.T) {
	const before = "SCTP 4 to 2 replied, TCP 1 to 1 replied, TCP 2 to 2 replied, TCP 5 to 0 replied, TCP 6 to 2 " +
		"replied, UDP 3 to 2 unreplied"
	for _, v6 := range []bool{false, true} {
		for _, restarted := range []bool{false, true} {
			r := newRig(t, service.Config{}, small())
			r.Set(t, clustertest.Parse(t, servicetest.Sized(v6, 2, 0, "1", "Cluster")))
			if err := r.sync(); err != nil {
				t.Fatal(err)
			}
			r.flowTo(t, v6, service.TCP, 1, 1, 1, nattest.Replied, 0)
			r.flowTo(t, v6, service.TCP, 2, 1, 2, nattest.Replied, 0)
			r.flowTo(t, v6, service.UDP, 3, 1, 2, 0, 0)
			r.flowTo(t, v6, service.SCTP, 4, 1, 2, nattest.Replied, 0)
			r.flowTo(t, v6, service.TCP, 5, 0, 0, nattest.Replied, 0)           // selected by another node
			r.flowTo(t, v6, service.TCP, 6, 1, 2, nattest.Replied, 3*time.Hour) // expired; the collector deletes it
			r.Set(t, clustertest.Parse(t, servicetest.Sized(v6, 1, 0, "1", "Cluster")))
			if err := r.scanFlows(); err != nil {
				t.Fatal(err)
			}
			if got := r.flowTexts(t); got != before {
				t.Fatalf("before anybody goes: got %s", got)
			}
			if err := r.sync(); err != nil {
				t.Fatal(err)
			}
			if restarted {
				r.agent(t, r.datapath)
				r.again(t)
			}
			if len(r.flowScanWake) == 0 {
				t.Error("no scan is requested")
			}
			for range 2 { // the second time there is nothing to do
				if err := r.scanFlows(); err != nil {
					t.Fatal(err)
				}
			}
			const want = "TCP 1 to 1 replied, TCP 2 to 2 gone, TCP 5 to 0 replied, TCP 6 to 2 replied"
			if got := r.flowTexts(t); got != want {
				t.Errorf("restarted %v: got %s, want %s", restarted, got, want)
			}
		}
	}
}

// A scan that failed is repeated and then ends those flows.
func TestFlowsOfGoneLater(t *testing.T) {
	r := newRig(t, service.Config{}, small())
	r.flowTo(t, false, service.UDP, 1, 1, 7, 0, 0)
	r.endFlowsOfGone()
	r.before = func(string) error { return fmt.Errorf("no") }
	if err := r.scanFlows(); err == nil || !strings.Contains(err.Error(), "end a flow whose backend is gone") {
		t.Errorf("got error %v", err)
	}
	r.before = nil
	if err := r.scanFlows(); err != nil {
		t.Error(err)
	}
	if got := r.flowTexts(t); got != "" {
		t.Errorf("left: %s", got)
	}
}

// Loads are counted for backends of Services with least-conn, over all flows that have not expired, and are deleted
// when no Service uses least-conn any more.
func TestLoads(t *testing.T) {
	const least = "service.cilium.io/lb-algorithm: least-conn"
	for _, v6 := range []bool{false, true} {
		r := newRig(t, service.Config{}, small())
		for i, want := range []struct{ annotations, loads string }{{"", ""}, {least, "1:2 2:1"}, {"", ""}} {
			r.Set(t, clustertest.Parse(t, servicetest.SizedAs(v6, 2, 0, "1", "Cluster", want.annotations, "")))
			if err := r.sync(); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				r.flowTo(t, v6, service.TCP, 1, 1, 1, nattest.Replied, 0)
				r.flowTo(t, v6, service.UDP, 2, 9, 1, 0, time.Second) // another Service's
				r.flowTo(t, v6, service.TCP, 3, 1, 2, nattest.Replied, 0)
				r.flowTo(t, v6, service.TCP, 4, 1, 2, nattest.Closing, 0)
				r.flowTo(t, v6, service.UDP, 5, 1, 2, 0, time.Hour) // over
				r.flowTo(t, v6, service.UDP, 6, 9, 3, 0, 0)         // of a Service without least-conn
			}
			if (len(r.flowScanWake) > 0) != (i > 0) {
				t.Errorf("step %d: a scan is requested: %v", i, len(r.flowScanWake) > 0)
			}
			if err := r.scanFlows(); err != nil {
				t.Fatal(err)
			}
			if got := r.loadTexts(t); got != want.loads || r.countsLoads != (want.loads != "") {
				t.Errorf("step %d: got loads %q, want %q; counting: %v", i, got, want.loads, r.countsLoads)
			}
			select {
			case <-r.flowScanWake:
			default:
			}
		}
	}
}

// runFlowScans scans on request, then every second while there are loads to count, and ends with its context.
func TestAttend(t *testing.T) {
	r := newRig(t, service.Config{Algorithm: service.LeastConnections}, small())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.runFlowScans(ctx) }()
	r.Set(t, clustertest.Parse(t, servicetest.Sized(false, 2, 0, "1", "Cluster")))
	if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	for port, want := range []string{"1:1", "1:2", "1:3"} {
		r.flowTo(t, false, service.TCP, uint16(port), 1, 1, nattest.Replied, 0)
		deadline := time.Now().Add(20 * time.Second)
		for r.loadTexts(t) != want && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
		if got := r.loadTexts(t); got != want {
			t.Errorf("after %d flows: got loads %q", port+1, got)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// An entry that belongs to another flow by now is not changed.
func TestEndOfAnother(t *testing.T) {
	r := newRig(t, service.Config{}, small())
	r.flowTo(t, false, service.TCP, 1, 1, 5, nattest.Replied, 0)
	var key bpf.DatapathNatTuple
	each(t, r.datapath.NatEntries, func(k *bpf.DatapathNatTuple, _ *bpf.DatapathNatEntry) { key = *k })
	w := flowScan{kernel: r.Kernel, known: map[uint32]bool{4: false, 5: true}}
	if err := w.endFlow(key); err != nil {
		t.Error(err)
	}
	if got := r.flowTexts(t); got != "TCP 1 to 5 replied" {
		t.Errorf("got %s", got)
	}
	if err := r.datapath.NatEntries.Delete(key); err != nil {
		t.Fatal(err)
	}
	var row bpf.DatapathNatEntry
	if err := w.endFlow(key); err != nil || r.datapath.NatEntries.Lookup(key, &row) == nil {
		t.Errorf("a row that went is back, or %v", err)
	}
}
