package bpf

import (
	"slices"
	"strings"
)

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

// mtuOf is the MTU of 1400 of the backend's way, as its client of a family has it: IPv6 pays 20 bytes more for its
// header.
func mtuOf(client string) string {
	if client == "ip4" {
		return `icmp too-big mtu 1380`
	}
	return `icmp too-big mtu 1420`
}

// hostOf is that a host is unreachable, as RFC 7915 has it in the other family: to IPv6 there is no route.
func hostOf(client string) string {
	if client == "ip4" {
		return `icmp unreachable host`
	}
	return `icmp unreachable net`
}

func crossRows() []row {
	return slices.Concat(
		across("a backend of the other family on node2", func(c, b string) []step {
			return []step{
				{at: "from_wire eth0",
					in:   `eth router > node | ` + c + ` world > lb ttl 60 tos 0xb9 | tcp 40000 > 89 S seq 1 mss 1400`,
					want: "FORWARD_RESOLVE",
					out: `eth node > node2 | ` + b + ` node > c ttl 59 tos 0xb9` + df(b) +
						` | tcp 51000 > 8080 S seq 1 mss 1400`},
				{at: "from_wire eth0",
					in:   `eth node2 > node | ` + b + ` c > node ttl 60 | tcp 8080 > 51000 SA seq 5 ack 2`,
					want: "FORWARD_RESOLVE",
					out: `eth node > router | ` + c + ` lb > world ttl 59` + df(c) +
						` | tcp 89 > 40000 SA seq 5 ack 2`},
				{at: "from_wire eth0",
					in:   `eth router > node | ` + c + ` world > lb ttl 60 | tcp 40000 > 89 A ack 6 | len 1001`,
					want: "FORWARD_WIRE",
					out: `eth node > node2 | ` + b + ` node > c ttl 59` + df(b) +
						` | tcp 51000 > 8080 A ack 6 | len 1001`, after: translationsAre(1)},
			}
		}),
		across("a backend of the other family on this node", func(c, b string) []step {
			return []step{
				{at: "from_wire eth0", in: `eth router > node | ` + c + ` world > lb ttl 60 | udp 40000 > 90 | "odd"`,
					want: "FORWARD_POD",
					out:  `eth gwb > b | ` + b + ` gw > b ttl 59` + df(b) + ` | udp 51000 > 8080 | "odd"`},
				{at: "from_pod linkb", in: `eth b > gwb | ` + b + ` b > gw ttl 64 | udp 8080 > 51000 | "answer"`,
					want: "FORWARD_RESOLVE",
					out:  `eth node > router | ` + c + ` lb > world ttl 63` + df(c) + ` | udp 90 > 40000 | "answer"`},
				{at: "from_pod linkb", in: `eth b > gwb | ` + b + ` b > gw ttl 64 | udp 8080 > 51000 | "answer"`,
					want: "FORWARD_WIRE"},
			}
		}),
		across("a pod asks", func(c, _ string) []step {
			return []step{{at: "from_pod linka", in: `eth a > gw | ` + c + ` a > lb | udp 40000 > 89`,
				want: "DROP_CROSS_FAMILY", out: "="}}
		}),
		across("a fragment", func(c, _ string) []step {
			return []step{{at: "from_wire eth0",
				in:   `eth router > node | ` + c + ` world > lb frag 7 off 0 mf | udp 40000 > 89 | len 32`,
				want: "DROP_CROSS_FRAGMENT", out: "="}}
		}),
		crossLimitRows(),
	)
}

func crossLimitRows() []row {
	return []row{
		only4(row{name: "without a checksum", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip4 world > lb | udp 40000 > 89 nosum | "odd"`,
				want: "FORWARD_RESOLVE", out: `eth node > node2 | ip6 node > c ttl 63 | udp 51000 > 8080 | "odd"`},
			{at: "from_wire eth0", in: `eth router > node | ip4 world > lb | udp 40000 > 89 nosum | "x" | pad 30`,
				want: "FORWARD_WIRE",
				out:  `eth node > node2 | ip6 node > c ttl 63 | udp 51000 > 8080 | "x" | pad 30`},
			{at: "from_wire eth0", in: `eth router > node | ip4 world > lb | udp 40000 > 89 nosum | len 1452`,
				want: "FORWARD_WIRE", out: `eth node > node2 | ip6 node > c ttl 63 | udp 51000 > 8080 | len 1452`},
		}}),
		only4(row{name: "with options", steps: []step{
			{at: "from_wire eth0",
				in:   `eth router > node | ip4 world > lb opts 9404000001010100 | tcp 40000 > 89 S mss 1400`,
				want: "FORWARD_RESOLVE",
				out:  `eth node > node2 | ip6 node > c ttl 63 | tcp 51000 > 8080 S mss 1400`},
			{at: "from_wire eth0",
				in:   `eth router > node | ip4 world > lb opts 830708c0a8000100 | tcp 40000 > 89 A | "it was there"`,
				want: "FORWARD_WIRE",
				out:  `eth node > node2 | ip6 node > c ttl 63 | tcp 51000 > 8080 A | "it was there"`},
			{at: "from_wire eth0",
				in:   `eth router > node | ip4 world > lb opts 830704c0a8000100 | tcp 40000 > 89 A`,
				want: "DROP_CROSS_OPTIONS"},
			{at: "from_wire eth0",
				in:   `eth router > node | ip4 world > lb opts 01890704c0a80001 | tcp 40000 > 89 A`,
				want: "DROP_CROSS_OPTIONS"},
			{at: "from_wire eth0",
				in:   `eth router > node | ip4 world > lb opts 9401000000000000 | tcp 40000 > 89 A`,
				want: "DROP_CROSS_OPTIONS"},
		}}),
		only4(one("too big for IPv6", "from_wire eth0",
			`eth router > node | ip4 world > lb | tcp 40000 > 89 S | len 1450`, "DROP_TOO_BIG REPLY_ICMP", "")),
		only6(one("not too big for IPv4", "from_wire eth0",
			`eth router > node | ip6 world > lb | tcp 40000 > 89 S | len 1440`, "FORWARD_RESOLVE", "")),
	}
}

// crossErrorRows are errors, which are written anew.
func crossErrorRows() []row {
	return slices.Concat(
		across("errors about what the backend gets", func(c, b string) []step {
			const from = `eth node2 > node | `
			quoted := b + ` node > c ttl 3` + df(b)
			became := c + ` world > lb ttl 3` + df(c)
			var steps []step
			for i, e := range []struct{ l4, l4c, in, out string }{
				{`tcp 51000 > 8080 S seq 9`, `tcp 40000 > 89 S seq 9`, `icmp unreachable port`,
					`icmp unreachable port`},
				{`tcp 51000 > 8080 S seq 9`, `tcp 40000 > 89 S seq 9`, `icmp unreachable host`, hostOf(c)},
				{`udp 51000 > 8080`, `udp 40000 > 89 nosum`, `icmp time-exceeded`, `icmp time-exceeded`},
				{`tcp 51000 > 8080 S seq 9`, `tcp 40000 > 89 S seq 9`, `icmp too-big mtu 1400`, mtuOf(c)},
			} {
				want := "FORWARD_WIRE"
				if i == 0 {
					want = "FORWARD_RESOLVE"
				}
				steps = append(steps,
					step{at: "from_wire eth0",
						in: `eth router > node | ` + c + ` world > lb ttl 60 | ` + strings.Replace(e.l4c, " nosum",
							"", 1), want: want},
					step{at: "from_wire eth0",
						in: from + b + ` node2 > node ttl 60 | ` + e.in + ` | ` + quoted + ` | ` + e.l4, want: want,
						out: `eth node > router | ` + c + ` lb > world ttl 59` + df(c) + ` | ` + e.out +
							` quote +8 | ` + became + ` | ` + e.l4c})
			}
			return steps
		}),
		across("the client's path is narrow", func(c, b string) []step {
			mtu := map[string]string{"ip4": "1380", "ip6": "1420"}[b]
			return []step{
				{at: "from_wire eth0", in: `eth router > node | ` + c + ` world > lb ttl 60 | tcp 40000 > 89 S`,
					want: "FORWARD_RESOLVE"},
				{at: "from_wire eth0",
					in: `eth router > node | ` + c + ` router > lb ttl 60 | icmp too-big mtu 1400 | ` + c +
						` lb > world ttl 3` + df(c) + ` | tcp 89 > 40000 A seq 5 | len 100`, want: "FORWARD_WIRE",
					out: `eth node > node2 | ` + b + ` node > c ttl 59` + df(b) + ` | icmp too-big mtu ` + mtu +
						` quote +8 | ` + b + ` c > node ttl 3` + df(b) + ` | tcp 8080 > 51000 A seq 5 | len 100`},
			}
		}),
		across("an error that the other family has not", func(c, b string) []step {
			return []step{
				{at: "from_wire eth0", in: `eth router > node | ` + c + ` world > lb ttl 60 | tcp 40000 > 89 S`,
					want: "FORWARD_RESOLVE"},
				{at: "from_wire eth0",
					in: `eth node2 > node | ` + b + ` node2 > node ttl 60 | icmp parameter-problem pointer 8 | ` + b +
						` node > c ttl 3` + df(b) + ` | tcp 51000 > 8080 S`, want: "DROP_CROSS_FAMILY", out: "="},
			}
		}),
	)
}
