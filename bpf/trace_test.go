package bpf

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// traced reports forwarded packets; flows of other protocols than TCP once a minute.
func traced(s *Settings) {
	s.Monitor, s.EventRate, s.TraceRate, s.TraceSeconds, s.TraceSlots = 1, 1000, 1000, 60, 64
}

// traceStep is a packet, and the events that it causes, in the form of eventText.
type traceStep struct {
	at, in, counted string
	events          []string
}

type traceTable struct {
	name     string
	settings Settings
	steps    []traceStep
	before   func(testing.TB, *world)
}

func traceTables() []traceTable {
	const toB, toA = `eth a > gw | ip a > b | `, `eth b > gwb | ip b > a | `
	const out = `eth a > gw | ip a > world | `
	return []traceTable{
		{name: "TCP without entries", settings: settingsOf(traced), steps: []traceStep{
			{"from_pod linka", toB + `tcp 40000 > 80 S`, "FORWARD_POD", []string{"trace FORWARD_POD a:40000 > b:80 S"}},
			{"from_pod linkb", toA + `tcp 80 > 40000 SA`, "FORWARD_POD",
				[]string{"trace FORWARD_POD b:80 > a:40000 SA"}},
			{"from_pod linka", toB + `tcp 40000 > 80 A | len 100`, "FORWARD_POD", nil},
			{"from_pod linka", toB + `tcp 40000 > 80 FA`, "FORWARD_POD",
				[]string{"trace FORWARD_POD a:40000 > b:80 FA"}},
			{"from_pod linkb", toA + `tcp 80 > 40000 R`, "FORWARD_POD", []string{"trace FORWARD_POD b:80 > a:40000 R"}},
			{"from_pod linka", out + `tcp 40000 > 80 S`, "FORWARD_RESOLVE",
				[]string{"trace FORWARD_RESOLVE a:40000 > world:80 S"}},
			{"from_pod linka", out + `tcp 40000 > 80 FA`, "FORWARD_WIRE",
				[]string{"trace FORWARD_WIRE a:40000 > world:80 FA"}},
			{"from_wire eth0", `eth router > node | ip world > a | tcp 80 > 40000 SA`, "FORWARD_POD",
				[]string{"trace FORWARD_POD world:80 > a:40000 SA"}},
			{"from_wire eth0", `eth router > node | ip world > node | tcp 1 > 22 S`, "FORWARD_STACK",
				[]string{"trace FORWARD_STACK world:1 > node:22 S"}},
		}},
		{name: "other protocols", settings: settingsOf(traced), steps: []traceStep{
			{"from_pod linka", toB + `udp 40000 > 53`, "FORWARD_POD", []string{"trace FORWARD_POD a:40000 > b:53"}},
			{"from_pod linka", toB + `udp 40000 > 53`, "FORWARD_POD", nil},
			{"from_pod linkb", toA + `udp 53 > 40000`, "FORWARD_POD", []string{"trace FORWARD_POD b:53 > a:40000"}},
			{"from_pod linka", toB + `udp 40001 > 53`, "FORWARD_POD", []string{"trace FORWARD_POD a:40001 > b:53"}},
			{"from_pod linka", toB + `icmp echo id 7 seq 1`, "FORWARD_POD", []string{"trace FORWARD_POD a:7 > b icmp"}},
			{"from_pod linka", toB + `icmp echo id 7 seq 2`, "FORWARD_POD", nil},
			{"from_pod linka", toB + `sctp 1 > 2 init | len 8`, "FORWARD_POD", []string{"trace FORWARD_POD a:1 > b:2"}},
			{"from_pod linka", `eth a > gw | ip a > b frag 7 off 0 mf | udp 5 > 6 | len 56`, "FORWARD_POD",
				[]string{"trace FORWARD_POD a:5 > b:6"}},
			{"from_pod linka", `eth a > gw | ip a > b frag 7 off 64 | len 64`, "FORWARD_POD", nil},
		}},
		{name: "every packet", settings: settingsOf(traced, func(s *Settings) { s.TraceAll = 1 }), steps: []traceStep{
			{"from_pod linka", toB + `tcp 40000 > 80 A`, "FORWARD_POD", []string{"trace FORWARD_POD a:40000 > b:80 A"}},
			{"from_pod linka", toB + `udp 40000 > 53`, "FORWARD_POD", []string{"trace FORWARD_POD a:40000 > b:53"}},
			{"from_pod linka", toB + `udp 40000 > 53`, "FORWARD_POD", []string{"trace FORWARD_POD a:40000 > b:53"}},
		}},
	}
}

// traceRewrittenTables are packets that change on their way, and flows with a verdict.
func traceRewrittenTables() []traceTable {
	const tcp = 6
	const toB, out = `eth a > gw | ip a > b | `, `eth a > gw | ip a > world | `
	return []traceTable{
		{name: "masquerade", settings: settingsOf(traced, masquerading), steps: []traceStep{
			{"from_pod linka", out + `tcp 40000 > 80 S`, "FORWARD_RESOLVE",
				[]string{"trace FORWARD_RESOLVE a:40000 > world:80 S as node:50000 > world:80"}},
			{"from_wire eth0", `eth router > node | ip world > node | tcp 80 > 50000 SA`, "FORWARD_POD",
				[]string{"trace FORWARD_POD world:80 > node:50000 SA as world:80 > a:40000"}},
		}},
		{name: "services", settings: settingsOf(traced, servicing, longTimes), steps: []traceStep{
			{"from_wire eth0", `eth router > node | ip world > lb | udp 40000 > 81 | "q"`, "FORWARD_RESOLVE",
				[]string{"trace FORWARD_RESOLVE world:40000 > lb:81 as node:51000 > c:8080"}},
			{"from_wire eth0", `eth node2 > node | ip c > node | udp 8080 > 51000 | "r"`, "FORWARD_RESOLVE",
				[]string{"trace FORWARD_RESOLVE c:8080 > node:51000 as lb:81 > world:40000"}},
			{"from_wire eth0", `eth router > node | ip world > node | tcp 40000 > 30080 S`, "FORWARD_POD",
				[]string{"trace FORWARD_POD world:40000 > node:30080 S as world:40000 > b:8080"}},
		}},
		{name: "tunnel", settings: settingsOf(traced, tunnel4), steps: []traceStep{
			{"from_pod linka", `eth a > gw | ip a > c | tcp 40000 > 80 S`, "FORWARD_TUNNEL",
				[]string{"trace FORWARD_TUNNEL a:40000 > c:80 S"}},
		}},
		{name: "policies", settings: settingsOf(traced, policed, longTimes), steps: []traceStep{
			{"from_pod linka", toB + `tcp 40000 > 80 S`, "FORWARD_POD",
				[]string{"begin a:40000 > b:80 S", "trace FORWARD_POD a:40000 > b:80 S"}},
			{"from_pod linka", toB + `tcp 40000 > 81 S`, "FORWARD_AUDIT FORWARD_POD",
				[]string{"begin a:40000 > b:81 S audited", "trace FORWARD_POD a:40000 > b:81 S"}},
			{"from_pod linka", toB + `tcp 40000 > 81 A`, "FORWARD_POD", nil},
		}, before: all(opens, isolates(slotB, ingress, allows("a", tcp, 80)), audits(slotB))},
		{name: "policies without verdicts", settings: settingsOf(traced, policed, longTimes, func(s *Settings) {
			s.NoVerdicts = 1
		}), steps: []traceStep{
			{"from_pod linka", toB + `tcp 40000 > 80 S`, "FORWARD_POD", []string{"trace FORWARD_POD a:40000 > b:80 S"}},
			{"from_pod linka", toB + `tcp 40000 > 81 S`, "FORWARD_AUDIT FORWARD_POD",
				[]string{"trace FORWARD_POD a:40000 > b:81 S"}},
		}, before: all(opens, isolates(slotB, ingress, allows("a", tcp, 80)), audits(slotB))},
		{name: "XDP", settings: settingsOf(traced, servicing, longTimes), before: receivesXDP, steps: []traceStep{
			{"from_wire eth0", `eth router > node | ip world > lb | udp 40000 > 81`, "FORWARD_RESOLVE",
				[]string{"trace FORWARD_RESOLVE world:40000 > lb:81 as node:51000 > c:8080"}},
			{"from_wire eth0", `eth router > node | ip world > lb | udp 40000 > 81`, "FORWARD_WIRE", nil},
			{xdpAt, `eth router > node | ip world > lb | udp 40000 > 81`, "FORWARD_WIRE", nil},
			{xdpAt, `eth router > node | ip world > lb | tcp 40000 > 81 S`, "FORWARD_WIRE",
				[]string{"trace FORWARD_WIRE world:40000 > lb:81 S as node:51000 > c:8080"}},
			{xdpAt, `eth router > node | ip world > lb | tcp 40000 > 81 A`, "FORWARD_WIRE", nil},
			{xdpAt, `eth router > node | ip world > lb | tcp 40000 > 81 FA`, "FORWARD_WIRE",
				[]string{"trace FORWARD_WIRE world:40000 > lb:81 FA as node:51000 > c:8080"}},
		}},
	}
}

func TestTrace(t *testing.T) {
	for _, table := range slices.Concat(traceTables(), traceRewrittenTables()) {
		t.Run(table.name, func(t *testing.T) {
			w := newWorld(t, table.settings, onlyPrograms("from_pod", "from_wire", "from_wire_xdp"))
			r := w.listen(t, DatapathListenLISTEN_TRACE)
			packettest.Both(t, func(t *testing.T, f packet.Family) {
				defer w.enter(t)()
				w.forget(t)
				if table.before != nil {
					table.before(t, w)
				}
				w.runTraced(t, f, r, table.steps)
			})
		})
	}
}

// runTraced runs packets and compares their events.
func (w *world) runTraced(t *testing.T, f packet.Family, r *eventReader, steps []traceStep) {
	t.Helper()
	for _, s := range steps {
		w.run(t, f, step{at: s.at, in: s.in, want: s.counted})
		var got []string
		for e, ok := nextEvent(t, r); ok; e, ok = nextEvent(t, r) {
			if e.Family != uint8(f) || e.Type == uint8(DatapathEventTypeEVENT_TRACE) &&
				(e.Packets == 0 || e.Bytes == 0) {
				t.Errorf("%s: family %d, %d packets, %d bytes", s.in, e.Family, e.Packets, e.Bytes)
			}
			got = append(got, w.eventText(&e))
		}
		if strings.Join(got, "\n") != strings.Join(s.events, "\n") {
			t.Errorf("%s: events\n%s\nwant\n%s", s.in, strings.Join(got, "\n"), strings.Join(s.events, "\n"))
		}
	}
}

// eventText is "trace OUTCOME SRC:PORT > DST:PORT [FLAGS] [audited] [as SRC:PORT > DST:PORT]".
func (w *world) eventText(e *DatapathEvent) string {
	kinds := map[uint8]string{uint8(DatapathEventTypeEVENT_FLOW_BEGIN): "begin",
		uint8(DatapathEventTypeEVENT_TRACE): "trace", uint8(DatapathEventTypeEVENT_DNS): "dns"}
	text := kinds[e.Type]
	for name, n := range w.outcomes {
		if e.Type != uint8(DatapathEventTypeEVENT_FLOW_BEGIN) && n == uint32(e.Outcome) {
			text += " " + name
		}
	}
	text += fmt.Sprintf(" %s > %s", end(e.Src, e.Sport), end(e.Dst, e.Dport))
	flags := ""
	for _, flag := range []struct {
		bit  uint8
		name string
	}{{tcpSYN, "S"}, {tcpFIN, "F"}, {tcpRST, "R"}, {tcpACK, "A"}} {
		if e.TcpFlags&flag.bit != 0 {
			flags += flag.name
		}
	}
	if flags != "" {
		text += " " + flags
	}
	if e.IcmpType == 8 || e.IcmpType == 128 {
		text += " icmp"
	}
	if e.Flags&uint16(DatapathEventFlagEVENT_AUDIT) != 0 {
		text += " audited"
	}
	if e.XlatedDst != (DatapathAddr{}) {
		text += fmt.Sprintf(" as %s > %s", end(e.XlatedSrc, e.XlatedSport), end(e.XlatedDst, e.XlatedDport))
	}
	return text
}

func end(a DatapathAddr, port uint16) string {
	text := nameOf(a.Netip())
	if port != 0 {
		text += fmt.Sprintf(":%d", Port(port))
	}
	return text
}

func nameOf(a netip.Addr) string {
	for name, n := range worldNames() {
		if n.IP4 == a || n.IP6 == a {
			return name
		}
	}
	return a.String()
}

// What a flow sends in an interval is one event, which says how much it was.
func TestTraceIntervals(t *testing.T) {
	w := newWorld(t, settingsOf(traced), onlyForwarding)
	r := w.listen(t, DatapathListenLISTEN_TRACE)
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		defer w.enter(t)()
		w.forget(t)
		send := step{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 40000 > 53 | len 100`, want: "FORWARD_POD"}
		w.run(t, f, send)
		first, ok := nextEvent(t, r)
		if !ok || first.Packets != 1 || first.Bytes != uint64(first.Length) {
			t.Fatalf("first packet: %v %+v", ok, first)
		}
		w.run(t, f, send, send, send)
		w.ageTraced(t)
		w.run(t, f, send)
		if e, ok := nextEvent(t, r); !ok || e.Packets != 4 || e.Bytes != 4*uint64(first.Length) {
			t.Errorf("after an interval: %v, %d packets, %d bytes; want 4 of %d", ok, e.Packets, e.Bytes, first.Length)
		}
		if e, ok := nextEvent(t, r); ok {
			t.Errorf("another event: %+v", e)
		}
	})
}

// Packets of a flow whose slot another flow takes are in no event: they are counted.
func TestTraceUncounted(t *testing.T) {
	w := newWorld(t, settingsOf(traced), onlyForwarding)
	r := w.listen(t, DatapathListenLISTEN_TRACE)
	defer w.enter(t)()
	send := step{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 40000 > 53`, want: "FORWARD_POD"}
	other := step{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 40001 > 53`, want: "FORWARD_POD"}
	w.run(t, packet.IPv4, send, send, send)
	for i := range w.TracedFlows.MaxEntries() { // any slot becomes that of another flow
		var cpus []DatapathTracedFlow
		must(t, w.TracedFlows.Lookup(i, &cpus))
		for j := range cpus {
			cpus[j].Tag ^= 2
		}
		must(t, w.TracedFlows.Put(i, cpus))
	}
	w.run(t, packet.IPv4, send, other)
	events := 0
	for e, ok := nextEvent(t, r); ok; e, ok = nextEvent(t, r) {
		if events++; e.Packets != 1 {
			t.Errorf("an event of %d packets, want 1", e.Packets)
		}
	}
	var cpus []DatapathCpu
	must(t, w.Cpus.Lookup(uint32(0), &cpus))
	uncounted := uint64(0)
	for _, c := range cpus {
		uncounted += c.TraceUncounted
	}
	if events != 3 || uncounted != 2 {
		t.Errorf("%d events, %d packets in none; want 3 and 2", events, uncounted)
	}
}

// ageTraced lets an interval pass for all flows.
func (w *world) ageTraced(t *testing.T) {
	t.Helper()
	for i := range w.TracedFlows.MaxEntries() {
		var cpus []DatapathTracedFlow
		must(t, w.TracedFlows.Lookup(i, &cpus))
		for j := range cpus {
			cpus[j].Time -= w.settings.TraceSeconds * w.settings.Hz
		}
		must(t, w.TracedFlows.Put(i, cpus))
	}
}

// traceLost is how many events other than drops were not sent.
func (w *world) traceLost(t testing.TB) (lost uint64) {
	t.Helper()
	var cpus []DatapathCpu
	must(t, w.Cpus.Lookup(uint32(0), &cpus))
	for _, c := range cpus {
		lost += c.TraceBudget.Lost
	}
	return lost
}

// A flood of new flows leaves drops their events, and what it loses is counted.
func TestTraceHasBudgetOfItsOwn(t *testing.T) {
	const rate, packets = 10, 200
	w := newWorld(t, settingsOf(traced, func(s *Settings) { s.TraceRate = rate }), onlyForwarding)
	r := w.listen(t, DatapathListenLISTEN_TRACE)
	defer w.enter(t)()
	for i := range packets {
		w.run(t, packet.IPv4, step{at: "from_pod linka", in: fmt.Sprintf(`eth a > gw | ip a > b | tcp %d > 80 S`, 1+i),
			want: "FORWARD_POD"})
	}
	w.run(t, packet.IPv4, step{at: "from_pod linka", in: `eth a > gw | ip a > none | udp 1 > 2`, want: "DROP_MARTIAN"})
	traces, drops := 0, 0
	for e, ok := nextEvent(t, r); ok; e, ok = nextEvent(t, r) {
		if e.Type == uint8(DatapathEventTypeEVENT_DROP) {
			drops++
		} else {
			traces++
		}
	}
	lost := w.traceLost(t)
	if drops != 1 || traces < rate || uint64(traces)+lost != packets {
		t.Errorf("%d drops, %d packets, %d lost; want 1, and %d packets or lost", drops, traces, lost, packets)
	}
}

// A verdict is not a drop: connections that a policy allows leave drops their events, too.
func TestVerdictsTakeTheBudgetOfTraces(t *testing.T) {
	const rate, connections = 10, 50
	w := newWorld(t, settingsOf(traced, tracking, func(s *Settings) { s.EventRate = rate }), onlyForwarding)
	r := w.listen(t, DatapathListenLISTEN_FLOWS)
	defer w.enter(t)()
	for i := range connections {
		w.run(t, packet.IPv4, step{at: "from_pod linka", in: fmt.Sprintf(`eth a > gw | ip a > b | tcp %d > 80 S`, 1+i),
			want: "FORWARD_POD"})
	}
	w.run(t, packet.IPv4, step{at: "from_pod linka", in: `eth a > gw | ip a > none | udp 1 > 2`, want: "DROP_MARTIAN"})
	seen := map[uint8]int{}
	for e, ok := nextEvent(t, r); ok; e, ok = nextEvent(t, r) {
		seen[e.Type]++
	}
	begun, drops := seen[uint8(DatapathEventTypeEVENT_FLOW_BEGIN)], seen[uint8(DatapathEventTypeEVENT_DROP)]
	if begun != connections || drops != 1 {
		t.Errorf("%d flows, %d drops; want %d and 1", begun, drops, connections)
	}
}

// Jiffies, and seconds with them, are 0 after five minutes of uptime and then every 2^32 jiffies.
func TestEventsInSecondZero(t *testing.T) {
	hz, err := ClockRate()
	must(t, err)
	w := newWorld(t, settingsOf(traced, func(s *Settings) { s.Hz = math.MaxUint32 / hz }), onlyForwarding)
	r := w.listen(t, DatapathListenLISTEN_TRACE)
	defer w.enter(t)()
	w.run(t, packet.IPv4, step{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 1 > 80 S`, want: "FORWARD_POD"})
	if _, ok := nextEvent(t, r); !ok {
		t.Error("no event")
	}
}

// What is not read is not sent.
func TestTraceIsOff(t *testing.T) {
	w := newWorld(t, settingsOf(traced, tracking), onlyForwarding)
	r := w.listen(t, 0)
	defer w.enter(t)()
	syn := func(port int) step {
		return step{at: "from_pod linka", in: fmt.Sprintf(`eth a > gw | ip a > b | tcp %d > 80 S`, port),
			want: "FORWARD_POD"}
	}
	for i, listen := range []DatapathListen{0, DatapathListenLISTEN_FLOWS, DatapathListenLISTEN_TRACE} {
		must(t, w.Listening.Set(uint32(listen)))
		w.run(t, packet.IPv4, syn(40000+i))
		e, ok := nextEvent(t, r)
		want := map[DatapathListen]string{DatapathListenLISTEN_FLOWS: "begin a:40001 > b:80 S",
			DatapathListenLISTEN_TRACE: "trace FORWARD_POD a:40002 > b:80 S"}[listen]
		got := ""
		if ok {
			got = w.eventText(&e)
		}
		if got != want {
			t.Errorf("listening %d: event %q, want %q", listen, got, want)
		}
	}
}
