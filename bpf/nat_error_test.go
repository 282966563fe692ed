package bpf

func masqueradeErrorTables() []table {
	return []table{
		{name: "masquerade, errors", settings: settingsOf(masquerading),
			rows: append(errorInRows(), errorOutRows()...)},
		{name: "masquerade, errors, tracking", settings: settingsOf(masquerading, tracking),
			rows: append(errorInRows(), errorOutRows()...)},
		{name: "masquerade, errors, legacy", settings: settingsOf(masquerading, legacy), rows: errorLegacyRows()},
	}
}

// errorIn is an error that the world sends about a packet of a's: out is the packet as the pod sent it, quoted and
// quotedPod the error as it comes and as the pod gets it.
func errorIn(name, out, quoted, quotedPod string) row {
	return row{name: name, steps: []step{
		{at: "from_pod linka", in: `eth a > gw | ip a > world | ` + out, want: "FORWARD_RESOLVE"},
		{at: "from_wire eth0", in: `eth router > node | ip router > node | ` + quoted, want: "FORWARD_POD",
			out: `eth gw > a | ip router > a ttl 63 | ` + quotedPod, after: flowsAre(1)},
	}}
}

func errorInRows() []row {
	return []row{
		errorIn("time exceeded, tcp", `tcp 40000 > 80 S seq 9`,
			`icmp time-exceeded | ip node > world ttl 1 | tcp 50000 > 80 S seq 9`,
			`icmp time-exceeded | ip a > world ttl 1 | tcp 40000 > 80 S seq 9`),
		errorIn("time exceeded, eight bytes of tcp", `tcp 40000 > 80 S seq 9`,
			`icmp time-exceeded quote +8 | ip node > world ttl 1 | tcp 50000 > 80 S seq 9`,
			`icmp time-exceeded quote +8 | ip a > world ttl 1 | tcp 40000 > 80 S seq 9`),
		errorIn("port unreachable, udp", `udp 40000 > 53 | "query"`,
			`icmp unreachable port | ip node > world ttl 3 | udp 50000 > 53 | "query"`,
			`icmp unreachable port | ip a > world ttl 3 | udp 40000 > 53 | "query"`),
		errorIn("port unreachable, udp without a checksum", `udp 40000 > 53 nosum`,
			`icmp unreachable port | ip node > world ttl 3 | udp 50000 > 53 nosum`,
			`icmp unreachable port | ip a > world ttl 3 | udp 40000 > 53 nosum`),
		errorIn("too big", `udp 40000 > 443 | len 100`,
			`icmp too-big mtu 1280 | ip node > world ttl 3 df | udp 50000 > 443 | len 100`,
			`icmp too-big mtu 1280 | ip a > world ttl 3 df | udp 40000 > 443 | len 100`),
		errorIn("time exceeded, echo", `icmp echo id 7 seq 1 | len 8`,
			`icmp time-exceeded | ip node > world ttl 1 | icmp echo id 50000 seq 1 | len 8`,
			`icmp time-exceeded | ip a > world ttl 1 | icmp echo id 7 seq 1 | len 8`),
		// that of a quote is not verified
		errorIn("unreachable, sctp", `sctp 40000 > 80 init`,
			`icmp unreachable host | ip node > world | sctp 50000 > 80 init`,
			`icmp unreachable host | ip a > world | sctp 40000 > 80 init badsum`),
		errorIn("parameter problem", `udp 40000 > 53`,
			`icmp parameter-problem pointer 8 | ip node > world | udp 50000 > 53`,
			`icmp parameter-problem pointer 8 | ip a > world | udp 40000 > 53`),
		errorIn("by the one it was sent to", `udp 40000 > 53`,
			`icmp unreachable admin | ip node > world | udp 50000 > 53`,
			`icmp unreachable admin | ip a > world | udp 40000 > 53`),
		only4(errorIn("options in the quote", `udp 40000 > 53`,
			`icmp unreachable port | ip4 node > world opts 44040500 | udp 50000 > 53`,
			`icmp unreachable port | ip4 a > world opts 44040500 | udp 40000 > 53`)),
		only6(errorIn("extension header in the quote", `dstopts | udp 40000 > 53`,
			`icmp unreachable port | ip6 node > world | dstopts | udp 50000 > 53`,
			`icmp unreachable port | ip6 a > world | dstopts | udp 40000 > 53`)),
		one("about nothing that is known", "from_wire eth0",
			`eth router > node | ip router > node | icmp unreachable port | ip node > world | udp 50000 > 53`,
			"FORWARD_STACK", "="),
		one("about the host's own", "from_wire eth0",
			`eth router > node | ip router > node | icmp time-exceeded | ip node > world ttl 1 | tcp 1234 > 80 S`,
			"FORWARD_STACK", "="),
		one("without a quote", "from_wire eth0", `eth router > node | ip router > node | icmp time-exceeded`,
			"FORWARD_STACK", "="),
		one("with half a quote", "from_wire eth0",
			`eth router > node | ip router > node | icmp time-exceeded quote 18 | ip node > world | udp 1 > 2`,
			"FORWARD_STACK", "="),
		one("about a protocol without ports", "from_wire eth0",
			`eth router > node | ip router > node | icmp unreachable proto | ip node > world | esp spi 1 seq 1`,
			"FORWARD_STACK", "="),
		{name: "about a pod that is gone", steps: []step{
			{at: "from_pod linkb", in: `eth b > gwb | ip b > world | udp 40000 > 53`, want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0",
				in:   `eth router > node | ip router > node | icmp unreachable port | ip node > world | udp 50000 > 53`,
				want: "DROP_NO_ENDPOINT", out: "=", before: removesB},
		}},
	}
}

func errorOutRows() []row {
	in := step{at: "from_wire eth0", in: `eth router > node | ip world > node | udp 53 > 50000 | "answer"`,
		want: "FORWARD_POD"}
	out := step{at: "from_pod linka", in: `eth a > gw | ip a > world | udp 40000 > 53 | "query"`,
		want: "FORWARD_RESOLVE"}
	return []row{
		{name: "the pod refuses an answer", steps: []step{out, in,
			{at: "from_pod linka",
				in: `eth a > gw | ip a > world | icmp unreachable port | ip world > a ttl 60 | udp 53 > ` +
					`40000 | "answer"`, want: "FORWARD_WIRE",
				out: `eth node > router | ip node > world ttl 63 | icmp unreachable port | ip world > node ttl 60 | ` +
					`udp 53 > 50000 | "answer"`, after: flowsAre(1)},
		}},
		{name: "the pod refuses an answer, short quote", steps: []step{out, in,
			{at: "from_pod linka",
				in: `eth a > gw | ip a > world | icmp unreachable port quote +8 | ip world > a ttl 60 | udp 53 > ` +
					`40000 | "answer"`, want: "FORWARD_WIRE",
				out: `eth node > router | ip node > world ttl 63 | icmp unreachable port quote +8 | ip world > node ` +
					`ttl 60 | udp 53 > 50000 sum 0x1234 | "answer"`, ignore: []string{"*.sum"}},
		}},
		one("about nothing that the world could know", "from_pod linka",
			`eth a > gw | ip a > world | icmp unreachable port | ip world > a | udp 53 > 40000`,
			"DROP_ICMP_UNRELATED", "="),
		one("without a quote", "from_pod linka", `eth a > gw | ip a > world | icmp time-exceeded`,
			"DROP_TRUNCATED", "="),
		one("about a protocol without ports", "from_pod linka",
			`eth a > gw | ip a > world | icmp unreachable proto | ip world > a | esp spi 1 seq 1`,
			"DROP_ICMP_UNRELATED", "="),
	}
}

func errorLegacyRows() []row {
	return []row{
		{name: "in", steps: []step{
			{at: "to_wire eth0", in: `eth node > router | ip a > world ttl 63 | udp 40000 > 53`, want: "FORWARD_STACK",
				out: `eth node > router | ip node > world ttl 63 | udp 50000 > 53`},
			{at: "from_wire eth0",
				in:   `eth router > node | ip router > node | icmp unreachable port | ip node > world | udp 50000 > 53`,
				want: "FORWARD_STACK",
				out:  `eth router > node | ip router > a | icmp unreachable port | ip a > world | udp 40000 > 53`},
		}},
	}
}
