package bpf

// crossXDPRows are flows that cross families, in XDP.
func crossXDPRows() []row {
	const at = "from_wire_xdp eth0"
	rows := across("in XDP", func(c, b string) []step {
		syn := `eth router > node | ` + c + ` world > lb ttl 60 | tcp 40000 > 89 S`
		asks := `eth router > node | ` + c + ` world > lb | udp 40000 > 89`
		return []step{
			{at: "from_wire eth0", in: asks, want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: asks, want: "FORWARD_WIRE"},
			{at: at, in: syn + ` mss 1400`, want: "FORWARD_WIRE",
				out:   `eth node > node2 | ` + b + ` node > c ttl 59` + df(b) + ` | tcp 51000 > 8080 S mss 1400`,
				after: translationsAre(2)},
			{at: "from_wire eth0", in: `eth node2 > node | ` + b + ` c > node ttl 60 | tcp 8080 > 51000 SA`,
				want: "FORWARD_RESOLVE"},
			{at: at, in: `eth node2 > node | ` + b + ` c > node ttl 60 tos 0xb9 | tcp 8080 > 51000 A seq 5 | "odd"`,
				want: "FORWARD_WIRE",
				out: `eth node > router | ` + c + ` lb > world ttl 59 tos 0xb9` + df(c) +
					` | tcp 89 > 40000 A seq 5 | "odd"`},
			{at: at, in: `eth router > node | ` + c + ` world > lb ttl 60 tos 0xb9 | tcp 40000 > 89 A ack 6 | len 1001`,
				want: "FORWARD_WIRE",
				out: `eth node > node2 | ` + b + ` node > c ttl 59 tos 0xb9` + df(b) +
					` | tcp 51000 > 8080 A ack 6 | len 1001`},
			{at: at, in: `eth router > node | ` + c + ` world > lb ttl 60 | udp 40000 > 89 | "odd"`,
				want: "FORWARD_WIRE",
				out:  `eth node > node2 | ` + b + ` node > c ttl 59` + df(b) + ` | udp 51000 > 8080 | "odd"`},
			{at: at, in: `eth node2 > node | ` + b + ` c > node ttl 60 | udp 8080 > 51000 | len 1400`,
				want: "FORWARD_WIRE",
				out:  `eth node > router | ` + c + ` lb > world ttl 59` + df(c) + ` | udp 89 > 40000 | len 1400`},
			{at: at, in: `eth router > node | ` + c + ` world > lb ttl 1 | tcp 40000 > 89 A | len 20`, want: "",
				out: "="},
		}
	})
	four := only4(row{name: "in XDP, without a checksum, and where IPv6 is longer", steps: []step{
		{at: "from_wire eth0", in: `eth router > node | ip4 world > lb | udp 40000 > 89`, want: "FORWARD_RESOLVE"},
		{at: "from_wire eth0", in: `eth router > node | ip4 world > lb | udp 40000 > 89`, want: "FORWARD_WIRE"},
		{at: at, in: `eth router > node | ip4 world > lb | udp 40000 > 89 nosum | "x" | pad 30`, want: "", out: "="},
		{at: at, in: `eth router > node | ip4 world > lb | udp 40000 > 89 | len 1452`, want: "FORWARD_WIRE",
			out: `eth node > node2 | ip6 node > c ttl 63 | udp 51000 > 8080 | len 1452`},
		{at: at, in: `eth router > node | ip4 world > lb | udp 40000 > 89 | len 1453`, want: "", out: "="},
	}})
	rows = append(rows, four)
	for i := range rows {
		rows[i] = xdp(rows[i])
	}
	return rows
}
