package bpf

import (
	"fmt"

	"myelin/test/packet/packettest"
)

func tunnelTables() []table {
	var tables []table
	for _, mode := range []struct {
		name   string
		change []func(*Settings)
	}{
		{"tunnel over IPv4", []func(*Settings){tunnel4}},
		{"tunnel over IPv6", []func(*Settings){tunnel6}},
		{"tunnel, tracking, masquerading", []func(*Settings){tunnel4, tracking, masquerading}},
	} {
		tables = append(tables, table{name: mode.name, settings: settingsOf(mode.change...),
			rows: append(tunnelOutRows(), tunnelInRows()...)})
	}
	return append(tables, table{name: "tunnel, legacy", settings: settingsOf(tunnel4, legacy), rows: []row{
		one("to node2's pod, by the stack", "from_pod linka", `eth a > gw | ip a > c | udp 1 > 2`,
			"FORWARD_STACK", "="),
		one("from the stack", "to_wire vx0", `eth node > none | ip a > c | udp 1 > 2`, "FORWARD_TUNNEL", "="),
	}})
}

// tunnelKeySet is TUNNEL_KEY_SET of route/tunnel/tunnel.h: what makes to_wire let a packet pass that a hook sent into
// the tunnel.
const tunnelKeySet = 0x6d79656c

// keyed checks that to_wire would let the packet pass.
func keyed(r packettest.Result) error {
	if r.Skb.CB[0] != tunnelKeySet {
		return fmt.Errorf("the packet's tunnel key is not marked as set: %#x", r.Skb.CB[0])
	}
	return nil
}

func tunnelOutRows() []row {
	in, out := `eth a > gw | ip a > c ttl 9 | tcp 40000 > 80 S | "x"`,
		`eth none > none | ip a > c ttl 8 | tcp 40000 > 80 S | "x"`
	return []row{
		{name: "to node2's pod", steps: []step{
			{at: "from_pod linka", in: in, want: "FORWARD_TUNNEL", out: out, check: keyed},
			{at: "from_pod linka", in: in, want: "FORWARD_TUNNEL", out: out, check: keyed},
		}},
		one("to node3's pod, of which no neighbour is known", "from_pod linka", `eth a > gw | ip a > d | udp 1 > 2`,
			"FORWARD_TUNNEL", `eth none > none | ip a > d ttl 63 | udp 1 > 2`),
		one("to a node, not by the tunnel", "from_pod linka", `eth a > gw | ip a > node2 | udp 1 > 2`,
			"FORWARD_RESOLVE", `eth node > node2 | ip a > node2 ttl 63 | udp 1 > 2`),
		one("last hop", "from_pod linka", `eth a > gw | ip a > c ttl 1 | udp 1 > 2`, "DROP_TTL REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp time-exceeded | ip a > c ttl 1 | udp 1 > 2`),
		only4(one("as large as the tunnel allows", "from_pod linka", `eth a > gw | ip4 a > c df | udp 1 > 2 | len 1422`,
			"FORWARD_TUNNEL", `eth none > none | ip4 a > c df ttl 63 | udp 1 > 2 | len 1422`)),
		only6(one("as large as the tunnel allows", "from_pod linka", `eth a > gw | ip6 a > c | udp 1 > 2 | len 1402`,
			"FORWARD_TUNNEL", `eth none > none | ip6 a > c ttl 63 | udp 1 > 2 | len 1402`)),
		one("too large", "from_pod linka", `eth a > gw | ip a > c df | udp 1 > 2 | len 1424`,
			"DROP_TOO_BIG REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp too-big mtu 1450 quote 96 | ip a > c df | udp 1 > 2 | len 1424`),
		{name: "what a hook sent", steps: []step{
			{at: "to_wire vx0", in: `eth none > none | ip a > c | udp 1 > 2`, want: "", out: "=",
				options: packettest.Options{CB: [5]uint32{tunnelKeySet}}},
		}},
		one("the node's own", "to_wire vx0", `eth node > none | ip node > c | udp 1 > 2`, "FORWARD_TUNNEL", "="),
		one("the node's own, to no node", "to_wire vx0", `eth node > none | ip node > world | udp 1 > 2`,
			"DROP_NO_TUNNEL_KEY", "="),
		one("the node's own, to the cluster but no node's pod", "to_wire vx0",
			`eth node > none | ip node > node2 | udp 1 > 2`, "DROP_NO_TUNNEL_KEY", "="),
	}
}

func tunnelInRows() []row {
	return []row{
		one("to a pod", "from_wire vx0", `eth none > none | ip c > a ttl 63 | tcp 80 > 40000 SA`, "FORWARD_POD",
			`eth gw > a | ip c > a ttl 62 | tcp 80 > 40000 SA`),
		one("to the gateway", "from_wire vx0", `eth none > none | ip c > gw | icmp echo id 1 seq 1`,
			"FORWARD_STACK", "="),
		one("to the node", "from_wire vx0", `eth none > none | ip c > node | tcp 1 > 22 S`, "FORWARD_STACK", "="),
		one("to no endpoint", "from_wire vx0", `eth none > none | ip c > gone | udp 1 > 2`, "FORWARD_STACK", "="),
		// Where the answer is to go is in the packet's tunnel key, which a test can't give it: see TestLive.
		one("last hop, of nowhere", "from_wire vx0", `eth none > none | ip c > a ttl 1 | udp 1 > 2`, "DROP_TTL", ""),
		one("from the wire itself", "from_wire eth0", `eth node2 > node | ip node2 > a | udp 1 > 2`,
			"DROP_TUNNEL_SOURCE", "="),
		one("from the wire itself, of a pod", "from_wire eth0", `eth node2 > node | ip c > node | udp 1 > 2`,
			"DROP_TUNNEL_SOURCE", "="),
		one("from the wire itself, of a node to this one", "from_wire eth0",
			`eth node2 > node | ip node2 > node | udp 1 > 2`, "FORWARD_STACK", "="),
		one("from the wire itself, of the world", "from_wire eth0", `eth router > node | ip world > a | udp 1 > 2`,
			"FORWARD_POD", `eth gw > a | ip world > a ttl 63 | udp 1 > 2`),
	}
}
