package bpf

import "slices"

// across is a row for clients of IPv4, and one for those of IPv6: steps gets the client's family and the backend's.
func across(name string, steps func(client, backend string) []step) []row {
	return []row{only4(row{name: name, steps: steps("ip4", "ip6")}), only6(row{name: name, steps: steps("ip6", "ip4")})}
}

// df is what IPv4 made from IPv6 has, and IPv6 made from IPv4 can't have.
func df(family string) string {
	if family == "ip4" {
		return " df"
	}
	return ""
}

func crossRows() []row {
	return slices.Concat(
		across("a backend of the other family on node2", func(c, b string) []step {
			return []step{
				{at: "from_wire eth0", in: `eth router > node | ` + c + ` world > lb ttl 60 tos 0xb9 | tcp 40000 > 89 S seq 1 mss 1400`, want: "FORWARD_RESOLVE",
					out: `eth node > node2 | ` + b + ` node > c ttl 59 tos 0xb9` + df(b) + ` | tcp 51000 > 8080 S seq 1 mss 1400`},
				{at: "from_wire eth0", in: `eth node2 > node | ` + b + ` c > node ttl 60 | tcp 8080 > 51000 SA seq 5 ack 2`, want: "FORWARD_RESOLVE",
					out: `eth node > router | ` + c + ` lb > world ttl 59` + df(c) + ` | tcp 89 > 40000 SA seq 5 ack 2`},
				{at: "from_wire eth0", in: `eth router > node | ` + c + ` world > lb ttl 60 | tcp 40000 > 89 A ack 6 | len 1001`, want: "FORWARD_WIRE",
					out: `eth node > node2 | ` + b + ` node > c ttl 59` + df(b) + ` | tcp 51000 > 8080 A ack 6 | len 1001`, after: translationsAre(1)},
			}
		}),
		across("a backend of the other family on this node", func(c, b string) []step {
			return []step{
				{at: "from_wire eth0", in: `eth router > node | ` + c + ` world > lb ttl 60 | udp 40000 > 90 | "odd"`, want: "FORWARD_POD", out: `eth gwb > b | ` + b + ` gw > b ttl 59` + df(b) + ` | udp 51000 > 8080 | "odd"`},
				{at: "from_pod linkb", in: `eth b > gwb | ` + b + ` b > gw ttl 64 | udp 8080 > 51000 | "answer"`, want: "FORWARD_RESOLVE", out: `eth node > router | ` + c + ` lb > world ttl 63` + df(c) + ` | udp 90 > 40000 | "answer"`},
				{at: "from_pod linkb", in: `eth b > gwb | ` + b + ` b > gw ttl 64 | udp 8080 > 51000 | "answer"`, want: "FORWARD_WIRE"},
			}
		}),
		across("a pod asks", func(c, _ string) []step {
			return []step{{at: "from_pod linka", in: `eth a > gw | ` + c + ` a > lb | udp 40000 > 89`, want: "DROP_CROSS_FAMILY", out: "="}}
		}),
		across("a fragment", func(c, _ string) []step {
			return []step{{at: "from_wire eth0", in: `eth router > node | ` + c + ` world > lb frag 7 off 0 mf | udp 40000 > 89 | len 32`, want: "DROP_CROSS_FAMILY", out: "="}}
		}),
		[]row{
			only4(one("without a checksum", "from_wire eth0", `eth router > node | ip4 world > lb | udp 40000 > 89 nosum`, "DROP_CROSS_FAMILY", "=")),
			only4(one("too big for IPv6", "from_wire eth0", `eth router > node | ip4 world > lb | tcp 40000 > 89 S | len 1450`, "DROP_TOO_BIG REPLY_ICMP", "")),
			only6(one("not too big for IPv4", "from_wire eth0", `eth router > node | ip6 world > lb | tcp 40000 > 89 S | len 1440`, "FORWARD_RESOLVE", "")),
		},
	)
}
