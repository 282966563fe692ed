package bpf

import (
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"myelin/test/packet"
)

// fullPathMark is an offset that no packet has: the full path overwrites it.
const fullPathMark = 0xbeef

// fastTables are packets whose decision is cached: which of them the fast path takes, and that it does to them what the
// full path did to the one before.
func fastTables() []table {
	toStack := step{at: "from_pod linka", in: `eth a > gw | ip a > c | udp 1 > 2`, want: "FORWARD_STACK", out: "="}
	return []table{
		{name: "fast", settings: settingsOf(longTimes), rows: append(fastRows(), fullRows()...)},
		{name: "fast, netkit", settings: settingsOf(longTimes, netkit), rows: fastRows()},
		{name: "fast, masquerading", settings: settingsOf(longTimes, masquerading), rows: fastWireRows()},
		{name: "fast, flows", settings: settingsOf(longTimes, tracking), rows: fastFlowRows()},
		{name: "fast, flows, Hubble", settings: settingsOf(longTimes, tracking, traced), rows: fastFlowRows()},
		{name: "fast, events of flows", settings: settingsOf(longTimes, tracking, traced), rows: fastEventRows()},
		{name: "fast, Hubble", settings: settingsOf(longTimes, traced), rows: fastTraceRows()},
		{name: "fast, tunnel", settings: settingsOf(longTimes, tunnel4, vxlanPort), rows: slices.Concat(
			fastTunnelRows(), fastOuterRows(packet.IPv4), fullOuterRows())},
		{name: "fast, tunnel over IPv6", settings: settingsOf(longTimes, tunnel6, vxlanPort, tracking),
			rows: fastOuterRows(packet.IPv6)},
		{name: "fast, WireGuard", settings: settingsOf(longTimes, outerOf(17, 51871)), rows: encryptedOuterRows(
			`udp 51871 > 51871 | len 50`, `udp 51871 > 51872 | len 50`)},
		{name: "fast, IPsec", settings: settingsOf(longTimes, masquerading, outerOf(50, 0)), rows: encryptedOuterRows(
			`esp spi 1 seq 1 | len 40`, `udp 4500 > 4500 | len 40`)},
		{name: "fast, WireGuard's port is in use", settings: settingsOf(longTimes, outerOf(17, 51871),
			func(s *Settings) { s.NatPortMin, s.NatPortMax = 32768, 60999 }), rows: []row{
			{name: "nothing", only: packet.IPv4, steps: []step{wireGuarded, notFast(wireGuarded),
				notFast(wireGuarded)}},
		}},
		{name: "fast, the tunnel's port is in use", settings: settingsOf(longTimes, tunnel4, vxlanPort,
			func(s *Settings) { s.NodePortMin, s.NodePortMax = 8000, 9000 }), rows: []row{
			{name: "nothing", only: packet.IPv4, steps: []step{outer, notFast(outer), notFast(outer)}},
		}},
		{name: "fast, legacy", settings: settingsOf(longTimes, legacy), rows: []row{
			{name: "nothing", steps: []step{toStack, toStack, notFast(toStack)}},
		}},
	}
}

// fast is a step that must take the fast path, notFast one that must not.
func fast(s step) step    { return pathMarked(s, true) }
func notFast(s step) step { return pathMarked(s, false) }

func pathMarked(s step, want bool) step {
	s.before = all(s.before, func(t testing.TB, w *world) {
		t.Helper()
		w.eachCPU(t, func(c *DatapathCpu) { c.Pkt.L4 = fullPathMark })
	})
	s.after = func(t testing.TB, w *world) {
		t.Helper()
		untouched := true
		w.eachCPU(t, func(c *DatapathCpu) { untouched = untouched && c.Pkt.L4 == fullPathMark })
		if untouched != want {
			t.Errorf("fast path taken: %t, want %t: %s", untouched, want, s.in)
		}
	}
	return s
}

// eachCPU changes the state of each CPU.
func (w *world) eachCPU(t testing.TB, change func(*DatapathCpu)) {
	t.Helper()
	var states []DatapathCpu
	must(t, w.Cpus.Lookup(uint32(0), &states))
	for i := range states {
		change(&states[i])
	}
	must(t, w.Cpus.Update(uint32(0), states, ebpf.UpdateAny))
}

// again is a row of three packets that are alike: the first is decided, the second revalidates the decision, and the
// third takes the fast path.
func again(name, at, in, first, second, out string) row {
	return row{name: name, steps: []step{
		{at: at, in: in, want: first, out: out},
		notFast(step{at: at, in: in, want: second, out: out}),
		fast(step{at: at, in: in, want: second, out: out}),
	}}
}

func fastRows() []row {
	toWire := func(l4 string) (in, out string) {
		return `eth a > gw | ip a > c | ` + l4, `eth node > node2 | ip a > c ttl 63 | ` + l4
	}
	var rows []row
	for _, l4 := range []string{`udp 1 > 2`, `tcp 40000 > 80 A seq 1 | "x"`, `tcp 40000 > 80 S`, `sctp 1 > 2 init`,
		`esp spi 1 seq 1 | len 40`} {
		in, out := toWire(l4)
		rows = append(rows, again("to a wire: "+l4, "from_pod linka", in, "FORWARD_RESOLVE", "FORWARD_WIRE", out))
	}
	rows = append(rows,
		again("to a pod", "from_pod linka", `eth a > gw | ip a > b ttl 2 | udp 1 > 2`, "FORWARD_POD", "FORWARD_POD",
			`eth gwb > b | ip a > b ttl 1 | udp 1 > 2`),
		again("padding", "from_pod linka", `eth a > gw | ip a > b | udp 1 > 2 | pad 18`, "FORWARD_POD", "FORWARD_POD",
			`eth gwb > b | ip a > b ttl 63 | udp 1 > 2 | pad 18`),
		again("a fragment", "from_pod linka", `eth a > gw | ip a > b frag 7 off 1480 proto udp | "tail"`, "FORWARD_POD",
			"FORWARD_POD", `eth gwb > b | ip a > b ttl 63 frag 7 off 1480 proto udp | "tail"`),
		only4(again("the checksum's carry", "from_pod linka", `eth a > gw | ip a > b sum 0xff12 | udp 1 > 2`,
			"FORWARD_POD", "FORWARD_POD", `eth gwb > b | ip a > b ttl 63 sum 0x0013 | udp 1 > 2`)))
	return append(rows, fastWireRows()...)
}

func fastWireRows() []row {
	return []row{again("from a wire", "from_wire eth0", `eth node2 > node | ip c > a | udp 1 > 2`, "FORWARD_POD",
		"FORWARD_POD", `eth gw > a | ip c > a ttl 63 | udp 1 > 2`)}
}

func vxlanPort(s *Settings) { s.TunnelPort = 8472 }

func fastTunnelRows() []row {
	return []row{
		again("into the tunnel", "from_pod linka", `eth a > gw | ip a > c | udp 1 > 2`, "FORWARD_TUNNEL",
			"FORWARD_TUNNEL", `eth none > none | ip a > c ttl 63 | udp 1 > 2`),
		again("out of the tunnel", "from_wire vx0", `eth none > none | ip c > a ttl 63 | udp 1 > 2`, "FORWARD_POD",
			"FORWARD_POD", `eth gw > a | ip c > a ttl 62 | udp 1 > 2`),
	}
}

// outer is a packet of the tunnel as the network sees it.
var outer = step{at: "from_wire eth0", in: `eth node2 > node | ip node2 > node | udp 40000 > 8472 | len 50`,
	want: "FORWARD_STACK", out: "="}

// outerOf has encryption by packets of a protocol, over IPv4.
func outerOf(proto uint8, port uint16) func(*Settings) {
	return func(s *Settings) { s.Encryption, s.OuterProto, s.OuterPort = 1, proto, port }
}

// wireGuarded is a packet of WireGuard as the network sees it.
var wireGuarded = step{at: "from_wire eth0", in: `eth node2 > node | ip node2 > node | udp 51871 > 51871 | len 50`,
	want: "FORWARD_STACK", out: "="}

// encryptedOuterRows: encrypted packets take the fast path, other ones of the same node do not.
func encryptedOuterRows(encrypted, other string) []row {
	from := func(l4 string) step {
		return step{at: "from_wire eth0", in: `eth node2 > node | ip node2 > node | ` + l4, want: "FORWARD_STACK",
			out: "="}
	}
	one, off := from(encrypted), notFast(from(other))
	again := notFast(one)
	again.before = all(bumps(0), again.before)
	spoofed := notFast(step{at: one.at, in: `eth node2 > node | ip node > node | ` + encrypted,
		want: "DROP_SPOOFED_OWN"})
	return []row{
		{name: "encrypted packets", only: packet.IPv4, steps: []step{one, fast(one), off, off, fast(one), spoofed,
			again, fast(one)}},
		{name: "by the other family", only: packet.IPv6, steps: []step{one, notFast(one), notFast(one)}},
	}
}

func fastOuterRows(f packet.Family) []row {
	other := step{at: "from_wire eth0", in: `eth node2 > node | ip node2 > node | udp 50000 > 8472 | len 99`,
		want: "FORWARD_STACK", out: "="}
	return []row{{name: "the tunnel's packets", only: f, steps: []step{outer, fast(outer), fast(other)}}}
}

// fullOuterRows are packets that are not what outer is.
func fullOuterRows() []row {
	but := func(name, in, want string) row {
		one := notFast(step{at: "from_wire eth0", in: in, want: want})
		return row{name: name, only: packet.IPv4, steps: []step{outer, fast(outer), one, one}}
	}
	again := notFast(outer)
	again.before = all(bumps(0), again.before)
	return []row{
		but("another port", `eth node2 > node | ip node2 > node | udp 40000 > 8473`, "FORWARD_STACK"),
		but("another protocol", `eth node2 > node | ip node2 > node | tcp 40000 > 8472 S`, "FORWARD_STACK"),
		but("a fragment", `eth node2 > node | ip node2 > node frag 7 mf | udp 40000 > 8472 | len 64`,
			"FORWARD_STACK"),
		but("of a pod", `eth node2 > node | ip c > node | udp 40000 > 8472`, "DROP_TUNNEL_SOURCE"),
		but("of this node", `eth node2 > node | ip node > node | udp 40000 > 8472`, "DROP_SPOOFED_OWN"),
		but("to a pod", `eth node2 > node | ip node2 > a | udp 40000 > 8472`, "DROP_TUNNEL_SOURCE"),
		{name: "by the other family", only: packet.IPv6, steps: []step{outer, notFast(outer), notFast(outer)}},
		{name: "an epoch makes it stale", only: packet.IPv4, steps: []step{outer, fast(outer), again, fast(outer)}},
	}
}

// fullRows are packets that need more than the decision that there is.
func fullRows() []row {
	first := step{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 1 > 2`, want: "FORWARD_POD"}
	fromPod := func(name, in, want string) row {
		return row{name: name, steps: []step{first, first, notFast(step{at: "from_pod linka", in: in, want: want})}}
	}
	wire := step{at: "from_wire eth0", in: `eth node2 > node | ip c > a | udp 1 > 2`, want: "FORWARD_POD"}
	return []row{
		fromPod("last hop", `eth a > gw | ip a > b ttl 1 | udp 1 > 2`, "DROP_TTL REPLY_ICMP"),
		fromPod("another MAC", `eth b > gw | ip a > b | udp 1 > 2`, "DROP_SPOOFED_MAC"),
		fromPod("another address", `eth a > gw | ip c > b | udp 1 > 2`, "DROP_SPOOFED_ADDRESS"),
		only4(fromPod("options", `eth a > gw | ip4 a > b opts 44040500 | udp 1 > 2`, "FORWARD_POD")),
		only4(fromPod("longer than the packet", `eth a > gw | ip a > b tot-len 1000 | udp 1 > 2`, "DROP_TRUNCATED")),
		only4(fromPod("shorter than its header", `eth a > gw | ip a > b tot-len 19 | udp 1 > 2`, "DROP_BAD_HEADER")),
		only6(fromPod("ICMPv6", `eth a > gw | ip a > b | icmp echo id 1 seq 1`, "FORWARD_POD")),
		{name: "an epoch", steps: []step{first, first, notFast(step{at: first.at, in: first.in, want: "FORWARD_POD",
			before: bumps(0)})}},
		{name: "an own source", steps: []step{wire, wire, notFast(step{at: wire.at,
			in: `eth node2 > node | ip b > a | udp 1 > 2`, want: "DROP_SPOOFED_OWN"})}},
		{name: "last hop, from a wire", steps: []step{wire, wire, notFast(step{at: wire.at,
			in: `eth node2 > node | ip c > a ttl 1 | udp 1 > 2`, want: "DROP_TTL REPLY_ICMP"})}},
	}
}

// fastFlowRows are packets of a connection that has a conntrack entry.
// outOf and inOf are segments of the connection from a to c with these flags.
func outOf(flags string) step {
	return step{at: "from_pod linka", in: `eth a > gw | ip a > c | tcp 40000 > 80 ` + flags, want: "FORWARD_WIRE",
		out: `eth node > node2 | ip a > c ttl 63 | tcp 40000 > 80 ` + flags}
}

func inOf(flags string) step {
	return step{at: "from_wire eth0", in: `eth node2 > node | ip c > a | tcp 80 > 40000 ` + flags, want: "FORWARD_POD",
		out: `eth gw > a | ip c > a ttl 63 | tcp 80 > 40000 ` + flags}
}

// openedSteps are the first packets of the connection.
func openedSteps() []step {
	syn := outOf("S")
	syn.want = "FORWARD_RESOLVE"
	return []step{syn, notFast(inOf("SA")), fast(outOf("A")), fast(inOf("A"))}
}

// fastEventRows is the connection while the ends of flows are reported.
func fastEventRows() []row {
	end := outOf("FA")
	end.before = func(t testing.TB, w *world) { must(t, w.Listening.Set(uint32(DatapathListenLISTEN_FLOWS))) }
	return []row{{name: "a connection", steps: append(openedSteps(), notFast(end), fast(outOf("A")),
		notFast(inOf("FA")))}}
}

func fastFlowRows() []row {
	other := func(s step) step { // of a connection for whose replies the forwarding cache has a decision
		s.in, s.out = strings.ReplaceAll(s.in, "40000", "40001"), strings.ReplaceAll(s.out, "40000", "40001")
		return s
	}
	stale := other(inOf("SA"))
	stale.before = bumps(0)
	last := notFast(outOf("A"))
	const seen = tcpSYN | tcpACK | tcpPSH | tcpFIN
	last.after = all(last.after, flowIs(flowWant{"a", 7, 6, seen, seen, closing | replied}))
	after := func(name string, steps ...step) row { return row{name: name, steps: append(openedSteps(), steps...)} }
	return []row{
		after("a connection", fast(outOf("PA")), fast(inOf("PA")), fast(outOf("A")), fast(inOf("A")), fast(outOf("FA")),
			fast(inOf("A")), fast(outOf("FA")), fast(inOf("FA")), last),
		after("a connection that is reset", notFast(outOf("SF")), notFast(inOf("RA"))),
		after("another connection", notFast(other(outOf("S"))), fast(other(inOf("SA")))),
		after("policies change before the reply", notFast(other(outOf("S"))), notFast(stale)),
		after("another MAC", fast(outOf("A")),
			notFast(step{at: "from_pod linka", in: `eth b > gw | ip a > c | tcp 40000 > 80 A`,
				want: "DROP_SPOOFED_MAC"}),
			notFast(step{at: "from_pod linkb", in: `eth b > gwb | ip a > c | tcp 40000 > 80 A`,
				want: "DROP_SPOOFED_ADDRESS"}),
			fast(outOf("A"))),
	}
}

// fastTraceRows are packets while Hubble reads which packets are forwarded.
func fastTraceRows() []row {
	listens := func(t testing.TB, w *world) { must(t, w.Listening.Set(uint32(DatapathListenLISTEN_TRACE))) }
	forwarded := func(l4 string) step {
		return step{at: "from_pod linka", in: `eth a > gw | ip a > b | ` + l4, want: "FORWARD_POD",
			out: `eth gwb > b | ip a > b ttl 63 | ` + l4}
	}
	first := forwarded(`tcp 40000 > 80 A`)
	first.before = listens
	return []row{{name: "TCP", steps: []step{
		first, forwarded(`tcp 40000 > 80 A`), fast(forwarded(`tcp 40000 > 80 A | "x"`)),
		notFast(forwarded(`tcp 40000 > 80 S`)), notFast(forwarded(`tcp 40000 > 80 FA`)),
		notFast(forwarded(`udp 1 > 2`)),
	}}}
}
