package bpf

import (
	"fmt"
	"net/netip"
	"testing"

	"myelin/test/packet"
)

// trustTables are packets that claim more than they are: only the IP header, the wire, and the pods' kernels are
// believed.
func trustTables() []table {
	return []table{
		{name: "trust, policies", settings: settingsOf(policed, longTimes),
			rows: opened(hiddenHeaderRows(packet.IPv4), hiddenHeaderRows(packet.IPv6), quoteRows(), ownSourceRows())},
		{name: "trust, the host's policies", settings: settingsOf(policed, hostPoliced, longTimes),
			rows: opened(hostWayRows())},
		{name: "trust, tunnel", settings: settingsOf(tunnel4), rows: tunnelSourceRows()},
		{name: "trust, tunnel, policies", settings: settingsOf(tunnel4, policed), rows: opened(tunnelSourceRows())},
		{name: "trust, tunnel, masquerading", settings: settingsOf(tunnel4, tunnelPort, masquerading), rows: []row{
			one("to the tunnel port of a node that is not known", "from_pod linka",
				`eth a > gw | ip a > world | udp 40000 > 8472 | len 50`, "DROP_TUNNEL_PORT", "="),
		}},
		{name: "trust, masquerading", settings: settingsOf(policed, masquerading, longTimes),
			rows: opened(masqueradePolicyRows())},
	}
}

func tunnelPort(s *Settings) { s.TunnelPort = 8472 }

// hiddenHeaderRows: layer 4 is what the receiver will see of it, not what lies behind the packet.
func hiddenHeaderRows(f packet.Family) []row {
	const synFrag, fakeACK = "9c4000500000000100000000500204000000000000000000",
		"03e89c40000000010000000050100400000000000000"
	isolated := isolates(slotB, ingress, allows("", 6, 40000))
	drop := func(in, reason string) step { return step{at: "from_wire eth0", in: in, want: reason, out: "="} }
	head := `eth node2 > node | ip4 c > b id 7 `
	first, later := head+`mf proto tcp | hex:`+fakeACK[:16]+` | pad hex:`+fakeACK[16:],
		head+`off 8 proto tcp | hex:`+synFrag[16:]
	if f == packet.IPv6 {
		head = `eth node2 > node | ip6 c > b `
		first = head + `proto dstopts | frag 7 mf proto 60 | hex:0602000000000000 | pad hex:` + fakeACK
		later = head + `| frag 7 off 8 proto tcp | hex:` + synFrag
		first = head + `| frag 7 mf proto 60 | hex:0602000000000000 | pad hex:` + fakeACK
	}
	rows := []row{
		{name: "a layer-4 header behind the end of the first fragment", steps: []step{
			{at: "from_wire eth0", in: first, want: "DROP_FRAGMENT_SHORT", out: "=", before: isolated},
			drop(later, "DROP_FRAGMENT_FIRST_MISSING"),
		}},
		{name: "a later fragment over the first one's header", steps: overlapSteps(f, isolated)},
	}
	if f == packet.IPv4 {
		rows = append(rows, row{name: "a whole packet whose header is padding", steps: []step{
			{at: "from_wire eth0",
				in: `eth node2 > node | ip4 c > b proto tcp | hex:9c409c40 | pad ` +
					`hex:000000010000000050100400000000000000`, want: "DROP_TRUNCATED", out: "=", before: isolated},
		}})
	} else {
		rows = append(rows, row{name: "a fragment of a fragment", steps: []step{
			{at: "from_wire eth0", in: head + `| frag 7 mf | frag 8 off 8 proto tcp | hex:` + synFrag,
				want: "DROP_EXTENSION_HEADERS", out: "=", before: isolated},
		}}, row{name: "a later fragment that claims another next header", steps: claimSteps(isolated)})
	}
	for i := range rows {
		rows[i].only = f
	}
	return rows
}

// overlapSteps: of two fragments, the second begins inside of the first one's TCP header.
func overlapSteps(f packet.Family, isolated func(testing.TB, *world)) []step {
	allowed := `9c409c40000000010000000050020400000000000000000000000000`
	first, later := `eth node2 > node | ip4 c > b id 9 mf proto tcp | hex:`+allowed[:48],
		`eth node2 > node | ip4 c > b id 9 off %d proto tcp | hex:0011223344556677`
	if f == packet.IPv6 {
		first, later = `eth node2 > node | ip6 c > b | frag 9 mf proto tcp | hex:`+allowed[:48],
			`eth node2 > node | ip6 c > b | frag 9 off %d proto tcp | hex:0011223344556677`
	}
	return []step{
		{at: "from_wire eth0", in: first, want: "FORWARD_POD", before: isolated},
		{at: "from_wire eth0", in: fmt.Sprintf(later, 8), want: "DROP_FRAGMENT_OVERLAP", out: "="},
		{at: "from_wire eth0", in: fmt.Sprintf(later, 16), want: "DROP_FRAGMENT_OVERLAP", out: "="},
		{at: "from_wire eth0", in: fmt.Sprintf(later, 24), want: "FORWARD_POD"},
	}
}

// claimSteps: a later fragment is of the protocol that its first one is of, whatever it claims.
func claimSteps(isolated func(testing.TB, *world)) []step {
	return []step{
		{at: "from_wire eth0", in: `eth node2 > node | ip6 c > b | frag 5 mf proto udp | hex:9c40005000101234 | ` +
			`hex:0011223344556677`, want: "DROP_POLICY_NO_RULE", out: "=", before: isolated},
		{at: "from_wire eth0", in: `eth node2 > node | ip6 c > b | frag 5 off 16 proto tcp | hex:9c409c4000000001`,
			want: "DROP_POLICY_NO_RULE", out: "="},
	}
}

// quoteRows: an ICMP error goes to the sender of what it quotes, and carries no more than names that flow.
func quoteRows() []row {
	const udp = 17
	allowed := isolates(slotB, egress, allows("c", udp, 53))
	quoted := `eth node2 > node | ip c > b | icmp unreachable port | ip b > c | udp 40000 > 53 | len %d`
	return []row{
		{name: "an error that quotes a flow of its sender's", steps: []step{
			{at: "from_wire eth0",
				in:   `eth node2 > node | ip c > b | icmp unreachable port | ip c > a | udp 40000 > 53 | len 500`,
				want: "DROP_ICMP_UNRELATED", out: "=", before: isolates(slotB, ingress)},
			{at: "from_pod linka",
				in:   `eth a > gw | ip a > b | icmp unreachable port | ip a > c | udp 40000 > 53 | len 500`,
				want: "DROP_ICMP_UNRELATED", out: "="},
		}},
		{name: "a pod's error about a packet that was not for it", steps: []step{
			{at: "from_pod linkb", in: `eth b > gwb | ip b > c | udp 40000 > 53`, want: "FORWARD_RESOLVE",
				before: all(allowed, isolates(slotB, ingress))},
			{at: "from_pod linka", in: `eth a > gw | ip a > b | icmp unreachable port | ip b > c | udp 40000 > 53`,
				want: "DROP_ICMP_UNRELATED", out: "="},
		}},
		{name: "an error that quotes a later fragment", only: packet.IPv4, steps: []step{
			{at: "from_wire eth0",
				in:   `eth node2 > node | ip4 c > b | icmp unreachable port | ip4 b > c id 7 off 8 proto udp | len 50`,
				want: "DROP_ICMP_UNRELATED", out: "=", before: isolates(slotB, ingress)},
		}},
		{name: "the quote is cut", steps: []step{
			{at: "from_pod linkb", in: `eth b > gwb | ip b > c | udp 40000 > 53 | len 600`, want: "FORWARD_RESOLVE",
				before: all(allowed, isolates(slotB, ingress))},
			{at: "from_wire eth0", in: fmt.Sprintf(quoted, 20), want: "FORWARD_POD",
				out: `eth gwb > b | ip c > b ttl 63 | icmp unreachable port | ip b > c | udp 40000 > 53 | len 20`},
			{at: "from_wire eth0", in: fmt.Sprintf(quoted, 600), want: "FORWARD_POD",
				out: `eth gwb > b | ip c > b ttl 63 | icmp unreachable port quote 96 | ip b > c | udp 40000 ` +
					`> 53 | len 600`},
		}},
	}
}

// ownSourceRows: what this node and its pods send does not come back by a wire.
func ownSourceRows() []row {
	rows := []row{}
	for _, source := range []string{"node", "gw", "a", "b"} {
		for _, to := range []string{"a", "node"} {
			rows = append(rows, one("from the wire, as "+source+", to "+to, "from_wire eth0",
				`eth router > node | ip `+source+` > `+to+` | udp 1 > 2`, "DROP_SPOOFED_OWN", "="))
		}
	}
	return append(rows, row{name: "in the flow of a pod of this node", steps: []step{
		{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 1 > 2`, want: "FORWARD_POD",
			before: isolates(slotB, ingress, allows("a", 17, 2))},
		{at: "from_wire eth0", in: `eth router > node | ip a > b | udp 1 > 2`, want: "DROP_SPOOFED_OWN", out: "="},
	}})
}

// hostWayRows: there is no way to the node that its policies don't look at.
func hostWayRows() []row {
	closed := isolates(worldHost, ingress)
	refused := func(name, in string) row {
		return row{name: name, steps: []step{{at: "from_wire eth0", in: in, want: "DROP_POLICY_NO_RULE",
			before: closed}}}
	}
	return []row{
		only6(refused("to a link-local address", `eth router > node | ip6 fe80::1 > fe80::2 | tcp 40000 > 22 S`)),
		only6(refused("to all nodes", `eth router > all-nodes | ip6 fe80::1 > all-nodes | udp 40000 > 22`)),
		only4(refused("to a broadcast address",
			`eth router > broadcast | ip4 router > 192.168.0.255 | udp 40000 > 22`)),
		only4(refused("to the limited broadcast address",
			`eth router > broadcast | ip4 router > 255.255.255.255 | udp 40000 > 22`)),
		only4(refused("to a multicast group",
			`eth router > 01:00:5e:00:00:01 | ip4 router > 224.0.0.1 | udp 40000 > 22`)),
		only6(row{name: "what a link needs", steps: []step{
			{at: "from_wire eth0",
				in: `eth router > solicited:node | ip6 router > solicited:node ttl 255 | nd solicit node ` +
					`lladdr router`,
				want: "FORWARD_STACK", before: closed},
			{at: "from_wire eth0", in: `eth router > all-nodes | ip6 fe80::1 > all-nodes ttl 1 | mld query none`,
				want: "FORWARD_STACK"},
			{at: "from_wire eth0", in: `eth router > node | ip6 router > node ttl 64 | nd solicit node lladdr router`,
				want: "DROP_POLICY_NO_RULE"},
		}}),
	}
}

// tunnelSourceRows: the node that a packet comes from, which node2 stands for here, sends for itself, for its pods, and
// for the world.
func tunnelSourceRows() []row {
	in := func(source string) string { return `eth none > none | ip ` + source + ` > a ttl 9 | udp 1 > 2` }
	return []row{
		{name: "of that node's pod", steps: []step{
			{at: "from_wire vx0", in: in("c"), want: "FORWARD_POD"},
			{at: "from_wire vx0", in: in("c"), want: "FORWARD_POD"},
		}},
		one("of that node", "from_wire vx0", in("node2"), "FORWARD_POD", ""),
		one("of another node's pod", "from_wire vx0", in("d"), "DROP_TUNNEL_SOURCE", "="),
		one("of another node", "from_wire vx0", in("node3"), "DROP_TUNNEL_SOURCE", "="),
		one("of a pod of this node", "from_wire vx0", in("b"), "DROP_SPOOFED_OWN", "="),
		one("of this node", "from_wire vx0", in("node"), "DROP_SPOOFED_OWN", "="),
		{name: "from no node", steps: []step{
			{at: "from_wire vx0", in: in("c"), want: "DROP_TUNNEL_SOURCE", out: "=", before: tunnelNode(false)},
			{at: "from_wire vx0", in: in("world"), want: "DROP_TUNNEL_SOURCE", out: "=", after: tunnelNode(true)},
		}},
	}
}

// noTunnel is what the datapath takes for the sender of packets that came by no tunnel.
func noTunnel() DatapathPrefixKey { return Prefix(netip.PrefixFrom(netip.IPv6Unspecified(), 128)) }

// addTunnelNodes writes where the tunnel's packets may come from. A packet that a test hands to the programs came by no
// tunnel: :: stands for node2 then.
func (w *world) addTunnelNodes(t testing.TB) {
	t.Helper()
	n := worldNames()
	for _, name := range []string{"node2", "node3"} {
		row := DatapathPrefix{Flags: uint32(DatapathPrefixFlagPREFIX_CLUSTER | DatapathPrefixFlagPREFIX_NODE)}
		row.Via = Addr(families(n[name])[w.settings.Tunnel-1])
		for _, a := range families(n[name]) {
			must(t, w.Prefixes.Put(Prefix(netip.PrefixFrom(a, a.BitLen())), row))
		}
		if name == "node2" {
			must(t, w.Prefixes.Put(noTunnel(), row))
		}
	}
}

// tunnelNode says whether packets that came by no tunnel are from node2.
func tunnelNode(is bool) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		if is {
			w.addTunnelNodes(t)
		} else {
			must(t, w.Prefixes.Delete(noTunnel()))
		}
		w.bump(t, 0)
	}
}

// masqueradePolicyRows: a policy that changes reaches translated flows in both directions.
func masqueradePolicyRows() []row {
	open := isolates(slotA, egress, allows("", 17, 53))
	return []row{
		{name: "an answer after the policy has changed", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > world | udp 40000 > 53`, want: "FORWARD_RESOLVE",
				before: open},
			{at: "from_wire eth0", in: `eth router > node | ip world > node | udp 53 > 50000`, want: "FORWARD_POD"},
			{at: "from_wire eth0", in: `eth router > node | ip world > node | udp 53 > 50000`,
				want: "DROP_POLICY_NO_RULE", before: isolates(slotA, egress)},
			{at: "from_wire eth0", in: `eth router > node | ip world > node | udp 53 > 50000`,
				want: "DROP_POLICY_NO_RULE"},
			{at: "from_wire eth0",
				in:   `eth router > node | ip router > node | icmp unreachable port | ip node > world | udp 50000 > 53`,
				want: "DROP_ICMP_UNRELATED"},
			{at: "from_wire eth0", in: `eth router > node | ip world > node | udp 53 > 50000`, want: "FORWARD_POD",
				before: open},
		}},
		{name: "an answer when a policy has come", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > world | udp 40000 > 53`, want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: `eth router > node | ip world > node | udp 53 > 50000`,
				want: "DROP_POLICY_NO_RULE", before: isolates(slotA, egress)},
		}},
		{name: "an answer for a pod that is another one by now", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > world | udp 40000 > 53`, want: "FORWARD_RESOLVE"},
			{at: "from_wire eth0", in: `eth router > node | ip world > node | udp 53 > 50000`, want: "DROP_NO_ENDPOINT",
				out: "=", before: slotOf("a", "linka", "gw", 77), after: slotOf("a", "linka", "gw", slotA)},
		}},
	}
}

// slotOf gives the pod another slot, as a new pod with its address has.
func slotOf(name, link, gateway string, slot uint16) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		w.addPod(t, name, slot, link, gateway)
		w.bump(t, 0)
	}
}
