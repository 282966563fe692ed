package bpf

import "myelin/test/packet/packettest"

func icmpTables() []table {
	return []table{
		{name: "icmp", settings: settingsOf(), rows: append(append(ttlRows(), tooBigRows()...), unreachableRows()...)},
		{name: "icmp, masquerading", settings: settingsOf(masquerading), rows: append(masqueradedErrorRows(),
			ttlRows()...)},
	}
}

func ttlRows() []row {
	return []row{
		one("last hop", "from_pod linka", `eth a > gw | ip a > c ttl 1 | udp 40000 > 33434 | len 20`,
			"DROP_TTL REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp time-exceeded | ip a > c ttl 1 | udp 40000 > 33434 | len 20`),
		one("beyond the last hop", "from_pod linka", `eth a > gw | ip a > c ttl 0 | tcp 40000 > 80 S seq 7`,
			"DROP_TTL REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp time-exceeded | ip a > c ttl 0 | tcp 40000 > 80 S seq 7`),
		one("to a pod", "from_pod linkb", `eth b > gwb | ip b > a ttl 1 | icmp echo id 1 seq 1 | len 40`,
			"DROP_TTL REPLY_ICMP",
			`eth gwb > b | ip gw > b df | icmp time-exceeded | ip b > a ttl 1 | icmp echo id 1 seq 1 | len 40`),
		one("an odd length is quoted but for the rest", "from_pod linka",
			`eth a > gw | ip a > c ttl 1 | udp 1 > 2 | len 7`,
			"DROP_TTL REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp time-exceeded quote +12 | ip a > c ttl 1 | udp 1 > 2 | len 7`),
		one("from the wire", "from_wire eth0", `eth node2 > node | ip c > a ttl 1 | udp 1 > 2 | len 4`,
			"DROP_TTL REPLY_ICMP",
			`eth node > node2 | ip gw > c df | icmp time-exceeded | ip c > a ttl 1 | udp 1 > 2 | len 4`),
		one("echo reply", "from_pod linka", `eth a > gw | ip a > b ttl 1 | icmp echo-reply id 1 seq 1`,
			"DROP_TTL REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp time-exceeded | ip a > b ttl 1 | icmp echo-reply id 1 seq 1`),
		one("no error about an error", "from_pod linka",
			`eth a > gw | ip a > c ttl 1 | icmp unreachable port | ip c > a | udp 1 > 2`, "DROP_TTL", "="),
		one("no error about an error from the wire", "from_wire eth0",
			`eth node2 > node | ip c > a ttl 1 | icmp too-big mtu 1400 | ip a > c | udp 1 > 2`, "DROP_TTL", "="),
		only4(one("no error about a redirect", "from_pod linka",
			`eth a > gw | ip a > b ttl 1 | icmp redirect host gateway b | ip b > a | udp 1 > 2`, "DROP_TTL", "=")),
		only4(one("no error about a later fragment", "from_pod linka",
			`eth a > gw | ip a > c ttl 1 frag 7 off 1480 proto udp | len 20`, "DROP_TTL", "=")),
		one("about a first fragment", "from_pod linka",
			`eth a > gw | ip a > b ttl 1 frag 7 mf | udp 1 > 2 len 3000 sum 1 | len 16`,
			"DROP_TTL REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp time-exceeded | ip a > b ttl 1 frag 7 mf | udp 1 > 2 len 3000 `+
				`sum 1 | len 16`),
		only4(one("no error about an error behind options", "from_pod linka",
			`eth a > gw | ip4 a > c ttl 1 opts 00000000 | icmp unreachable port | ip c > a | udp 1 > 2`,
			"DROP_TTL", "=")),
		only6(one("no error about an error behind an extension header", "from_pod linka",
			`eth a > gw | ip6 a > c ttl 1 | dstopts | icmp unreachable port | ip c > a | udp 1 > 2`, "DROP_TTL", "=")),
		only4(one("options are quoted", "from_pod linka",
			`eth a > gw | ip4 a > c ttl 1 opts 44040500 | udp 1 > 2 | len 8`,
			"DROP_TTL REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp time-exceeded | ip4 a > c ttl 1 opts 44040500 | udp 1 > 2 | len 8`)),
		{name: "the quote is 96 bytes at most, and the error is as right after a kept decision", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 1 > 2 | len 1000`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: `eth a > gw | ip a > b ttl 1 | udp 1 > 2 | len 1000`,
				want: "DROP_TTL REPLY_ICMP",
				out: `eth gw > a | ip gw > a df | icmp time-exceeded quote 96 | ` +
					`ip a > b ttl 1 | udp 1 > 2 | len 1000`},
		}},
	}
}

func tooBigRows() []row {
	return []row{
		only4(one("as large as the route allows", "from_pod linka",
			`eth a > gw | ip4 a > narrow df | udp 1 > 2 | len 1372`, "FORWARD_RESOLVE",
			`eth node > node2 | ip4 a > narrow df ttl 63 | udp 1 > 2 | len 1372`)),
		only6(one("as large as the route allows", "from_pod linka",
			`eth a > gw | ip6 a > narrow | udp 1 > 2 | len 1352`, "FORWARD_RESOLVE",
			`eth node > node2 | ip6 a > narrow ttl 63 | udp 1 > 2 | len 1352`)),
		routeMTU(only4(one("a byte too large", "from_pod linka",
			`eth a > gw | ip4 a > narrow df | udp 1 > 2 | len 1373`,
			"DROP_TOO_BIG REPLY_ICMP",
			`eth gw > a | ip4 gw > a df | icmp too-big mtu 1400 quote 96 | ip4 a > narrow df | udp 1 > 2 | len 1373`))),
		routeMTU(only6(one("a byte too large", "from_pod linka", `eth a > gw | ip6 a > narrow | udp 1 > 2 | len 1353`,
			"DROP_TOO_BIG REPLY_ICMP",
			`eth gw > a | ip6 gw > a | icmp too-big mtu 1400 quote 96 | ip6 a > narrow | udp 1 > 2 | len 1353`))),
		one("too large for the wire", "from_pod linka", `eth a > gw | ip a > c df | udp 1 > 2 | len 1600`,
			"DROP_TOO_BIG REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp too-big mtu 1500 quote 96 | ip a > c df | udp 1 > 2 | len 1600`),
		routeMTU(one("no error about an error", "from_pod linka",
			`eth a > gw | ip a > narrow df | icmp unreachable port | ip narrow > a | udp 1 > 2 | len 1400`,
			"DROP_TOO_BIG", "=")),
		{name: "segments that are small enough", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > c df | tcp 1 > 2 A | len 3000`, want: "FORWARD_RESOLVE",
				options: packettest.Options{GSOSize: 1420, GSOSegs: 3}},
		}},
		{name: "segments that are too large", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > c df | tcp 1 > 2 A | len 3000`,
				want: "DROP_TOO_BIG REPLY_ICMP", options: packettest.Options{GSOSize: 1500, GSOSegs: 3},
				out: `eth gw > a | ip gw > a df | icmp too-big mtu 1500 quote 96 | ` +
					`ip a > c df | tcp 1 > 2 A | len 3000`},
		}},
		only4(row{name: "segments that their options make too large", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip4 a > c df | tcp 1 > 2 A nop nop ts 1 2 | len 3000`,
				want: "DROP_TOO_BIG REPLY_ICMP", options: packettest.Options{GSOSize: 1450, GSOSegs: 3}},
		}}),
		only6(row{name: "segments that their options make too large", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip6 a > c | tcp 1 > 2 A nop nop ts 1 2 | len 3000`,
				want: "DROP_TOO_BIG REPLY_ICMP", options: packettest.Options{GSOSize: 1430, GSOSegs: 3}},
		}}),
	}
}

func unreachableRows() []row {
	return []row{
		one("unreachable", "from_pod linka", `eth a > gw | ip a > unreachable | udp 1 > 2`,
			"DROP_NO_ROUTE REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp unreachable host | ip a > unreachable | udp 1 > 2`),
		one("prohibit", "from_pod linka", `eth a > gw | ip a > prohibit | tcp 1 > 2 S`,
			"DROP_BLACKHOLE REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp unreachable admin | ip a > prohibit | tcp 1 > 2 S`),
		one("blackhole", "from_pod linka", `eth a > gw | ip a > blackhole | udp 1 > 2`,
			"DROP_BLACKHOLE REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp unreachable admin | ip a > blackhole | udp 1 > 2`),
		one("no error about an error", "from_pod linka",
			`eth a > gw | ip a > unreachable | icmp unreachable port | ip unreachable > a | udp 1 > 2`,
			"DROP_NO_ROUTE", "="),
		one("no error to a spoofed sender", "from_pod linka", `eth a > gw | ip b > unreachable | udp 1 > 2`,
			"DROP_SPOOFED_ADDRESS", "="),
		one("an unreachable neighbour causes no error here", "from_pod linka",
			`eth a > gw | ip a > d ttl 2 | udp 1 > 2`, "FORWARD_RESOLVE", ""),
	}
}

// masqueradedErrorRows: what an error quotes is what its sender sent, not what it was being translated to.
func masqueradedErrorRows() []row {
	return []row{
		one("last hop to the world", "from_pod linka", `eth a > gw | ip a > world ttl 1 | udp 40000 > 33434 | len 20`,
			"DROP_TTL REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp time-exceeded | ip a > world ttl 1 | udp 40000 > 33434 | len 20`),
		one("too large for the world", "from_pod linka", `eth a > gw | ip a > world df | udp 40000 > 443 | len 1600`,
			"DROP_TOO_BIG REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp too-big mtu 1500 quote 96 | `+
				`ip a > world df | udp 40000 > 443 | len 1600`),
		{name: "last hop of a reply", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > world | udp 40000 > 53 | len 4`, want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: `eth router > node | ip world > node ttl 1 | udp 53 > 50000 | len 4`,
				want: "DROP_TTL REPLY_ICMP",
				out: `eth node > router | ip node > world df | icmp time-exceeded | ip world > node ttl 1 | udp 53 > ` +
					`50000 | len 4`},
		}},
	}
}
