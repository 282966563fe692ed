package bpf

import (
	"testing"

	"github.com/cilium/ebpf"

	"myelin/test/packet/packettest"
)

const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
	tcpPSH = 0x08
	tcpACK = 0x10

	closing = uint8(DatapathFlowFlagFLOW_CLOSING)
	replied = uint8(DatapathFlowFlagFLOW_REPLIED)
	nat     = uint8(DatapathFlowFlagFLOW_NAT)
	podFIN  = uint8(DatapathFlowFlagFLOW_POD_FIN)
)

func flowTables() []table {
	return []table{
		{name: "flows, no room", settings: settingsOf(tracking), tweak: oneFlow, rows: []row{
			{name: "refused", steps: []step{
				{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 1 > 2`, want: "FORWARD_POD"},
				{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 1 > 3`, want: "DROP_MAP_FULL", out: "="},
				{at: "from_wire eth0", in: `eth node2 > node | ip c > a | udp 1 > 3`, want: "DROP_MAP_FULL", out: "="},
				{at: "to_pod linka", in: `eth gw > a | ip gw > a | udp 1 > 3`, want: "", out: "="},
				{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 1 > 2`, want: "FORWARD_POD",
					after: flowIs(flowWant{"a", 2, 0, 0, 0, 0})},
			}},
		}},
		{name: "flows", settings: settingsOf(tracking, longTimes), rows: append(append(connectionRows(), wayRows()...),
			stackRows()...)},
		{name: "flows, masquerading", settings: settingsOf(tracking, masquerading),
			rows: append(natFlowRows(), natPortRows()...)},
		{name: "connections, masquerading", settings: settingsOf(tracking, masquerading, longTimes),
			rows: connectionRows()},
		{name: "flows, only masqueraded", settings: settingsOf(masquerading),
			rows: append(append(natFlowRows(), natPortRows()...), one("a pod that needs no state creates none",
				"from_pod linka", `eth a > gw | ip a > b | udp 1 > 2`, "FORWARD_POD", ""),
				row{name: "nor does the wire", steps: []step{{at: "from_wire eth0",
					in: `eth node2 > node | ip c > a | udp 1 > 2`, want: "FORWARD_POD", after: flowsAre(0)}}})},
		{name: "flows, legacy", settings: settingsOf(tracking, legacy), rows: []row{
			{name: "pod to pod by the stack", steps: []step{
				{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 40000 > 80 S`, want: "FORWARD_STACK", out: "=",
					after: flowIs(flowWant{origin: "a", packetsA: 1, flagsA: tcpSYN})},
				{at: "to_pod linkb", in: `eth gwb > b | ip a > b ttl 63 | tcp 40000 > 80 S`, want: "", out: "="},
				{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 80 > 40000 SA`, want: "FORWARD_STACK",
					out: "="},
			}},
		}},
	}
}

// oneFlow makes the table of flows one that is full, as an LRU never is for long.
func oneFlow(spec *ebpf.CollectionSpec) {
	spec.Maps["flows"].Type = ebpf.Hash
	spec.Maps["flows"].MaxEntries = 1
}

// flowWant is the only row there must be. Sides are a's, or the node's for it, and the other end's.
type flowWant struct {
	origin             string // the sender of the first packet: "a", or "" for the other end
	packetsA, packetsO uint64
	flagsA, flagsO     uint8
	flags              uint8
}

func flowIs(want flowWant) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		k, f := w.flow(t)
		a := 1
		n := worldNames()
		for _, mine := range append(families(n["a"]), families(n["node"])...) {
			if k.Addr[0] == Addr(mine) {
				a = 0
			}
		}
		got := flowWant{packetsA: f.Side[a].Packets, packetsO: f.Side[1-a].Packets, flagsA: f.Side[a].TcpFlags,
			flagsO: f.Side[1-a].TcpFlags, flags: f.Flags}
		if int(f.Origin) == a {
			got.origin = "a"
		}
		if got != want {
			t.Fatalf("the flow is %+v, want %+v", got, want)
		}
	}
}

// toB and toA are packets of a connection between the pods, ends of the connection as its row has them.
func toB(tcp string, want flowWant) step {
	return step{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 40000 > 80 ` + tcp, want: "FORWARD_POD",
		out: `eth gwb > b | ip a > b ttl 63 | tcp 40000 > 80 ` + tcp, after: flowIs(want)}
}

func toA(tcp string, want flowWant) step {
	return step{at: "from_pod linkb", in: `eth b > gwb | ip b > a | tcp 80 > 40000 ` + tcp, want: "FORWARD_POD",
		out: `eth gw > a | ip b > a ttl 63 | tcp 80 > 40000 ` + tcp, after: flowIs(want)}
}

func connectionRows() []row {
	return []row{
		{name: "a connection, its end, and another between the same ports", steps: []step{
			toB("S seq 1", flowWant{"a", 1, 0, tcpSYN, 0, 0}),
			toB("S seq 1", flowWant{"a", 2, 0, tcpSYN, 0, 0}),
			toA("SA seq 7 ack 2", flowWant{"a", 2, 1, tcpSYN, tcpSYN | tcpACK, replied}),
			toB("A", flowWant{"a", 3, 1, tcpSYN | tcpACK, tcpSYN | tcpACK, replied}),
			toB("FA", flowWant{"a", 4, 1, tcpSYN | tcpACK | tcpFIN, tcpSYN | tcpACK, replied}),
			toA("A", flowWant{"a", 4, 2, tcpSYN | tcpACK | tcpFIN, tcpSYN | tcpACK, replied}),
			toA("FA", flowWant{"a", 4, 3, tcpSYN | tcpACK | tcpFIN, tcpSYN | tcpACK | tcpFIN, replied | closing}),
			toB("A", flowWant{"a", 5, 3, tcpSYN | tcpACK | tcpFIN, tcpSYN | tcpACK | tcpFIN, replied | closing}),
			toA("S", flowWant{"", 5, 4, 0, tcpSYN, 0}),
		}},
		{name: "a reset", steps: []step{
			toB("S", flowWant{"a", 1, 0, tcpSYN, 0, 0}),
			toA("RA", flowWant{"a", 1, 1, tcpSYN, tcpRST | tcpACK, replied | closing}),
			toB("S", flowWant{"a", 2, 1, tcpSYN, 0, 0}),
		}},
		{name: "udp", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 1 > 2`, want: "FORWARD_POD",
				after: flowIs(flowWant{"a", 1, 0, 0, 0, 0})},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | udp 2 > 1`, want: "FORWARD_POD",
				after: flowIs(flowWant{"a", 1, 1, 0, 0, replied})},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | udp 2 > 1`, want: "FORWARD_POD",
				after: flowIs(flowWant{"a", 1, 2, 0, 0, replied})},
		}},
		{name: "echo", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > b | icmp echo id 7 seq 1`, want: "FORWARD_POD",
				after: flowIs(flowWant{"a", 1, 0, 0, 0, 0})},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | icmp echo-reply id 7 seq 1`, want: "FORWARD_POD",
				after: flowIs(flowWant{"a", 1, 1, 0, 0, replied})},
		}},
		{name: "what has no ports", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > b | esp spi 1 seq 1 | len 8`, want: "FORWARD_POD",
				after: flowIs(flowWant{"a", 1, 0, 0, 0, 0})},
			{at: "from_pod linka", in: `eth a > gw | ip a > b | esp spi 1 seq 2 | len 8`, want: "FORWARD_POD",
				after: flowIs(flowWant{"a", 2, 0, 0, 0, 0})},
		}},
		{name: "an error is no flow", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > b | icmp unreachable port | ip b > a | udp 1 > 2`,
				want: "FORWARD_POD", after: flowsAre(0)},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > a | icmp unreachable port | ip a > c | udp 1 > 2`,
				want: "FORWARD_POD", after: flowsAre(0)},
		}},
		only4(row{name: "an unknown message with an identifier", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip4 a > b | icmp timestamp id 7 seq 1 | len 12`,
				want: "FORWARD_POD", out: `eth gwb > b | ip4 a > b ttl 63 | icmp timestamp id 7 seq 1 | len 12`},
		}}),
	}
}

func wayRows() []row {
	out := `eth a > gw | ip a > c | udp 1 > 2`
	return append([]row{
		{name: "the wire", steps: []step{
			{at: "from_wire eth0", in: `eth node2 > node | ip c > a | tcp 5000 > 80 S`, want: "FORWARD_POD",
				out: `eth gw > a | ip c > a ttl 63 | tcp 5000 > 80 S`, after: flowIs(flowWant{"", 0, 1, 0, tcpSYN, 0})},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > a ttl 9 | tcp 5000 > 80 S`, want: "FORWARD_POD",
				out: `eth gw > a | ip c > a ttl 8 | tcp 5000 > 80 S`},
			{at: "from_pod linka", in: `eth a > gw | ip a > c | tcp 80 > 5000 SA`, want: "FORWARD_RESOLVE",
				out: `eth node > node2 | ip a > c ttl 63 | tcp 80 > 5000 SA`},
			{at: "from_pod linka", in: `eth a > gw | ip a > c | tcp 80 > 5000 SA`, want: "FORWARD_WIRE",
				after: flowIs(flowWant{"", 2, 2, tcpSYN | tcpACK, tcpSYN, replied})},
		}},
		{name: "an epoch decides again, in the same row", steps: []step{
			{at: "from_pod linka", in: out, want: "FORWARD_RESOLVE"},
			{at: "from_pod linka", in: out, want: "FORWARD_WIRE"},
			{at: "from_pod linka", in: out, want: "FORWARD_RESOLVE", before: bumps(0)},
			{at: "from_pod linka", in: out, want: "FORWARD_WIRE", before: bumps(3)},
			{at: "from_pod linka", in: out, want: "FORWARD_RESOLVE", before: bumps(2),
				after: flowIs(flowWant{"a", 5, 0, 0, 0, 0})},
		}},
		{name: "a way that is a second old is decided again", steps: []step{
			{at: "from_pod linka", in: out, want: "FORWARD_RESOLVE"},
			{at: "from_pod linka", in: out, want: "FORWARD_RESOLVE", before: expires},
			{at: "from_pod linka", in: out, want: "FORWARD_WIRE"},
		}},
		{name: "the receiver is gone", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 1 > 2`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 1 > 2`, want: "FORWARD_STACK", out: "=",
				before: removesB},
		}},
		{name: "the sender is gone", steps: []step{
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | udp 1 > 2`, want: "FORWARD_POD"},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > a | udp 1 > 2`, want: "DROP_NO_ENDPOINT", out: "=",
				before: removesB},
		}},
		{name: "the receiver from the wire is gone", steps: []step{
			{at: "from_wire eth0", in: `eth node2 > node | ip c > b | udp 1 > 2`, want: "FORWARD_POD"},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > b | udp 1 > 2`, want: "FORWARD_STACK", out: "=",
				before: removesB},
		}},
	}, wayLimitRows()...)
}

func wayLimitRows() []row {
	out := `eth a > gw | ip a > c | udp 1 > 2`
	return []row{
		{name: "a flow's way is the sender's only", steps: []step{
			{at: "from_pod linka", in: out, want: "FORWARD_RESOLVE"},
			{at: "from_pod linka", in: `eth b > gw | ip a > c | udp 1 > 2`, want: "DROP_SPOOFED_MAC", out: "="},
			{at: "from_pod linkb", in: `eth b > gw | ip a > c | udp 1 > 2`, want: "DROP_SPOOFED_ADDRESS", out: "=",
				after: flowIs(flowWant{"a", 1, 0, 0, 0, 0})},
		}},
		{name: "the last hop, and what is too large, on a known way", steps: []step{
			{at: "from_pod linka", in: out, want: "FORWARD_RESOLVE"},
			{at: "from_pod linka", in: `eth a > gw | ip a > c ttl 1 | udp 1 > 2`, want: "DROP_TTL REPLY_ICMP",
				out: `eth gw > a | ip gw > a df | icmp time-exceeded | ip a > c ttl 1 | udp 1 > 2`},
			{at: "from_pod linka", in: `eth a > gw | ip a > c df | udp 1 > 2 | len 1600`,
				want: "DROP_TOO_BIG REPLY_ICMP", options: packettest.Options{},
				out: `eth gw > a | ip gw > a df | icmp too-big mtu 1500 quote 96 | ip a > c df | udp 1 > 2 | len 1600`},
		}},
		{name: "a neighbour that is not known is asked for with every packet", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > d | udp 1 > 2`, want: "FORWARD_RESOLVE"},
			{at: "from_pod linka", in: `eth a > gw | ip a > d | udp 1 > 2`, want: "FORWARD_RESOLVE",
				after: flowIs(flowWant{"a", 2, 0, 0, 0, 0})},
		}},
	}
}

// expires makes every kept way look a second old.
func expires(t testing.TB, w *world) {
	t.Helper()
	now, err := readJiffies()
	must(t, err)
	w.unkeep(t)
	must(t, CachedPaths(w.Paths, func(cpu int, i uint32, _ *DatapathCachedPath) bool {
		var rows []DatapathCachedPath
		must(t, w.Paths.Lookup(i, &rows))
		rows[cpu].Path.Expires = uint32(now) - 1
		must(t, w.Paths.Put(i, rows))
		return true
	}))
}

// backdates makes every entry look as old as the kernel.
func backdates(t testing.TB, w *world) {
	t.Helper()
	for key, f := range rowsIn[DatapathFlowKey, DatapathFlow](t, w.Flows) {
		f.Created = 1
		must(t, w.Flows.Put(key, f))
	}
}

// isRecent also wants all entries to be younger than that.
func isRecent(then func(testing.TB, *world)) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		then(t, w)
		for key, f := range rowsIn[DatapathFlowKey, DatapathFlow](t, w.Flows) {
			if f.Created == 1 {
				t.Errorf("the entry of %v is as old as the closed connection with its ports", key)
			}
		}
	}
}

// removesB takes pod b away until the test ends.
func removesB(t testing.TB, w *world) {
	t.Helper()
	for _, a := range families(worldNames()["b"]) {
		must(t, w.Endpoints.Delete(Addr(a)))
	}
	must(t, w.PodLinks.Delete(uint32(w.index["linkb"])))
	w.bump(t, 3)
	t.Cleanup(func() {
		w.addPod(t, "b", 3, "linkb", "gwb")
		w.bump(t, 3)
	})
}

// stackRows are flows between the host and a pod.
func stackRows() []row {
	return []row{
		{name: "the pod begins", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > gw | tcp 40000 > 22 S`, want: "FORWARD_STACK", out: "="},
			{at: "to_pod linka", in: `eth gw > a | ip gw > a | tcp 22 > 40000 SA`, want: "", out: "=",
				after: flowIs(flowWant{"a", 1, 1, tcpSYN, tcpSYN | tcpACK, replied})},
			{at: "from_pod linka", in: `eth a > gw | ip a > gw | tcp 40000 > 22 A`, want: "FORWARD_STACK",
				after: flowIs(flowWant{"a", 2, 1, tcpSYN | tcpACK, tcpSYN | tcpACK, replied})},
		}},
		{name: "the host begins", steps: []step{
			{at: "to_pod linka", in: `eth gw > a | ip gw > a | icmp echo id 3 seq 1`, want: "", out: "=",
				after: flowIs(flowWant{"", 0, 1, 0, 0, 0})},
			{at: "from_pod linka", in: `eth a > gw | ip a > gw | icmp echo-reply id 3 seq 1`, want: "FORWARD_STACK",
				out: "=", after: flowIs(flowWant{"", 1, 1, 0, 0, replied})},
		}},
		{name: "an error by the host is no flow", steps: []step{
			{at: "to_pod linka", in: `eth gw > a | ip gw > a | icmp unreachable port | ip a > gw | udp 1 > 2`, want: "",
				out: "=", after: flowsAre(0)},
		}},
		only4(row{name: "arp to a pod", steps: []step{{at: "to_pod linka",
			in: `eth gw > broadcast | arp who-has a tell gw`, want: "", out: "=", after: flowsAre(0)}}}),
		{name: "the wire's packets for the host are no flow", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > node | tcp 1 > 22 S`, want: "FORWARD_STACK",
				out: "=", after: flowsAre(0)},
		}},
	}
}

func natFlowRows() []row {
	out, in := `eth a > gw | ip a > world | tcp 40000 > 80 `, `eth router > node | ip world > node | tcp 80 > 50000 `
	return []row{
		{name: "a masqueraded connection has one row", steps: []step{
			{at: "from_pod linka", in: out + "S", want: "FORWARD_RESOLVE",
				after: flowIs(flowWant{"a", 1, 0, tcpSYN, 0, nat})},
			{at: "from_wire eth0", in: in + "SA", want: "FORWARD_POD",
				after: flowIs(flowWant{"a", 1, 1, tcpSYN, tcpSYN | tcpACK, nat | replied})},
			{at: "from_pod linka", in: out + "FA", want: "FORWARD_WIRE",
				after: flowIs(flowWant{"a", 2, 1, tcpSYN | tcpACK | tcpFIN, tcpSYN | tcpACK, nat | replied | podFIN})},
			{at: "from_wire eth0", in: in + "FA", want: "FORWARD_POD",
				after: flowIs(flowWant{"a", 2, 2, tcpSYN | tcpACK | tcpFIN, tcpSYN | tcpACK | tcpFIN,
					nat | replied | closing | podFIN})},
			{at: "from_pod linka", in: out + "A", want: "FORWARD_WIRE"},
			{at: "from_pod linka", in: out + "S", want: "FORWARD_WIRE", before: backdates,
				after: isRecent(flowIs(flowWant{"a", 4, 2, tcpSYN, 0, nat}))},
			{at: "from_wire eth0", in: in + "SA", want: "FORWARD_POD",
				out: `eth gw > a | ip world > a ttl 63 | tcp 80 > 40000 SA`},
		}},
	}
}

// natPortRows are about when a connection's port is another one's.
func natPortRows() []row {
	out, in := `eth a > gw | ip a > world | tcp 40000 > 80 `, `eth router > node | ip world > node | tcp 80 > 50000 `
	outB := `eth b > gwb | ip b > world | tcp 40000 > 80 `
	return append([]row{
		{name: "a reset connection's port is another pod's", steps: []step{
			{at: "from_pod linka", in: out + "S", want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: in + "RA", want: "FORWARD_POD"},
			{at: "from_pod linkb", in: outB + "S", want: "FORWARD_RESOLVE", before: ages(1), after: flowsAre(1)},
		}},
		{name: "the port of a connection that the pod closed first is another pod's", steps: []step{
			{at: "from_pod linka", in: out + "S", want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: in + "SA", want: "FORWARD_POD"},
			{at: "from_pod linka", in: out + "FA", want: "FORWARD_WIRE"},
			{at: "from_wire eth0", in: in + "FA", want: "FORWARD_POD"},
			{at: "from_pod linka", in: out + "A", want: "FORWARD_WIRE"},
			{at: "from_pod linkb", in: outB + "S", want: "FORWARD_RESOLVE", before: ages(1), after: flowsAre(1)},
		}},
		{name: "a half-open connection makes room where no port is free", steps: []step{
			{at: "from_pod linka", in: out + "S", want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: in + "SA", want: "FORWARD_POD"},
			{at: "from_pod linkb", in: outB + "S", want: "DROP_NAT_NO_PORT", out: "="},
			{at: "from_pod linkb", in: outB + "S", want: "FORWARD_WIRE", before: ages(2), after: flowsAre(1)},
		}},
		{name: "a connection that the peer closed first keeps its port for a minute", steps: []step{
			{at: "from_pod linka", in: out + "S", want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: in + "SA", want: "FORWARD_POD"},
			{at: "from_wire eth0", in: in + "FA", want: "FORWARD_POD"},
			{at: "from_pod linka", in: out + "FA", want: "FORWARD_WIRE"},
			{at: "from_pod linkb", in: outB + "S", want: "DROP_NAT_NO_PORT", out: "=", before: ages(58)},
			{at: "from_pod linkb", in: outB + "S", want: "FORWARD_WIRE", before: ages(3), after: flowsAre(1)},
			{at: "from_wire eth0", in: in + "SA", want: "FORWARD_POD",
				out: `eth gwb > b | ip world > b ttl 63 | tcp 80 > 40000 SA`},
		}},
	}, natTimeoutRows()...)
}

func natTimeoutRows() []row {
	out, in := `eth a > gw | ip a > world | tcp 40000 > 80 `, `eth router > node | ip world > node | tcp 80 > 50000 `
	outB, older := `eth b > gwb | ip b > world | tcp 40000 > 80 `, `S mss 1460 sackok ts `
	return []row{
		{name: "a newer timestamp takes the port of a connection that the peer closed first", steps: []step{
			{at: "from_pod linka", in: out + "S mss 1460 sackok ts 500 0 nop wscale 7", want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: in + "SA", want: "FORWARD_POD"},
			{at: "from_wire eth0", in: in + "FA", want: "FORWARD_POD"},
			{at: "from_pod linka", in: out + "FA nop nop ts 600 0", want: "FORWARD_WIRE"},
			{at: "from_pod linkb", in: outB + "S", want: "DROP_NAT_NO_PORT", out: "=", before: ages(1)},
			{at: "from_pod linkb", in: outB + older + "600 0 nop wscale 7", want: "DROP_NAT_NO_PORT", out: "="},
			{at: "from_pod linkb", in: outB + older + "0xffffff00 0 nop wscale 7", want: "DROP_NAT_NO_PORT", out: "="},
			{at: "from_pod linkb", in: outB + "S mss 1460 nop wscale 6 nop nop ts 601 0 sackok nop nop",
				want: "FORWARD_WIRE", after: flowsAre(1)},
		}},
		{name: "an established connection keeps its port for two hours", steps: []step{
			{at: "from_pod linka", in: out + "S", want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: in + "SA", want: "FORWARD_POD"},
			{at: "from_pod linka", in: out + "A", want: "FORWARD_WIRE"},
			{at: "from_pod linkb", in: outB + "S", want: "DROP_NAT_NO_PORT", out: "=", before: ages(7200)},
		}},
		{name: "an epoch decides the way back again", steps: []step{
			{at: "from_pod linka", in: out + "S", want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: in + "SA", want: "FORWARD_POD", before: bumps(0)},
			{at: "from_wire eth0", in: in + "A", want: "FORWARD_POD",
				out: `eth gw > a | ip world > a ttl 63 | tcp 80 > 40000 A`, before: bumps(2)},
			{at: "from_pod linka", in: out + "A", want: "FORWARD_RESOLVE", after: flowsAre(1)},
		}},
		{name: "the masqueraded pod is gone", steps: []step{
			{at: "from_pod linkb", in: outB + "S", want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: in + "SA", want: "DROP_NO_ENDPOINT", out: "=", before: removesB},
		}},
	}
}
