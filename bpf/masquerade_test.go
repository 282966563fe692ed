package bpf

import (
	"testing"

	"golang.org/x/sys/unix"
)

// The range of ports has one port, 50000, unless a table says otherwise: packets can then be written down.
func masqueradeTables() []table {
	return []table{
		{name: "masquerade", settings: settingsOf(masquerading),
			rows: append(append(outAndInRows(), notMasqueradedRows()...), claimRows()...)},
		{name: "masquerade, tracking", settings: settingsOf(masquerading, tracking),
			rows: append(append(outAndInRows(), notMasqueradedRows()...), claimRows()...)},
		{name: "masquerade, legacy", settings: settingsOf(masquerading, legacy), rows: masqueradeLegacyRows()},
		{name: "masquerade without an address", settings: settingsOf(masquerading), rows: []row{
			{name: "refused", steps: []step{
				{at: "from_pod linka", in: `eth a > gw | ip a > world | udp 1 > 2`, want: "DROP_NAT_NO_ADDRESS",
					out: "=", before: takeWireAddresses},
			}},
		}},
	}
}

func takeWireAddresses(t testing.TB, w *world) {
	t.Helper()
	var wire DatapathWire
	eth0 := uint32(w.index["eth0"])
	must(t, w.Wires.Lookup(eth0, &wire))
	t.Cleanup(func() { must(t, w.Wires.Put(eth0, wire)) })
	must(t, w.Wires.Put(eth0, DatapathWire{Mtu: 1500}))
	w.bump(t, 0)
}

// exchange is a pod's packet to the world, as it is, and as it leaves; the answer, and as it arrives; and the pod's
// next packet, which goes by what was kept.
func exchange(name, out, outWire, in, inPod string) row {
	return row{name: name, steps: []step{
		{at: "from_pod linka", in: "eth a > gw | ip a > world ttl 64 " + out, want: "FORWARD_RESOLVE",
			out: "eth node > router | ip node > world ttl 63 " + outWire, after: flowsAre(1)},
		{at: "from_wire eth0", in: "eth router > node | ip world > node ttl 50 " + in, want: "FORWARD_POD",
			out: "eth gw > a | ip world > a ttl 49 " + inPod, after: flowsAre(1)},
		{at: "from_pod linka", in: "eth a > gw | ip a > world ttl 64 " + out, want: "FORWARD_WIRE",
			out: "eth node > router | ip node > world ttl 63 " + outWire, after: flowsAre(1)},
	}}
}

func outAndInRows() []row {
	return []row{
		exchange("tcp", `| tcp 40000 > 80 S seq 1 mss 1460`, `| tcp 50000 > 80 S seq 1 mss 1460`,
			`| tcp 80 > 50000 SA seq 5 ack 2`, `| tcp 80 > 40000 SA seq 5 ack 2`),
		exchange("tcp with data", `| tcp 40000 > 80 PA seq 1 | "hello"`, `| tcp 50000 > 80 PA seq 1 | "hello"`,
			`| tcp 80 > 50000 A | len 1400`, `| tcp 80 > 40000 A | len 1400`),
		exchange("udp", `| udp 40000 > 53 | "query"`, `| udp 50000 > 53 | "query"`, `| udp 53 > 50000 | "answer"`,
			`| udp 53 > 40000 | "answer"`),
		exchange("udp without a checksum", `| udp 40000 > 53 nosum | "query"`, `| udp 50000 > 53 nosum | "query"`,
			`| udp 53 > 50000 nosum | "answer"`, `| udp 53 > 40000 nosum | "answer"`),
		exchange("the pod's own port is in the range and free", `| udp 50000 > 53`, `| udp 50000 > 53`,
			`| udp 53 > 50000`, `| udp 53 > 50000`),
		exchange("echo", `| icmp echo id 7 seq 1 | len 56`, `| icmp echo id 50000 seq 1 | len 56`,
			`| icmp echo-reply id 50000 seq 1 | len 56`, `| icmp echo-reply id 7 seq 1 | len 56`),
		exchange("sctp", `| sctp 40000 > 80 init`, `| sctp 50000 > 80 init`,
			`| sctp 80 > 50000 vtag 9 init-ack | len 320`, `| sctp 80 > 40000 vtag 9 init-ack | len 320`),
		exchange("sctp, of which a device makes the checksum", `| sctp 40000 > 80 init sum 0`,
			`| sctp 50000 > 80 init sum 0`, `| sctp 80 > 50000 vtag 9 data sum 0 | len 1440`,
			`| sctp 80 > 40000 vtag 9 data sum 0 | len 1440`),
		exchange("sctp that is broken", `| sctp 40000 > 80 data badsum`, `| sctp 50000 > 80 data badsum`,
			`| sctp 80 > 50000 vtag 9 data badsum`, `| sctp 80 > 40000 vtag 9 data badsum`),
		only6(exchange("sctp behind extension headers", `| hbh | dstopts | sctp 40000 > 80 init | len 19`,
			`| hbh | dstopts | sctp 50000 > 80 init | len 19`, `| dstopts | sctp 80 > 50000 init-ack`,
			`| dstopts | sctp 80 > 40000 init-ack`)),
		only4(exchange("sctp behind options", `opts 44040500 | sctp 40000 > 80 init | len 64`,
			`opts 44040500 | sctp 50000 > 80 init | len 64`, `| sctp 80 > 50000 init-ack`,
			`| sctp 80 > 40000 init-ack`)),
		only4(exchange("IPv4 options", `opts 44040500 | tcp 40000 > 80 S`, `opts 44040500 | tcp 50000 > 80 S`,
			`opts 9404000001010100 | tcp 80 > 50000 SA`, `opts 9404000001010100 | tcp 80 > 40000 SA`)),
		only6(exchange("IPv6 extension headers", `| hbh | dstopts | tcp 40000 > 80 S`,
			`| hbh | dstopts | tcp 50000 > 80 S`, `| dstopts body 010a00000000000000000000 | tcp 80 > 50000 SA`,
			`| dstopts body 010a00000000000000000000 | tcp 80 > 40000 SA`)),
		only6(exchange("five IPv6 extension headers", `| hbh | dstopts | dstopts | dstopts | dstopts | udp 40000 > 53`,
			`| hbh | dstopts | dstopts | dstopts | dstopts | udp 50000 > 53`,
			`| dstopts | udp 53 > 50000`, `| dstopts | udp 53 > 40000`)),
		only6(exchange("an atomic fragment", `| frag 9 | udp 40000 > 53`, `| frag 9 | udp 50000 > 53`,
			`| frag 8 | udp 53 > 50000`, `| frag 8 | udp 53 > 40000`)),
		only6(one("too many extension headers", "from_pod linka",
			`eth a > gw | ip6 a > world | hbh | dstopts | dstopts | dstopts | dstopts | dstopts | udp 1 > 2`,
			"DROP_EXTENSION_HEADERS", "=")),
		one("no ports", "from_pod linka", `eth a > gw | ip a > world | esp spi 1 seq 1 | len 40`,
			"DROP_UNSUPPORTED_L4", "="),
		only4(one("an identifier that is not an echo's", "from_pod linka",
			`eth a > gw | ip4 a > world | icmp timestamp id 7 seq 1 | len 12`, "DROP_UNSUPPORTED_L4", "=")),
		one("truncated", "from_pod linka", `eth a > gw | ip a > world proto udp | len 7`, "DROP_TRUNCATED", "="),
		one("truncated tcp", "from_pod linka", `eth a > gw | ip a > world proto tcp | len 13`, "DROP_TRUNCATED", "="),
		one("truncated tcp, before its checksum", "from_pod linka",
			`eth a > gw | ip a > world proto tcp | hex:9c400050000000010000000050020400`, "DROP_TRUNCATED", "="),
	}
}

func notMasqueradedRows() []row {
	return []row{
		one("to the cluster", "from_pod linka", `eth a > gw | ip a > c | udp 40000 > 53`, "FORWARD_RESOLVE",
			`eth node > node2 | ip a > c ttl 63 | udp 40000 > 53`),
		one("to a node", "from_pod linka", `eth a > gw | ip a > node2 | udp 40000 > 53`, "FORWARD_RESOLVE",
			`eth node > node2 | ip a > node2 ttl 63 | udp 40000 > 53`),
		one("to a pod", "from_pod linka", `eth a > gw | ip a > b | udp 40000 > 53`, "FORWARD_POD",
			`eth gwb > b | ip a > b ttl 63 | udp 40000 > 53`),
		one("the host's", "from_wire eth0", `eth router > node | ip world > node | tcp 80 > 50000 SA`,
			"FORWARD_STACK", "="),
		one("the host's, below the range", "from_wire eth0", `eth router > node | ip world > node | tcp 5000 > 49999 S`,
			"FORWARD_STACK", "="),
		one("the host's echo", "from_wire eth0", `eth router > node | ip world > node | icmp echo-reply id 50000 seq 1`,
			"FORWARD_STACK", "="),
		one("the host's, no ports", "from_wire eth0", `eth router > node | ip world > node | esp spi 1 seq 1 | len 40`,
			"FORWARD_STACK", "="),
		one("the host's, truncated", "from_wire eth0", `eth router > node | ip world > node proto udp | len 7`,
			"FORWARD_STACK", "="),
		{name: "an answer by another port is the host's", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > world | udp 40000 > 53`, want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: `eth router > node | ip world > node | udp 54 > 50000`, want: "FORWARD_STACK",
				out: "="},
			{at: "from_wire eth0", in: `eth router > node | ip world2 > node | udp 53 > 50000`, want: "FORWARD_STACK",
				out: "="},
			{at: "from_wire eth0", in: `eth router > node | ip world > node | tcp 53 > 50000 A`, want: "FORWARD_STACK",
				out: "="},
		}},
		{name: "an answer to what the world began leaves as it is", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > a | tcp 5000 > 80 S`, want: "FORWARD_POD",
				out: `eth gw > a | ip world > a ttl 63 | tcp 5000 > 80 S`},
			{at: "from_pod linka", in: `eth a > gw | ip a > world | tcp 80 > 5000 SA`, want: "FORWARD_RESOLVE",
				out: `eth node > router | ip a > world ttl 63 | tcp 80 > 5000 SA`},
		}},
		{name: "an answer to the world's echo leaves as it is", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > a | icmp echo id 7 seq 1`, want: "FORWARD_POD",
				out: `eth gw > a | ip world > a ttl 63 | icmp echo id 7 seq 1`},
			{at: "from_pod linka", in: `eth a > gw | ip a > world | icmp echo-reply id 7 seq 1`,
				want: "FORWARD_RESOLVE", out: `eth node > router | ip a > world ttl 63 | icmp echo-reply id 7 seq 1`},
		}},
	}
}

// masqueradeLegacyRows: the host's stack forwards, the wire's hooks translate.
func masqueradeLegacyRows() []row {
	return []row{
		{name: "out and in", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > world | tcp 40000 > 80 S`, want: "FORWARD_STACK", out: "="},
			{at: "to_wire eth0", in: `eth node > router | ip a > world ttl 63 | tcp 40000 > 80 S`,
				want: "FORWARD_STACK", out: `eth node > router | ip node > world ttl 63 | tcp 50000 > 80 S`},
			{at: "from_wire eth0", in: `eth router > node | ip world > node | tcp 80 > 50000 SA`, want: "FORWARD_STACK",
				out: `eth router > node | ip world > a | tcp 80 > 40000 SA`},
		}},
		one("to the cluster", "to_wire eth0", `eth node > node2 | ip a > c ttl 63 | udp 1 > 2`, "FORWARD_STACK", "="),
		one("the host's own", "to_wire eth0", `eth node > router | ip node > world | udp 50000 > 53`,
			"FORWARD_STACK", "="),
		one("another's", "to_wire eth0", `eth node > router | ip stranger > world | udp 1 > 2`, "FORWARD_STACK", "="),
		one("no ports", "to_wire eth0", `eth node > router | ip a > world ttl 63 | esp spi 1 seq 1 | len 40`,
			"DROP_UNSUPPORTED_L4", "="),
		{name: "no port", steps: []step{
			{at: "to_wire eth0", in: `eth node > router | ip a > world ttl 63 | udp 1 > 53`, want: "FORWARD_STACK"},
			{at: "to_wire eth0", in: `eth node > router | ip b > world ttl 63 | udp 1 > 53`, want: "DROP_NAT_NO_PORT",
				out: "="},
		}},
		{name: "no address", steps: []step{
			{at: "to_wire eth0", in: `eth node > router | ip a > world ttl 63 | udp 1 > 53`,
				want: "DROP_NAT_NO_ADDRESS", out: "=", before: func(t testing.TB, w *world) {
					wire := DatapathWire{}
					must(t, w.Wires.Lookup(uint32(w.index["eth0"]), &wire))
					t.Cleanup(func() { must(t, w.Wires.Put(uint32(w.index["eth0"]), wire)) })
					takeWireAddresses(t, w)
				}},
		}},
		only4(one("arp", "to_wire eth0", `eth node > broadcast | arp who-has router tell node`, "", "=")),
	}
}

// claimRows are about the allocation of ports.
func claimRows() []row {
	a, b := `eth a > gw | ip a > world | udp 40000 > 53`, `eth b > gwb | ip b > world | udp 40000 > 53`
	outA, outB := `eth node > router | ip node > world ttl 63 | udp 50000 > 53`,
		`eth node > router | ip node > world ttl 63 | udp 50000 > 53`
	return []row{
		{name: "another pod has the port", steps: []step{
			{at: "from_pod linka", in: a, want: "FORWARD_RESOLVE", out: outA},
			{at: "from_pod linkb", in: b, want: "DROP_NAT_NO_PORT", out: "="},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > world | udp 40000 > 54`, want: "FORWARD_WIRE",
				out: `eth node > router | ip node > world ttl 63 | udp 50000 > 54`},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > world2 | udp 40000 > 53`, want: "FORWARD_RESOLVE",
				out: `eth node > router | ip node > world2 ttl 63 | udp 50000 > 53`},
			{at: "from_pod linkb", in: `eth b > gwb | ip b > world | tcp 40000 > 53 S`, want: "FORWARD_WIRE",
				out: `eth node > router | ip node > world ttl 63 | tcp 50000 > 53 S`},
			{at: "from_pod linka", in: `eth a > gw | ip a > world | udp 40001 > 53`, want: "DROP_NAT_NO_PORT",
				out: "="},
			{at: "from_pod linka", in: a, want: "FORWARD_WIRE", out: outA},
		}},
		{name: "an entry that was not used for long is replaced", steps: []step{
			{at: "from_pod linka", in: a, want: "FORWARD_RESOLVE", out: outA},
			{at: "from_pod linkb", in: b, want: "FORWARD_RESOLVE", out: outB, before: ages(61)},
			{at: "from_wire eth0", in: `eth router > node | ip world > node | udp 53 > 50000`, want: "FORWARD_POD",
				out: `eth gwb > b | ip world > b ttl 63 | udp 53 > 40000`},
			{at: "from_pod linka", in: a, want: "DROP_NAT_NO_PORT", out: "="},
		}},
		{name: "a row that was used a moment ago, and answered, is not", steps: []step{
			{at: "from_pod linka", in: a, want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: `eth router > node | ip world > node | udp 53 > 50000`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: a, want: "FORWARD_WIRE"},
			{at: "from_pod linkb", in: b, want: "DROP_NAT_NO_PORT", out: "=", before: ages(58)},
		}},
		{name: "one datagram each way makes room where no port is free", steps: []step{
			{at: "from_pod linka", in: a, want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: `eth router > node | ip world > node | udp 53 > 50000`, want: "FORWARD_POD"},
			{at: "from_pod linkb", in: b, want: "DROP_NAT_NO_PORT", out: "=", before: ages(4)},
			{at: "from_pod linkb", in: b, want: "FORWARD_WIRE", before: ages(2), after: flowsAre(1)},
		}},
		{name: "a row that was not answered makes room where no port is free", steps: []step{
			{at: "from_pod linka", in: a, want: "FORWARD_RESOLVE"},
			{at: "from_pod linkb", in: b, want: "DROP_NAT_NO_PORT", out: "="},
			{at: "from_pod linkb", in: b, want: "FORWARD_WIRE", before: ages(2), after: flowsAre(1)},
		}},
		{name: "a socket of the host has the port of an entry that was not used for long", steps: []step{
			{at: "from_pod linka", in: a, want: "FORWARD_RESOLVE", out: outA},
			{at: "from_pod linkb", in: b, want: "DROP_NAT_NO_PORT", out: "=", before: func(t testing.TB, w *world) {
				hostSocket(t, unix.SOCK_DGRAM, 50000)
				ages(61)(t, w)
			}},
		}},
		{name: "a socket of the host's has the port of a row that makes room", steps: []step{
			{at: "from_pod linka", in: a, want: "FORWARD_RESOLVE", out: outA},
			{at: "from_pod linkb", in: b, want: "DROP_NAT_NO_PORT", out: "=", before: func(t testing.TB, w *world) {
				hostSocket(t, unix.SOCK_DGRAM, 50000)
				ages(2)(t, w)
			}},
		}},
		claimSocket("a socket of the host's has the port, udp", unix.SOCK_DGRAM, `udp 40000 > 53`),
		claimSocket("a socket of the host's has the port, tcp", unix.SOCK_STREAM, `tcp 40000 > 53 S`),
	}
}

func claimSocket(name string, kind int, l4 string) row {
	return row{name: name, steps: []step{
		{at: "from_pod linka", in: `eth a > gw | ip a > world | ` + l4, want: "DROP_NAT_NO_PORT", out: "=",
			before: func(t testing.TB, _ *world) { hostSocket(t, kind, 50000) }},
	}}
}
