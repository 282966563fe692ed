package hubble

import (
	"net/netip"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/event"
)

// TestTracker tells requests from replies: "?" is neither.
func TestTracker(t *testing.T) {
	const a, b = "10.0.1.2:1000", "10.0.2.3:53"
	trace, begin := bpf.DatapathEventTypeEVENT_TRACE, bpf.DatapathEventTypeEVENT_FLOW_BEGIN
	type step struct {
		kind     bpf.DatapathEventType
		proto    uint8
		src, dst string
		tcp      uint8
		flags    bpf.DatapathEventFlag
		icmp     uint8
		at       time.Duration
		want     way
	}
	for name, steps := range map[string][]step{
		"handshake": {
			{kind: trace, proto: protoTCP, src: a, dst: b, tcp: tcpSYN, want: request},
			{kind: trace, proto: protoTCP, src: b, dst: a, tcp: tcpSYN | tcpACK, want: reply},
			{kind: trace, proto: protoTCP, src: b, dst: a, tcp: tcpFIN | tcpACK, want: reply},
			{kind: trace, proto: protoTCP, src: a, dst: b, tcp: tcpRST, want: request},
		},
		"reset of an unknown connection": {{kind: trace, proto: protoTCP, src: a, dst: b, tcp: tcpRST}},
		"the datapath knows": {
			{kind: trace, proto: protoUDP, src: b, dst: a, flags: bpf.DatapathEventFlagEVENT_REPLY, want: reply},
			{kind: trace, proto: protoUDP, src: a, dst: b, flags: bpf.DatapathEventFlagEVENT_REQUEST, want: request},
			{kind: trace, proto: protoUDP, src: b, dst: a, want: reply},
		},
		"a new entry": {
			{kind: begin, proto: protoUDP, src: a, dst: b, want: request},
			{kind: trace, proto: protoUDP, src: b, dst: a, want: reply},
		},
		"after an interval the first is the request": {
			{kind: trace, proto: protoUDP, src: b, dst: a},
			{kind: trace, proto: protoUDP, src: a, dst: b, at: 6 * time.Second, want: request},
			{kind: trace, proto: protoUDP, src: b, dst: a, at: 6 * time.Second, want: reply},
		},
		"echo": {
			{kind: trace, proto: protoICMP, src: a, dst: b, icmp: echoRequest4, want: request},
			{kind: trace, proto: protoICMP, src: b, dst: a, icmp: echoReply4, want: reply},
			{kind: trace, proto: protoICMPv6, src: b, dst: a, icmp: echoReply6, want: reply},
			{kind: trace, proto: protoICMP, src: b, dst: a, icmp: 3},
		},
		"ports in the other direction": {
			{kind: trace, proto: protoTCP, src: a, dst: b, tcp: tcpSYN, want: request},
			{kind: trace, proto: protoTCP, src: b, dst: a, tcp: tcpSYN, want: request},
			{kind: trace, proto: protoTCP, src: a, dst: b, tcp: tcpRST, want: reply},
		},
	} {
		tr := newTracker(5 * time.Second)
		for i, s := range steps {
			e := packet(s.kind, s.proto, s.src, s.dst)
			e.TcpFlags, e.Flags, e.IcmpType = s.tcp, uint16(s.flags), s.icmp
			e.TimeNs += uint64(s.at)
			v := viewOf(e)
			if got, _ := tr.see(e, &v); got != s.want {
				t.Errorf("%s: step %d is %d, want %d", name, i, got, s.want)
			}
		}
	}
}

func TestTrackerForgets(t *testing.T) {
	tr := newTracker(time.Second)
	e := packet(bpf.DatapathEventTypeEVENT_TRACE, protoTCP, "10.0.1.2:1000", "10.0.2.3:53")
	e.TcpFlags = tcpSYN
	v := viewOf(e)
	for i := range uint32(3 * maxTracked) {
		v.src = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), uint16(i>>16)+1)
		tr.see(e, &v)
		if n := len(tr.recent) + len(tr.older); n > maxTracked {
			t.Fatalf("%d flows are remembered", n)
		}
	}
	if !tr.knows(tuple{v.src, v.dst, protoTCP}) {
		t.Error("the last flow is forgotten")
	}
}

// TestRecorder shows a packet once, whichever events the datapath has for it.
func TestRecorder(t *testing.T) {
	rec := &Recorder{Ring: newRing(t, 255)}
	begin := packet(bpf.DatapathEventTypeEVENT_FLOW_BEGIN, protoTCP, "10.0.1.2:1", "10.0.2.3:2")
	allowed := *begin
	allowed.Rule[0] = 5
	end := packet(bpf.DatapathEventTypeEVENT_FLOW_END, protoTCP, "10.0.1.2:1", "10.0.2.3:2")
	end.TcpFlags = tcpFIN
	audited := *begin
	audited.Flags = uint16(bpf.DatapathEventFlagEVENT_AUDIT)
	trace := packet(bpf.DatapathEventTypeEVENT_TRACE, protoTCP, "10.0.1.2:1", "10.0.2.3:2")
	for i, tt := range []struct {
		e    *event.Raw
		kept bool
	}{
		{begin, false}, {&allowed, true}, {&audited, true}, {end, false}, {&event.Raw{Type: 99}, false}, {trace, true},
	} {
		before := rec.Ring.Next()
		rec.Record(tt.e)
		if kept := rec.Ring.Next() > before; kept != tt.kept {
			t.Errorf("event %d: kept %v", i, kept)
		}
	}
	rec.NoVerdicts = true
	drop := packet(bpf.DatapathEventTypeEVENT_DROP, protoTCP, "10.0.1.2:1", "10.0.2.3:2")
	drop.Denied = 1
	before := rec.Ring.Next()
	for _, e := range []*event.Raw{&allowed, &audited, drop} {
		rec.Record(e)
	}
	if n := rec.Ring.Next() - before; n != 1 {
		t.Errorf("%d flows without verdicts, want the drop", n)
	}
}

func TestWorkload(t *testing.T) {
	for want, pod := range map[string]*cluster.Pod{
		"Deployment web": {Name: "web-6b7c-x1y2z", Labels: map[string]string{"pod-template-hash": "6b7c"}},
		"StatefulSet db": {Name: "db-0", Labels: map[string]string{"statefulset.kubernetes.io/pod-name": "db-0",
			"controller-revision-hash": "db-1"}},
		"DaemonSet agent": {Name: "agent-x1y2z", Labels: map[string]string{"controller-revision-hash": "1"}},
		"Job backup":      {Name: "backup-x1y2z", Labels: map[string]string{"batch.kubernetes.io/job-name": "backup"}},
		"Pod client":      {Name: "client"},
	} {
		if w := Workload(pod); w.GetKind()+" "+w.GetName() != want {
			t.Errorf("%v, want %s", w, want)
		}
	}
}

func TestRate(t *testing.T) {
	var r rate
	for i := range 120 {
		r.add(boot().Add(time.Duration(i)*time.Second), uint64(max(0, i-60)*10))
	}
	if got := r.perSecond(boot().Add(120*time.Second), 600); got < 9.8 || got > 10.2 || len(r.samples) > 62 {
		t.Errorf("%v flows a second, %d samples", got, len(r.samples))
	}
}
