package bpf

import "myelin/test/packet/packettest"

// BIG TCP: packets of more than 64 KiB have no length in their IP header; those of IPv6 have it in a hop-by-hop option
// before kernel 7.0. Test runs take short packets only, which the datapath tells from others by their GSO size, too.
const (
	jumboOption = `hbh body c204000186a0`
	jumboOut    = `eth a > gw | ip6 a > b payload-len 0 | hbh body c204000186a0 | tcp 40000 > 80 A | len 1000`
	jumboIn     = `eth node2 > node | ip6 c > a payload-len 0 | hbh body c204000186a0 | tcp 40000 > 80 A | len 1000`
)

func bigTCPTables() []table {
	return []table{
		{name: "BIG TCP", settings: settingsOf(), rows: append(bigTCPRows(), bigTCPSizeRows()...)},
		{name: "BIG TCP, tracking", settings: settingsOf(tracking), rows: append(append(bigTCPRows(),
			bigTCPSizeRows()...), shortRows("DROP_TRUNCATED")...)},
		{name: "BIG TCP, across families", settings: settingsOf(servicing), rows: bigTCPCrossRows()},
		{name: "BIG TCP, policies", settings: settingsOf(policed), rows: bigTCPPolicyRows()},
	}
}

// segments gives all steps of rows a GSO size.
func segments(size uint32, rows ...row) []row {
	for _, r := range rows {
		for i := range r.steps {
			r.steps[i].options = packettest.Options{GSOSize: size, GSOSegs: 2}
		}
	}
	return rows
}

func bigTCPRows() []row {
	return append(segments(1000,
		only6(one("jumbo, to a pod", "from_pod linka", jumboOut, "FORWARD_POD",
			`eth gwb > b | ip6 a > b ttl 63 payload-len 0 | `+jumboOption+` | tcp 40000 > 80 A | len 1000`)),
		only6(one("jumbo, from a wire", "from_wire eth0", jumboIn, "FORWARD_POD",
			`eth gw > a | ip6 c > a ttl 63 payload-len 0 | `+jumboOption+` | tcp 40000 > 80 A | len 1000`)),
		only6(one("no jumbo, no length", "from_pod linka",
			`eth a > gw | ip6 a > b payload-len 0 | tcp 40000 > 80 A | len 1000`, "FORWARD_POD",
			`eth gwb > b | ip6 a > b ttl 63 payload-len 0 | tcp 40000 > 80 A | len 1000`)),
		only4(one("no length", "from_pod linka", `eth a > gw | ip4 a > b tot-len 0 | tcp 40000 > 80 A | len 1000`,
			"FORWARD_POD", `eth gwb > b | ip4 a > b ttl 63 tot-len 0 | tcp 40000 > 80 A | len 1000`)),
	), only4(one("no length, no segments", "from_pod linka",
		`eth a > gw | ip4 a > b tot-len 0 | tcp 40000 > 80 A | len 1000`, "DROP_BAD_HEADER", "=")))
}

// bigTCPSizeRows are packets whose segments just fit into an MTU of 1400, and are a byte too large.
func bigTCPSizeRows() []row {
	const jumbo = `eth a > gw | ip6 a > narrow payload-len 0 | ` + jumboOption + ` | tcp 40000 > 80 A | len 2000`
	const plain = `eth a > gw | ip4 a > narrow tot-len 0 | tcp 40000 > 80 A | len 2000`
	rows := append(segments(1340, only6(one("jumbo segments fit", "from_pod linka", jumbo, "FORWARD_RESOLVE", ""))),
		segments(1341, only6(one("jumbo segments are too large", "from_pod linka", jumbo, "DROP_TOO_BIG REPLY_ICMP",
			"")))...)
	rows = append(rows, segments(1360, only4(one("segments fit", "from_pod linka", plain, "FORWARD_RESOLVE", "")))...)
	rows = append(rows, segments(1361, only4(one("segments are too large", "from_pod linka", plain,
		"DROP_TOO_BIG REPLY_ICMP", "")))...)
	for i := range rows {
		rows[i] = routeMTU(rows[i])
	}
	return rows
}

// shortRows are packets that say they are jumbograms and are none: without segments there is no layer 4.
func shortRows(want string) []row {
	return []row{only6(one("jumbo without segments", "from_pod linka", jumboOut, want, "="))}
}

// bigTCPCrossRows have Services whose backend has the other family, where such packets are dropped.
func bigTCPCrossRows() []row {
	none := map[string]string{"ip4": " tot-len 0", "ip6": " payload-len 0"}
	rows := across("a backend of the other family", func(c, _ string) []step {
		return []step{
			{at: "from_wire eth0", in: `eth router > node | ` + c + ` world > lb | tcp 40000 > 89 S`,
				want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: `eth router > node | ` + c + ` world > lb` + none[c] +
				` | tcp 40000 > 89 A | len 1001`, want: "DROP_CROSS_FAMILY"},
		}
	})
	for _, r := range rows {
		segments(1000, row{steps: r.steps[1:]})
	}
	return rows
}

// bigTCPPolicyRows are attempts to reach a closed port behind hop-by-hop options.
func bigTCPPolicyRows() []row {
	opens80 := isolates(slotB, ingress, allows("", tcp, 80))
	try := func(name, headers string, want string) row {
		return only6(row{name: name, steps: []step{{at: "from_pod linka", before: opens80,
			in:   `eth a > gw | ip6 a > b payload-len 0 | ` + headers + ` | len 1000`,
			want: want}}})
	}
	return segments(1000,
		try("open port", jumboOption+` | tcp 40000 > 80 S`, "FORWARD_POD"),
		try("closed port", jumboOption+` | tcp 40000 > 81 S`, "DROP_POLICY_NO_RULE"),
		try("twice, closed port", jumboOption+` | `+jumboOption+` | tcp 40000 > 81 S`, "DROP_POLICY_NO_RULE"),
		try("other options, closed port", `hbh body 050200000100 | tcp 40000 > 81 S`, "DROP_POLICY_NO_RULE"),
		try("jumbo behind padding, closed port", `hbh body 010400000000c204000186a00100 | tcp 40000 > 81 S`,
			"DROP_POLICY_NO_RULE"),
		try("UDP behind jumbo, closed port", jumboOption+` | udp 40000 > 80`, "DROP_POLICY_NO_RULE"),
		try("length beyond the packet", `hbh body c204000186a0 hdr-len 255 | tcp 40000 > 80 S`, "DROP_TRUNCATED"),
	)
}
