package hubble

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/event"
	"myelin/hubble/consumer"
	"myelin/service/sockdiag"
)

// watched are connections that a test changes between passes.
type watched struct {
	*Connections
	t     *testing.T
	clock time.Duration
	ring  *Ring
	list  map[string][]sockdiag.Connection
	errs  map[string]error
	pods  []ConnectionPod
	read  uint64
}

func watch(t *testing.T, capacity int) *watched {
	t.Helper()
	w := &watched{t: t, clock: time.Hour, list: map[string][]sockdiag.Connection{}, errs: map[string]error{},
		pods: []ConnectionPod{{Slot: 2, Namespace: "client", IPv4: netip.MustParseAddr("10.0.1.2")}}}
	w.ring = newRing(t, capacity)
	recorder := &Recorder{Ring: w.ring}
	w.Connections = &Connections{
		Log: slog.New(slog.DiscardHandler), Capacity: w.ring.Capacity, Interval: 5 * time.Second,
		Pods: func() []ConnectionPod { return w.pods }, Insert: func(list []event.Raw) {
			for i := range list {
				recorder.Record(&list[i])
			}
		},
		List: func(path string) ([]sockdiag.Connection, error) { return w.list[path], w.errs[path] },
		Now:  func() (time.Duration, error) { return w.clock, nil },
	}
	return w
}

// connection is one of the client's, from a port to 192.0.2.1:443.
func connection(port uint16, sent, sentBytes, received, receivedBytes uint64) sockdiag.Connection {
	return sockdiag.Connection{Cookie: uint64(port), Local: netip.AddrPortFrom(netip.MustParseAddr("10.0.1.2"), port),
		Remote: netip.MustParseAddrPort("192.0.2.1:443"), Sent: sent, SentBytes: sentBytes, Received: received,
		ReceivedBytes: receivedBytes}
}

// reports passes time, and returns the reports since the last call: "FROM>TO PACKETS BYTES".
func (w *watched) reports(pass time.Duration) (list []string) {
	w.t.Helper()
	w.clock += pass
	w.Report()
	for ; w.read < w.ring.Next(); w.read++ {
		var raw event.Raw
		if !w.ring.Read(w.read, &raw) || raw.Type != event.Report {
			w.t.Fatalf("%+v", raw)
		}
		v := viewOf(&raw)
		list = append(list, fmt.Sprintf("%d>%d %d %d", v.src.Port(), v.dst.Port(), raw.Packets, raw.Bytes))
	}
	return list
}

func (w *watched) want(what string, pass time.Duration, want ...string) {
	w.t.Helper()
	if got := w.reports(pass); fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestConnectionReports(t *testing.T) {
	w := watch(t, 255)
	w.list["client"] = []sockdiag.Connection{connection(1, 100, 5000, 90, 9000)}
	w.want("what was there before", 0)
	w.list["client"] = []sockdiag.Connection{connection(1, 103, 5700, 91, 9001), connection(2, 4, 10, 3, 20)}
	w.want("too early", 4*time.Second)
	w.want("both directions, the most bytes first", time.Second, "1>443 3 700", "443>1 1 1", "2>443 4 10", "443>2 3 20")
	w.want("nothing new", 5*time.Second)
	w.list["client"][1].Sent++ // an ACK
	w.want("without bytes", 5*time.Second, "2>443 1 0")
	w.errs["client"] = errors.New("no such thing")
	w.want("an error", 5*time.Second)
	w.errs["client"] = nil
	w.list["client"][0].ReceivedBytes, w.list["client"][0].Received = 9011, 92
	w.want("nothing is counted twice after an error", 5*time.Second, "443>1 1 10")
	w.list["client"][0].Sent = 1<<32 - 1
	w.reports(5 * time.Second)
	w.list["client"][0].Sent = 2
	w.want("the kernel's counter has wrapped around", 5*time.Second, "1>443 3 0")
	loop, other := connection(3, 1, 1, 1, 1), connection(4, 1, 1, 1, 1)
	loop.Remote = netip.AddrPortFrom(loop.Local.Addr(), 80)
	other.Local = netip.MustParseAddrPort("127.0.0.1:4")
	w.list["client"] = []sockdiag.Connection{loop, other}
	w.want("not on the pod link", 5*time.Second)
	w.pods = append(w.pods, ConnectionPod{Slot: 3, Namespace: "new", IPv4: netip.MustParseAddr("10.0.1.2")})
	w.list["new"] = []sockdiag.Connection{connection(5, 2, 1, 1, 1)}
	w.want("a pod that came later", 5*time.Second, "5>443 2 1", "443>5 1 1")
}

// TestConnectionsBound: a pass takes a part of the ring, and others are reported later; one that takes long is rare.
func TestConnectionsBound(t *testing.T) {
	w := watch(t, 255)
	w.reports(0)
	for port := range uint16(20) {
		w.list["client"] = append(w.list["client"], connection(port+1, 1, uint64(port), 0, 0))
	}
	if got := w.reports(5 * time.Second); len(got) != 15 || got[0] != "20>443 1 19" {
		t.Errorf("%q", got)
	}
	if got := w.reports(5 * time.Second); len(got) != 5 || got[4] != "1>443 1 0" {
		t.Errorf("%q", got)
	}
	list := w.List
	w.List = func(path string) ([]sockdiag.Connection, error) {
		w.clock += 100 * time.Millisecond
		return list(path)
	}
	w.reports(5 * time.Second)
	w.list["client"][0].Sent++
	w.want("the pass took a 200th of 20 s", 20*time.Second-time.Nanosecond)
	w.want("then", time.Nanosecond, "1>443 1 0")
	if wait := w.Report(); wait != 20*time.Second {
		t.Error(wait)
	}
}

// TestReportFlow: a report is a flow of the endpoint with counts, and its direction is that of the connection.
func TestReportFlow(t *testing.T) {
	w := watch(t, 255)
	w.reports(0)
	accepted := connection(80, 3, 300, 2, 200)
	accepted.Accepted = true
	w.list["client"] = []sockdiag.Connection{connection(1000, 7, 7000, 5, 500), accepted}
	w.reports(5 * time.Second)
	r := &reader{ring: w.ring, convert: newConverter(), tracker: newTracker(time.Second)}
	var flows []*flowpb.Flow
	for r.step(boot) {
		it, _, _ := r.take()
		flows = append(flows, it.flow)
	}
	if len(flows) != 4 {
		t.Fatalf("%d flows", len(flows))
	}
	for i, want := range []string{
		`"trace_observation_point":"FROM_ENDPOINT","trace_reason":"ESTABLISHED","is_reply":false`,
		`"trace_observation_point":"TO_ENDPOINT","trace_reason":"REPLY","is_reply":true`,
		`"trace_observation_point":"FROM_ENDPOINT","trace_reason":"REPLY","is_reply":true`,
		`"trace_observation_point":"TO_ENDPOINT","trace_reason":"ESTABLISHED","is_reply":false`,
	} {
		expect(t, flows[i], want, `"flags":{"ACK":true}`, `"pod_name":"client"`, `"verdict":"FORWARDED"`,
			`"traffic_direction":"`+[]string{"EGRESS", "INGRESS"}[i/2]+`"`)
		packets, bytes, ok := consumer.Counts(consumer.Extension(flows[i]))
		if want := []uint64{7, 5, 3, 2}[i]; !ok || packets != want || bytes != want*[]uint64{1000, 100}[min(i, 1)] {
			t.Errorf("flow %d: %d packets, %d bytes", i, packets, bytes)
		}
	}
}
