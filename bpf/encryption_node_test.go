package bpf

import (
	"net/netip"
	"testing"

	"myelin/test/packet/packettest"
)

// nodeEncryption has traffic between the node, node2 and node3 encrypted, of which node3 has no key.
func nodeEncryption(s *Settings) { s.NodeEncryption, s.WireguardPort = 1, 51871 }

// addNodeEncryption marks the addresses of these nodes, and router's as one of a node that opts out.
func (w *world) addNodeEncryption(t testing.TB) {
	t.Helper()
	if w.settings.NodeEncryption == 0 {
		return
	}
	n := worldNames()
	for _, name := range []string{"node", "node2", "node3", "router"} {
		for _, a := range families(n[name]) {
			prefix := Prefix(netip.PrefixFrom(a, a.BitLen()))
			var row DatapathPrefix
			_ = w.Prefixes.Lookup(prefix, &row)
			row.Flags |= uint32(DatapathPrefixFlagPREFIX_CLUSTER | DatapathPrefixFlagPREFIX_NODE)
			if name != "router" {
				row.Flags |= uint32(DatapathPrefixFlagPREFIX_NODE_ENCRYPTS)
			} else {
				row.Encryption = uint32(w.index["other0"])
			}
			if name == "node3" && w.settings.StrictEgress != 0 {
				row.Flags |= uint32(DatapathPrefixFlagPREFIX_STRICT)
			}
			must(t, w.Prefixes.Put(prefix, row))
		}
	}
}

// nodeRows: what the node sends to node2 is redirected to the device that encrypts, but for what that device sends.
func nodeRows() []row {
	forwarded := packettest.Options{CB: [5]uint32{uint32(DatapathWireMarkWIRE_FORWARDED)}}
	to := func(name, l4, want string) row {
		return one(name, "to_wire eth0", `eth node > node2 | ip node > node2 | `+l4, want, "=")
	}
	syn := func(from, to string) step {
		return step{at: "to_wire eth0", want: "FORWARD_ENCRYPT",
			in:  `eth node > node2 | ip node > node2 | tcp 40000 > 80 ` + from,
			out: `eth node > node2 | ip node > node2 | tcp 40000 > 80 ` + to}
	}
	return []row{
		to("UDP", `udp 40000 > 53 | "x"`, "FORWARD_ENCRYPT"),
		to("TCP", `tcp 40000 > 80 A | "x"`, "FORWARD_ENCRYPT"),
		to("another protocol", `esp spi 1 seq 1 | len 40`, "FORWARD_ENCRYPT"),
		to("an echo", `icmp echo id 1 seq 1`, "FORWARD_ENCRYPT"),
		to("WireGuard's own", `udp 51871 > 51871 | len 40`, "FORWARD_STACK"),
		to("WireGuard's own, of the second device", `udp 51872 > 51872 | len 40`, "FORWARD_STACK"),
		to("from the port of the second device", `udp 51872 > 53 | len 40`, "FORWARD_ENCRYPT"),
		to("to WireGuard's port", `udp 40000 > 51871 | len 40`, "FORWARD_ENCRYPT"),
		to("from the port of WireGuard, by TCP", `tcp 51871 > 80 A`, "FORWARD_ENCRYPT"),
		only6(one("neighbour discovery", "to_wire eth0",
			`eth node > node2 | ip6 node > node2 ttl 255 | nd solicit node2 lladdr node`, "FORWARD_STACK", "=")),
		only6(one("what looks like neighbour discovery", "to_wire eth0",
			`eth node > node2 | ip6 node > node2 ttl 64 | nd solicit node2 lladdr node`, "FORWARD_ENCRYPT", "=")),
		only4(row{name: "SYN", steps: []step{syn("S mss 1460 sackok", "S mss 1380 sackok")}}),
		only6(row{name: "SYN", steps: []step{syn("S mss 1440 sackok", "S mss 1360 sackok")}}),
		{name: "SYN and ACK, of less", steps: []step{syn("SA mss 1000", "SA mss 1000")}},
		{name: "SYN without options", steps: []step{syn("S", "S")}},
		{name: "another option first", steps: []step{syn("S nop nop mss 1460", "S nop nop mss 1460")}},
		one("to a node that opts out", "to_wire eth0", `eth node > router | ip node > router | udp 1 > 2`,
			"FORWARD_STACK", "="),
		one("to the world", "to_wire eth0", `eth node > router | ip node > world | udp 1 > 2`, "FORWARD_STACK", "="),
		one("from an address that peers do not take", "to_wire eth0",
			`eth node > node2 | ip gw > node2 | udp 1 > 2`, "FORWARD_STACK", "="),
		one("of another node", "to_wire eth0", `eth node > node2 | ip node3 > node2 | udp 1 > 2`, "FORWARD_STACK", "="),
		{name: "by the device that encrypts", steps: []step{{at: "to_wire other0", want: "FORWARD_STACK", out: "=",
			in: `eth none > none | ip node > node2 | udp 1 > 2`}}},
		{name: "forwarded", steps: []step{{at: "to_wire eth0", want: "FORWARD_STACK", out: "=", options: forwarded,
			in: `eth node > node2 | ip node > node2 | udp 1 > 2`}}},
		{name: "fragments of WireGuard's own", steps: []step{
			{at: "to_wire eth0", want: "FORWARD_STACK", out: "=",
				in: `eth node > node2 | ip node > node2 frag 7 mf | udp 51871 > 51871 len 80 | len 40`},
			{at: "to_wire eth0", want: "FORWARD_STACK", out: "=",
				in: `eth node > node2 | ip node > node2 frag 7 off 48 proto udp | len 32`},
		}},
		one("from node2", "from_wire other0", `eth none > none | ip node2 > node | tcp 1 > 22 S`, "FORWARD_STACK", "="),
	}
}

// strictNodeRows: to and from nodes whose traffic is encrypted, only WireGuard and neighbour discovery travel in plain
// text.
func strictNodeRows() []row {
	from := func(name, from, l4, want, out string) row {
		return one(name, "from_wire eth0", `eth node2 > node | ip `+from+` > node | `+l4, want, out)
	}
	return []row{
		from("from node2", "node2", `udp 1 > 2`, "DROP_NOT_ENCRYPTED", ""),
		from("from node3, which has no key", "node3", `udp 1 > 2`, "DROP_NOT_ENCRYPTED", ""),
		from("WireGuard's own", "node2", `udp 40000 > 51871 | len 40`, "FORWARD_STACK", "="),
		from("from WireGuard's port", "node2", `udp 51871 > 53 | len 40`, "DROP_NOT_ENCRYPTED", ""),
		from("to the port of the second device", "node2", `udp 40000 > 51872 | len 40`, "DROP_NOT_ENCRYPTED", ""),
		from("WireGuard's own, of the second device", "node2", `udp 51872 > 51872 | len 40`, "FORWARD_STACK", "="),
		from("from a node that opts out", "router", `udp 1 > 2`, "FORWARD_STACK", "="),
		only6(one("neighbour discovery", "from_wire eth0",
			`eth node2 > node | ip6 node2 > node ttl 255 | nd solicit node lladdr node2`, "FORWARD_STACK", "=")),
		one("to node3, which has no key", "to_wire eth0", `eth node > router | ip node > node3 | udp 1 > 2`,
			"DROP_NOT_ENCRYPTED", ""),
		one("WireGuard's own to node3", "to_wire eth0",
			`eth node > router | ip node > node3 | udp 51871 > 51871 | len 9`, "FORWARD_STACK", "="),
	}
}
