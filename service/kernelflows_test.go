package service

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/cluster/clustertest"
	"myelin/flow"
)

const (
	replied = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_REPLIED)
	closing = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_CLOSING)
)

// flowTo writes a flow of service to a backend, from client port; it was seen
// idle ago.
func (r *rig) flowTo(t testing.TB, v6 bool, proto Protocol, port uint16, service, backend uint32, flags uint8, idle time.Duration) {
	t.Helper()
	clock, err := flow.ReadClock(1000)
	if err != nil {
		t.Fatal(err)
	}
	client := bpf.Addr(netip.MustParseAddr(clustertest.Named("@node9", v6, false)))
	key := bpf.DatapathNatEntryKey{Addr: client, Port: bpf.Port(port), Proto: uint8(proto)}
	row := bpf.DatapathNatEntry{
		Client: client, ClientPort: key.Port, Service: service, BackendId: backend, Flags: flags, Packets: [2]uint64{3, 2},
		Seen: uint32(clock.Ticks) - uint32(idle/time.Millisecond),
	}
	if flags != 0 {
		row.TcpFlags[0] = flow.ACK // the client has completed the handshake
	}
	if err := r.datapath.NatEntries.Put(key, row); err != nil {
		t.Fatal(err)
	}
}

// flowTexts are the flows by client port.
func (r *rig) flowTexts(t testing.TB) string {
	t.Helper()
	var out []string
	each(t, r.datapath.NatEntries, func(key *bpf.DatapathNatEntryKey, row *bpf.DatapathNatEntry) {
		out = append(out, fmt.Sprintf("%s %d to %d %s", Protocol(key.Proto), bpf.Port(key.Port), row.BackendId, translationState(row)))
		if row.Packets != [2]uint64{3, 2} {
			t.Errorf("counts of %+v were lost", row)
		}
	})
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func (r *rig) loadTexts(t testing.TB) string {
	t.Helper()
	var out []string
	each(t, r.datapath.Loads, func(id, n *uint32) { out = append(out, fmt.Sprintf("%d:%d", *id, *n)) })
	slices.Sort(out)
	return strings.Join(out, " ")
}

// Flows of a backend that goes end: those of TCP so that their clients are told
// so, others so that the next packet goes elsewhere. It is the same if the
// backend went while no agent ran.
func TestFlowsOfGone(t *testing.T) {
	const before = "SCTP 4 to 2 replied, TCP 1 to 1 replied, TCP 2 to 2 replied, TCP 5 to 0 replied, TCP 6 to 2 replied, UDP 3 to 2 unreplied"
	for _, v6 := range []bool{false, true} {
		for _, restarted := range []bool{false, true} {
			r := newRig(t, Config{}, small())
			r.world.set(t, clustertest.Parse(t, sized(v6, 2, 0, "1", "Cluster")))
			if err := r.sync(); err != nil {
				t.Fatal(err)
			}
			r.flowTo(t, v6, TCP, 1, 1, 1, replied, 0)
			r.flowTo(t, v6, TCP, 2, 1, 2, replied, 0)
			r.flowTo(t, v6, UDP, 3, 1, 2, 0, 0)
			r.flowTo(t, v6, SCTP, 4, 1, 2, replied, 0)
			r.flowTo(t, v6, TCP, 5, 0, 0, replied, 0)           // another node knows to whom
			r.flowTo(t, v6, TCP, 6, 1, 2, replied, 3*time.Hour) // over, for the collector
			r.world.set(t, clustertest.Parse(t, sized(v6, 1, 0, "1", "Cluster")))
			if err := r.walk(); err != nil {
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
			if len(r.flows) == 0 {
				t.Error("nobody is asked to look")
			}
			for range 2 { // the second time there is nothing to do
				if err := r.walk(); err != nil {
					t.Fatal(err)
				}
			}
			if got, want := r.flowTexts(t), "TCP 1 to 1 replied, TCP 2 to 2 gone, TCP 5 to 0 replied, TCP 6 to 2 replied"; got != want {
				t.Errorf("restarted %v: got %s, want %s", restarted, got, want)
			}
		}
	}
}

// A walk that fails is made again, and ends what it should have.
func TestFlowsOfGoneLater(t *testing.T) {
	r := newRig(t, Config{}, small())
	r.flowTo(t, false, UDP, 1, 1, 7, 0, 0)
	r.stray()
	r.before = func(string) error { return fmt.Errorf("no") }
	if err := r.walk(); err == nil || !strings.Contains(err.Error(), "end a flow whose backend has gone") {
		t.Errorf("got error %v", err)
	}
	r.before = nil
	if err := r.walk(); err != nil {
		t.Error(err)
	}
	if got := r.flowTexts(t); got != "" {
		t.Errorf("left: %s", got)
	}
}

// Loads are counted for backends of Services that want to know, over all flows
// that live, and are gone when nobody wants to know.
func TestLoads(t *testing.T) {
	const least = "service.cilium.io/lb-algorithm: least-conn"
	for _, v6 := range []bool{false, true} {
		r := newRig(t, Config{}, small())
		for i, want := range []struct{ annotations, loads string }{{"", ""}, {least, "1:2 2:1"}, {"", ""}} {
			r.world.set(t, clustertest.Parse(t, sizedAs(v6, 2, 0, "1", "Cluster", want.annotations, "")))
			if err := r.sync(); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				r.flowTo(t, v6, TCP, 1, 1, 1, replied, 0)
				r.flowTo(t, v6, UDP, 2, 9, 1, 0, time.Second) // another Service's
				r.flowTo(t, v6, TCP, 3, 1, 2, replied, 0)
				r.flowTo(t, v6, TCP, 4, 1, 2, closing, 0)
				r.flowTo(t, v6, UDP, 5, 1, 2, 0, time.Hour) // over
				r.flowTo(t, v6, UDP, 6, 9, 3, 0, 0)         // nobody wants to know
			}
			if (len(r.flows) > 0) != (i > 0) {
				t.Errorf("step %d: somebody is asked to look: %v", i, len(r.flows) > 0)
			}
			if err := r.walk(); err != nil {
				t.Fatal(err)
			}
			if got := r.loadTexts(t); got != want.loads || r.counting != (want.loads != "") {
				t.Errorf("step %d: got loads %q, want %q; counting: %v", i, got, want.loads, r.counting)
			}
			select {
			case <-r.flows:
			default:
			}
		}
	}
}

// attend walks when it is asked, then every second while there is something to
// count, and ends.
func TestAttend(t *testing.T) {
	r := newRig(t, Config{Algorithm: LeastConnections}, small())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.attend(ctx) }()
	r.world.set(t, clustertest.Parse(t, sized(false, 2, 0, "1", "Cluster")))
	if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	for port, want := range []string{"1:1", "1:2", "1:3"} {
		r.flowTo(t, false, TCP, uint16(port), 1, 1, replied, 0)
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

// The collector deletes what the datapath takes for gone, and nothing else.
func TestCollector(t *testing.T) {
	direct := uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_DSR)
	for _, v6 := range []bool{false, true} {
		r := newRig(t, Config{}, small())
		for i, f := range []struct {
			proto Protocol
			flags uint8
			idle  time.Duration
		}{
			{TCP, 0, 50 * time.Second}, {TCP, 0, 70 * time.Second}, {TCP, replied, time.Hour}, {TCP, replied, 3 * time.Hour},
			{TCP, replied | closing, 5 * time.Second}, {TCP, replied | closing, 20 * time.Second}, {TCP, direct, time.Hour},
			{UDP, replied, 50 * time.Second}, {UDP, replied, 70 * time.Second}, {SCTP, 0, 70 * time.Second},
		} {
			r.flowTo(t, v6, f.proto, uint16(i), 1, 1, f.flags, f.idle)
		}
		c := NewCollector(r.datapath, r.log)
		if err := c.Pass(t.Context(), 1000); err != nil {
			t.Fatal(err)
		}
		const want = "TCP 0 to 1 unreplied, TCP 2 to 1 replied, TCP 4 to 1 closing, TCP 6 to 1 unreplied, UDP 7 to 1 replied"
		if got := r.flowTexts(t); got != want || c.Count.Load() != 5 {
			t.Errorf("%d were over, left are %s, want %s", c.Count.Load(), got, want)
		}
	}
}

// A row that another flow has by then is left as it is.
func TestEndOfAnother(t *testing.T) {
	r := newRig(t, Config{}, small())
	r.flowTo(t, false, TCP, 1, 1, 5, replied, 0)
	var key bpf.DatapathNatEntryKey
	each(t, r.datapath.NatEntries, func(k *bpf.DatapathNatEntryKey, _ *bpf.DatapathNatEntry) { key = *k })
	w := walk{kernel: r.Kernel, known: map[uint32]bool{4: false, 5: true}}
	if err := w.end(key); err != nil {
		t.Error(err)
	}
	if got := r.flowTexts(t); got != "TCP 1 to 5 replied" {
		t.Errorf("got %s", got)
	}
	if err := r.datapath.NatEntries.Delete(key); err != nil {
		t.Fatal(err)
	}
	var row bpf.DatapathNatEntry
	if err := w.end(key); err != nil || r.datapath.NatEntries.Lookup(key, &row) == nil {
		t.Errorf("a row that went is back, or %v", err)
	}
}
