package bpf

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// direct lets the backend's node answer the client.
func direct(s *Settings) { s.LbMode, s.Direct = uint8(DatapathLbModeLB_DSR), 1 }

func hybrid(s *Settings) { s.LbMode, s.Direct = uint8(DatapathLbModeLB_HYBRID), 1 }

func directTables() []table {
	rows := slices.Concat(directRows(), directAnswerRows())
	return []table{
		{name: "services, direct", settings: settingsOf(servicing, direct), rows: slices.Concat(rows, directXDPRows())},
		{name: "services, direct, masquerade", settings: settingsOf(servicing, direct, masquerading), rows: rows},
		{name: "services, direct, tracking", settings: settingsOf(servicing, direct, tracking), rows: rows},
		{name: "services, direct, tunnel", settings: settingsOf(servicing, direct, tunnel4),
			rows: optioned("into the tunnel", func(ip optionIP) []step {
				return []step{{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | udp 40000 > 81`,
					want: "FORWARD_TUNNEL", out: `eth none > none | ` + ip("world > c ttl 59",
						81) + ` | udp 40000 > 8080`}}
			})},
		{name: "services, direct by IPIP", settings: settingsOf(servicing, direct, ipip),
			rows: slices.Concat(encapRows(`ip4 node > node2`, `ip6 node > node2`, `ip4 node2 > node`,
				`ip6 node2 > node`), bareOptionRows(), foreignRows())},
		{name: "services, direct by IPIP, senders of a prefix", settings: settingsOf(servicing, direct, ipip, rss),
			rows: encapRows(`ip4 172.31.0.1 > node2`, `ip6 fd00:172::1 > node2`, `ip4 172.31.77.7 > node`,
				`ip6 fd00:172::7 > node`)},
		{name: "services, direct by Geneve", settings: settingsOf(servicing, direct, geneve),
			rows: append(geneveRows(), bareOptionRows()...)},
		{name: "services, direct, statistics", settings: settingsOf(servicing, direct, longTimes),
			rows: directStatRows()},
		{name: "services, hybrid", settings: settingsOf(servicing, hybrid), rows: hybridRows()},
	}
}

// optionIP writes an IP header with the option that names a port of lb.
type optionIP func(ends string, port uint8) string

// optioned is a row for each family: they write the option in different ways.
func optioned(name string, steps func(optionIP) []step) []row {
	return []row{
		only4(row{name: name, steps: steps(func(ends string, port uint8) string {
			return "ip4 " + ends + " opts 9a0800" + fmt.Sprintf("%02x", port) + "cb007132"
		})}),
		only6(row{name: name, steps: steps(func(ends string, port uint8) string {
			return "ip6 " + ends + " | dstopts body 1b1220010db800500000000000000000005000" +
				fmt.Sprintf("%02x", port) + "0100"
		})}),
	}
}

// directRows: lb is this node's, the backend c is node2's.
func directRows() []row {
	return slices.Concat(
		optioned("to node2, tcp", func(ip optionIP) []step {
			return []step{
				{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | tcp 40000 > 81 S seq 1 mss 1460`,
					want: "FORWARD_RESOLVE", out: `eth node > node2 | ` + ip("world > c ttl 59",
						81) + ` | tcp 40000 > 8080 S seq 1 mss 1460`},
				{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | tcp 40000 > 81 A | len 1400`,
					want: "FORWARD_WIRE", out: `eth node > node2 | ip world > c ttl 59 | tcp 40000 > 8080 A | len 1400`,
					after: translationsAre(1)},
			}
		}),
		optioned("to node2, udp", func(ip optionIP) []step {
			return []step{
				{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | udp 40000 > 81 | "q"`,
					want: "FORWARD_RESOLVE", out: `eth node > node2 | ` + ip("world > c ttl 59",
						81) + ` | udp 40000 > 8080 | "q"`},
				{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | udp 40000 > 81 nosum`,
					want: "FORWARD_WIRE", out: `eth node > node2 | ` + ip("world > c ttl 59",
						81) + ` | udp 40000 > 8080 nosum`},
				{at: "from_wire eth0", in: `eth router > node | ip world > lb | udp 40000 > 81 | len 1470`,
					want: "DROP_TOO_BIG REPLY_ICMP"},
			}
		}),
		[]row{
			one("to the world, which answers to the node", "from_wire eth0",
				`eth router > node | ip world > lb ttl 60 | tcp 40000 > 83 S`, "FORWARD_RESOLVE",
				`eth node > router | ip node > world2 ttl 59 | tcp 51000 > 8080 S`),
			only4(one("no room for the option", "from_wire eth0",
				`eth router > node | ip4 world > lb ttl 60 opts `+
					`010101010101010101010101010101010101010101010101010101010101010101010101 | tcp 40000 > 81 S`,
				"DROP_REWRITE", "")),
			{name: "to this node", steps: []step{
				{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | tcp 40000 > 80 S`,
					want: "FORWARD_POD", out: `eth gwb > b | ip world > b ttl 59 | tcp 40000 > 8080 S`},
				{at: "from_pod linkb", in: `eth b > gwb | ip b > world ttl 64 | tcp 8080 > 40000 SA`,
					want: "FORWARD_RESOLVE", out: `eth node > router | ip lb > world ttl 63 | tcp 80 > 40000 SA`},
			}},
			{name: "the client's path is narrow", steps: []step{
				{at: "from_wire eth0", in: `eth router > node | ip world > lb | tcp 40000 > 81 S`,
					want: "FORWARD_RESOLVE"},
				{at: "from_wire eth0",
					in: `eth router > node | ip router > lb | icmp too-big mtu 1280 | ip lb > world ttl 3 df | tcp ` +
						`81 > 40000 A | len 100`, want: "FORWARD_WIRE",
					out: `eth node > node2 | ip router > c ttl 63 | icmp too-big mtu 1280 | ip c > world ttl 3 df | ` +
						`tcp 8080 > 40000 A | len 100`},
			}},
		},
	)
}

// directAnswerRows: lb is another node's, the backend b is this node's.
func directAnswerRows() []row {
	return slices.Concat(
		optioned("from node2", func(ip optionIP) []step {
			return []step{
				{at: "from_wire eth0", in: `eth node2 > node | ` + ip("world > b ttl 60",
					80) + ` | tcp 40000 > 8080 S seq 1 mss 1460`, want: "FORWARD_POD",
					out: `eth gwb > b | ip world > b ttl 59 | tcp 40000 > 8080 S seq 1 mss 1460`},
				{at: "from_pod linkb", in: `eth b > gwb | ip b > world ttl 64 | tcp 8080 > 40000 SA seq 5 ack 2`,
					want: "FORWARD_RESOLVE",
					out:  `eth node > router | ip lb > world ttl 63 | tcp 80 > 40000 SA seq 5 ack 2`},
				{at: "from_wire eth0", in: `eth node2 > node | ` + ip("world > b ttl 60",
					80) + ` | tcp 40000 > 8080 S seq 1 mss 1460`, want: "FORWARD_POD",
					out:   `eth gwb > b | ip world > b ttl 59 | tcp 40000 > 8080 S seq 1 mss 1460`,
					after: translationsAre(1)},
				{at: "from_wire eth0", in: `eth node2 > node | ip world > b ttl 60 | tcp 40000 > 8080 A`,
					want: "FORWARD_POD", out: `eth gwb > b | ip world > b ttl 59 | tcp 40000 > 8080 A`},
				{at: "from_pod linkb", in: `eth b > gwb | ip b > world ttl 64 | tcp 8080 > 40000 A | len 1400`,
					want: "FORWARD_WIRE", out: `eth node > router | ip lb > world ttl 63 | tcp 80 > 40000 A | len 1400`,
					after: translationsAre(1)},
			}
		}),
		optioned("the same ports for another Service", func(ip optionIP) []step {
			return []step{
				{at: "from_wire eth0", in: `eth node2 > node | ` + ip("world > b ttl 60", 80) + ` | udp 40000 > 8080`,
					want: "FORWARD_POD", out: `eth gwb > b | ip world > b ttl 59 | udp 40000 > 8080`},
				{at: "from_wire eth0", in: `eth node2 > node | ` + ip("world > b ttl 60", 87) + ` | udp 40000 > 8080`,
					want: "DROP_DSR_UNTRUSTED", out: "="},
				{at: "from_pod linkb", in: `eth b > gwb | ip b > world ttl 64 | udp 8080 > 40000`,
					want: "FORWARD_RESOLVE", out: `eth node > router | ip lb > world ttl 63 | udp 80 > 40000`,
					after: translationsAre(1)},
			}
		}),
		optioned("in the name of no Service", func(ip optionIP) []step {
			return []step{{at: "from_wire eth0",
				in: `eth node2 > node | ` + ip("world > b ttl 60", 99) + ` | udp 40000 > 8080`, want: "DROP_NO_SERVICE",
				out: "="}}
		}),
		optioned("in the name of a Service that the pod does not serve", func(ip optionIP) []step {
			return []step{{at: "from_wire eth0",
				in:   `eth node2 > node | ` + ip("world > b ttl 60", 81) + ` | udp 40000 > 8080`,
				want: "DROP_DSR_UNTRUSTED", out: "="}}
		}),
		optioned("of a connection under way", func(ip optionIP) []step {
			return []step{{at: "from_wire eth0",
				in:   `eth node2 > node | ` + ip("world > b ttl 60", 80) + ` | tcp 40000 > 8080 A`,
				want: "DROP_DSR_UNTRUSTED", out: "=", after: translationsAre(0)}}
		}),
		otherOptionRows(),
	)
}

// bareOptionRows: nodes put packets with options into others, so that the inner ones belong to no flow.
func bareOptionRows() []row {
	return append(optioned("an option that is not inside of another packet", func(ip optionIP) []step {
		return []step{{at: "from_wire eth0", in: `eth node2 > node | ` + ip("world > b ttl 60",
			80) + ` | tcp 40000 > 8080 S`, want: "DROP_DSR_UNTRUSTED", out: "=", after: translationsAre(0)}}
	}), otherOptionRows()...)
}

// otherOptionRows are about options that name no Service, or are not for a pod.
func otherOptionRows() []row {
	return slices.Concat(
		[]row{
			only4(one("other options stay", "from_wire eth0",
				`eth router > node | ip4 world > b ttl 60 opts 9404000001010100 | udp 40000 > 8080`, "FORWARD_POD",
				`eth gwb > b | ip4 world > b ttl 59 opts 9404000001010100 | udp 40000 > 8080`)),
			only6(one("other options stay", "from_wire eth0",
				`eth router > node | ip6 world > b ttl 60 | dstopts | udp 40000 > 8080`, "FORWARD_POD",
				`eth gwb > b | ip6 world > b ttl 59 | dstopts | udp 40000 > 8080`)),
		},
		optioned("the host's are left alone", func(ip optionIP) []step {
			return []step{{at: "from_wire eth0",
				in: `eth node2 > node | ` + ip("world > node ttl 60", 80) + ` | udp 40000 > 22`, want: "FORWARD_STACK",
				out: "="}}
		}),
	)
}

const xdpAt = "from_wire_xdp eth0"

// directXDPRows: the first packet of the backend's node is tc's, which decides the path.
func directXDPRows() []row {
	rows := optioned("XDP", func(ip optionIP) []step {
		inner := ip("world > c ttl 59", 81)
		return []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > lb | tcp 40000 > 81 S`, want: "FORWARD_RESOLVE"},
			{at: xdpAt, in: `eth router > node | ip world > lb ttl 60 | tcp 40001 > 81 S mss 1400`,
				want: "FORWARD_WIRE", out: `eth node > node2 | ` + inner + ` | tcp 40001 > 8080 S mss 1400`,
				after: translationsAre(2)},
			{at: xdpAt, in: `eth router > node | ip world > lb ttl 60 | tcp 40000 > 81 A | len 100`,
				want: "FORWARD_WIRE", out: `eth node > node2 | ip world > c ttl 59 | tcp 40000 > 8080 A | len 100`},
			{at: xdpAt, in: `eth router > node | ip world > lb ttl 60 | udp 40000 > 81 | "odd"`, want: "FORWARD_WIRE",
				out: `eth node > node2 | ` + inner + ` | udp 40000 > 8080 | "odd"`, after: translationsAre(3)},
			{at: xdpAt, in: `eth router > node | ip world > lb ttl 60 | udp 40000 > 81 nosum | len 100`,
				want: "FORWARD_WIRE", out: `eth node > node2 | ` + inner + ` | udp 40000 > 8080 nosum | len 100`},
			{at: xdpAt, in: `eth router > node | ip world > lb | udp 40000 > 81 | len 1470`, want: "", out: "="},
		}
	})
	for i := range rows {
		rows[i] = xdp(rows[i])
	}
	return rows
}

func hybridRows() []row {
	return slices.Concat(
		directRows()[:2],
		[]row{
			one("udp by this node", "from_wire eth0", `eth router > node | ip world > lb ttl 60 | udp 40000 > 81`,
				"FORWARD_RESOLVE", `eth node > node2 | ip node > c ttl 59 | udp 51000 > 8080`),
			{name: "a Service's own mode", steps: []step{
				{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | tcp 40000 > 88 S`,
					want: "FORWARD_RESOLVE", out: `eth node > node2 | ip node > c ttl 59 | tcp 51000 > 88 S`,
					before: snatsTargets},
			}},
		},
	)
}

// snatsTargets gives the Service at portTargets a mode of its own.
func snatsTargets(t testing.TB, w *world) {
	t.Helper()
	changed := map[DatapathFrontendKey]DatapathFrontend{}
	must(t, Each(w.Frontends, func(k *DatapathFrontendKey, f *DatapathFrontend) bool {
		if f.Service == portTargets {
			f.Flags |= uint32(DatapathFrontendFlagFRONTEND_SNAT)
			changed[*k] = *f
		}
		return true
	}))
	for k, f := range changed {
		must(t, w.Frontends.Put(k, f))
	}
}

// foreignRows: the backend is in the world, takes IPIP, and has the address of lb.
func foreignRows() []row {
	steps := func(outer string) []step {
		return []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | tcp 40000 > 83 S`,
				want: "FORWARD_RESOLVE",
				out:  `eth node > router | ` + outer + ` | ip world > lb ttl 60 | tcp 40000 > 83 S`},
			{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | tcp 40000 > 83 A | len 100`,
				want:  "FORWARD_WIRE",
				out:   `eth node > router | ` + outer + ` | ip world > lb ttl 60 | tcp 40000 > 83 A | len 100`,
				after: translationsAre(1)},
		}
	}
	const narrow = `ip router > lb ttl 60 | icmp too-big mtu 1280 | ip lb > world ttl 3 df | tcp 83 > 40000 A | len 100`
	errors := func(outer string) []step {
		return []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > lb | tcp 40000 > 83 S`, want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: `eth router > node | ` + narrow, want: "FORWARD_WIRE",
				out: `eth node > router | ` + outer + ` | ` + narrow},
			{at: xdpAt, in: `eth router > node | ` + narrow, want: "", out: "="},
		}
	}
	inXDP := func(outer string) []step {
		return []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > lb | tcp 40000 > 83 S`, want: "FORWARD_RESOLVE"},
			{at: xdpAt, in: `eth router > node | ip world > lb ttl 60 | tcp 40001 > 83 S`, want: "FORWARD_WIRE",
				out: `eth node > router | ` + outer + ` | ip world > lb ttl 60 | tcp 40001 > 83 S`},
			{at: xdpAt, in: `eth router > node | ip world > lb ttl 60 | tcp 40000 > 83 A | len 100`,
				want: "FORWARD_WIRE", after: translationsAre(2),
				out: `eth node > router | ` + outer + ` | ip world > lb ttl 60 | tcp 40000 > 83 A | len 100`},
		}
	}
	const outer4, outer6 = `ip4 node > world2 ttl 63 df`, `ip6 node > world2 ttl 63`
	return []row{
		only4(row{name: "of a peer's flow", steps: learnedSteps(outer4, "from_wire eth0")}),
		only6(row{name: "of a peer's flow", steps: learnedSteps(outer6, "from_wire eth0")}),
		only4(xdp(row{name: "of a peer's flow, in XDP", steps: learnedSteps(outer4, xdpAt)})),
		only6(xdp(row{name: "of a peer's flow, in XDP", steps: learnedSteps(outer6, xdpAt)})),
		only4(row{name: "to a backend in the world", steps: steps(outer4)}),
		only6(row{name: "to a backend in the world", steps: steps(outer6)}),
		only4(xdp(row{name: "to a backend in the world, errors", steps: errors(outer4)})),
		only6(xdp(row{name: "to a backend in the world, errors", steps: errors(outer6)})),
		only4(xdp(row{name: "to a backend in the world, in XDP", steps: inXDP(outer4)})),
		only6(xdp(row{name: "to a backend in the world, in XDP", steps: inXDP(outer6)})),
	}
}

func ipip(s *Settings)   { s.LbDispatch = uint8(DatapathLbDispatchDISPATCH_IPIP) }
func geneve(s *Settings) { s.LbDispatch = uint8(DatapathLbDispatchDISPATCH_GENEVE) }

func rss(s *Settings) {
	s.Rss4, s.Rss4Bits = Addr(netip.MustParseAddr("172.31.0.0")), 16
	s.Rss6, s.Rss6Bits = Addr(netip.MustParseAddr("fd00:172::")), 96
}

// encapped are rows of both families for packets inside of others. out4 and out6 are the outer headers as they leave,
// in4 and in6 as they come.
func encapped(out, in [2]string, ignore ...string) (rows []row) {
	for i, outer := range out {
		only, inner := only4, func(ends string, port uint8) string {
			return "ip4 " + ends + " opts 9a0800" + fmt.Sprintf("%02x", port) + "cb007132"
		}
		if i == 1 {
			only, inner = only6, func(ends string, port uint8) string {
				return "ip6 " + ends + " | dstopts body 1b1220010db800500000000000000000005000" +
					fmt.Sprintf("%02x", port) + "0100"
			}
		}
		rows = append(rows,
			only(row{name: "to node2, inside of another", steps: []step{
				{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | tcp 40000 > 81 S seq 1 mss 1460`,
					want: "FORWARD_RESOLVE", out: `eth node > node2 | ` + outer + ` | ` + inner("world > c ttl 60",
						81) + ` | tcp 40000 > 8080 S seq 1 mss 1460`, ignore: ignore},
				{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | tcp 40000 > 81 A | len 1000`,
					want:  "FORWARD_WIRE",
					out:   `eth node > node2 | ` + outer + ` | ip world > c ttl 60 | tcp 40000 > 8080 A | len 1000`,
					after: translationsAre(1), ignore: ignore},
				{at: "from_wire eth0", in: `eth router > node | ip world > lb | tcp 40000 > 81 A | len 1445`,
					want: "DROP_TOO_BIG REPLY_ICMP"},
			}}),
			only(xdp(encapXDPRow(outer, inner, ignore))),
			only(xdp(decapXDPRow(in[i], inner("world > b ttl 60", 80)))),
			only(row{name: "from node2, inside of another", steps: []step{
				{at: "from_wire eth0", in: `eth node2 > node | ` + in[i] + ` | ` + inner("world > b ttl 60",
					80) + ` | tcp 40000 > 8080 S`, want: "FORWARD_POD",
					out: `eth gwb > b | ip world > b ttl 59 | tcp 40000 > 8080 S`},
				{at: "from_pod linkb", in: `eth b > gwb | ip b > world ttl 64 | tcp 8080 > 40000 SA`,
					want: "FORWARD_RESOLVE", out: `eth node > router | ip lb > world ttl 63 | tcp 80 > 40000 SA`},
				{at: "from_wire eth0",
					in:   `eth node2 > node | ` + in[i] + ` | ip world > b ttl 60 | tcp 40000 > 8080 A | len 1000`,
					want: "FORWARD_POD", out: `eth gwb > b | ip world > b ttl 59 | tcp 40000 > 8080 A | len 1000`,
					after: translationsAre(1)},
			}}),
			only(row{name: "from a host that is no node", steps: []step{
				{at: "from_wire eth0",
					in: `eth router > node | ` + strings.Replace(strings.Replace(in[i], "node2", "world", 1), "172",
						"192", 1) + ` | ip world > b ttl 60 | tcp 40000 > 8080 A`, want: "FORWARD_STACK", out: "="},
			}}),
		)
		if near := strings.Replace(in[i], "fd00:172::", "fd00:172:0:0:1::", 1); near != in[i] {
			rows = append(rows, only(row{name: "from outside the senders' prefix", steps: []step{
				{at: "from_wire eth0", in: `eth router > node | ` + near +
					` | ip world > b ttl 60 | tcp 40000 > 8080 A`,
					want: "FORWARD_STACK", out: "="},
			}}))
		}
	}
	return rows
}

// encapXDPRow: tc decides the path to the backend's node, XDP does the rest.
func encapXDPRow(outer string, inner func(string, uint8) string, ignore []string) row {
	return row{name: "to node2, inside of another, in XDP", steps: []step{
		{at: "from_wire eth0", in: `eth router > node | ip world > lb | tcp 40000 > 81 S`,
			want: "FORWARD_RESOLVE"},
		{at: xdpAt, in: `eth router > node | ip world > lb ttl 60 | tcp 40001 > 81 S seq 1 mss 1460`,
			want: "FORWARD_WIRE", out: `eth node > node2 | ` + outer + ` | ` + inner("world > c ttl 60",
				81) + ` | tcp 40001 > 8080 S seq 1 mss 1460`, ignore: ignore, after: translationsAre(2)},
		{at: xdpAt, in: `eth router > node | ip world > lb ttl 60 tos 0xb9 | tcp 40000 > 81 A | len 1000`,
			want: "FORWARD_WIRE", out: `eth node > node2 | ` + tos(outer) +
				` | ip world > c ttl 60 tos 0xb9 | tcp 40000 > 8080 A | len 1000`, ignore: ignore},
		{at: xdpAt, in: `eth router > node | ip world > lb ttl 60 | udp 40000 > 81 | "odd"`,
			want: "FORWARD_WIRE", out: `eth node > node2 | ` + outer + ` | ` + inner("world > c ttl 60",
				81) + ` | udp 40000 > 8080 | "odd"`, ignore: ignore, after: translationsAre(3)},
		{at: xdpAt, in: `eth router > node | ip world > lb | tcp 40000 > 81 A | len 1445`, want: "", out: "="},
	}}
}

// tos is the outer header with the TOS of the packet, which IPv4's has.
func tos(outer string) string {
	return strings.Replace(outer, "ttl 63 df", "ttl 63 tos 0xb9 df", 1)
}

func encapRows(out4, out6, in4, in6 string) []row {
	return encapped([2]string{out4 + " ttl 63 df", out6 + " ttl 63"}, [2]string{in4, in6}, "ip.src")
}

func geneveRows() []row {
	const out, in = ` | udp 1 > 6081 nosum | geneve vni 1`, ` | udp 50000 > 6081 nosum | geneve vni 1`
	return encapped([2]string{`ip4 node > node2 ttl 63 df` + out, `ip6 node > node2 ttl 63` + out},
		[2]string{`ip4 node2 > node` + in, `ip6 node2 > node` + in}, "udp.sport")
}

// addPeer makes node2 a node that may put packets for us into others.
func (w *world) addPeer(t testing.TB) {
	t.Helper()
	if w.settings.LbDispatch == 0 {
		return
	}
	for _, a := range families(worldNames()["node2"]) {
		must(t, w.Prefixes.Put(Prefix(netip.PrefixFrom(a, a.BitLen())),
			DatapathPrefix{Flags: uint32(DatapathPrefixFlagPREFIX_CLUSTER | DatapathPrefixFlagPREFIX_NODE)}))
	}
}
