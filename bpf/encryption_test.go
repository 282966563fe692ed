package bpf

import (
	"net/netip"
	"slices"
	"testing"
)

// encrypting has pods of node2 and node2 itself reached by other0, in the place of a WireGuard device.
func encrypting(s *Settings) { s.Encryption = 1 }

// strict has node3, whose pod is d, without a key, and nothing leaves for its pods in plain text.
func strict(s *Settings) { s.StrictEgress, s.StrictIngress = 1, 1 }

// addEncrypted writes the rows that the agent would, of an MTU of 1420.
func (w *world) addEncrypted(t testing.TB) {
	t.Helper()
	if w.settings.Encryption == 0 {
		return
	}
	n := worldNames()
	device := uint32(w.index["other0"])
	must(t, w.Wires.Put(device, DatapathWire{
		Addr4: Addr(n["node"].IP4), Addr6: Addr(n["node"].IP6), Mtu: 1420,
		Flags: uint32(DatapathWireFlagWIRE_L3 | DatapathWireFlagWIRE_ENCRYPTED),
	}))
	for name, flags := range map[string]uint32{"c": 0, "node2": uint32(DatapathPrefixFlagPREFIX_NODE)} {
		for _, a := range families(n[name]) {
			prefix := Prefix(around(a))
			if flags != 0 {
				prefix = Prefix(netip.PrefixFrom(a, a.BitLen()))
			}
			var row DatapathPrefix
			_ = w.Prefixes.Lookup(prefix, &row) // node2 has none without a tunnel
			row.Flags |= flags | uint32(DatapathPrefixFlagPREFIX_CLUSTER)
			row.Encryption = device
			must(t, w.Prefixes.Put(prefix, row))
		}
	}
	for _, a := range families(n["d"]) {
		var row DatapathPrefix
		must(t, w.Prefixes.Lookup(Prefix(around(a)), &row))
		if w.settings.StrictEgress != 0 {
			row.Flags |= uint32(DatapathPrefixFlagPREFIX_STRICT)
		}
		must(t, w.Prefixes.Put(Prefix(around(a)), row))
	}
	w.addNodeEncryption(t)
}

// strictRows: packets in plain text are dropped both ways, also of flows that are encrypted, but not those between
// nodes and with the world.
func strictRows() []row {
	return []row{
		{name: "an encrypted flow, and a packet of it in plain text", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > c ttl 9 | udp 40000 > 53`, want: "FORWARD_ENCRYPT",
				out: `eth none > none | ip a > c ttl 8 | udp 40000 > 53`},
			{at: "from_wire other0", in: `eth none > none | ip c > a ttl 63 | udp 53 > 40000`, want: "FORWARD_POD",
				out: `eth gw > a | ip c > a ttl 62 | udp 53 > 40000`},
			{at: "from_wire eth0", in: `eth node2 > node | ip c > a ttl 63 | udp 53 > 40000`,
				want: "DROP_NOT_ENCRYPTED"},
			{at: "from_wire other0", in: `eth none > none | ip c > a ttl 63 | udp 53 > 40000`, want: "FORWARD_POD",
				out: `eth gw > a | ip c > a ttl 62 | udp 53 > 40000`},
		}},
		one("to a pod of a node without a key", "from_pod linka", `eth a > gw | ip a > d | udp 1 > 2`,
			"DROP_NOT_ENCRYPTED", ""),
		one("from a pod of a node without a key", "from_wire eth0", `eth node2 > node | ip d > a | udp 1 > 2`,
			"DROP_NOT_ENCRYPTED", ""),
		one("from a pod, to the node", "from_wire eth0", `eth node2 > node | ip c > node | udp 1 > 2`,
			"DROP_NOT_ENCRYPTED", ""),
		one("from a node, to a pod", "from_wire eth0", `eth node2 > node | ip node2 > a | udp 1 > 2`,
			"DROP_NOT_ENCRYPTED", ""),
		one("from a node, to the node", "from_wire eth0", `eth node2 > node | ip node2 > node | udp 1 > 2`,
			"FORWARD_STACK", "="),
		one("from the world", "from_wire eth0", `eth router > node | ip world > a | udp 1 > 2`, "FORWARD_POD",
			`eth gw > a | ip world > a ttl 63 | udp 1 > 2`),
	}
}

func encryptionTables() []table {
	var tables []table
	for _, mode := range []struct {
		name   string
		change []func(*Settings)
	}{
		{"encryption", []func(*Settings){encrypting}},
		{"encryption, tracking, masquerading", []func(*Settings){encrypting, tracking, masquerading}},
		{"encryption, tunnel", []func(*Settings){encrypting, tunnel4}},
	} {
		tables = append(tables, table{name: mode.name, settings: settingsOf(mode.change...), rows: encryptionRows()})
	}
	return append(tables,
		table{name: "encryption, legacy", settings: settingsOf(encrypting, legacy), rows: []row{
			one("to node2's pod, by the stack", "from_pod linka", `eth a > gw | ip a > c | udp 1 > 2`,
				"FORWARD_STACK", "="),
			one("to node2", "from_pod linka", `eth a > gw | ip a > node2 | udp 1 > 2`,
				"FORWARD_ENCRYPT", `eth none > none | ip a > node2 ttl 63 | udp 1 > 2`),
		}},
		table{name: "encryption, strict", settings: settingsOf(encrypting, strict), rows: strictRows()},
		table{name: "encryption, strict, tracking", settings: settingsOf(encrypting, strict, tracking),
			rows: strictRows()},
		table{name: "encryption, strict, tunnel", settings: settingsOf(encrypting, strict, tunnel4),
			rows: strictRows()},
		table{name: "encryption, services", settings: settingsOf(encrypting, servicing),
			rows: encryptedServiceRows("FORWARD_RESOLVE")},
		table{name: "encryption, services, tunnel", settings: settingsOf(encrypting, servicing, tunnel4),
			rows: encryptedServiceRows("FORWARD_RESOLVE")},
		table{name: "encryption, services, direct", settings: settingsOf(encrypting, servicing, direct),
			rows: encryptedDirectRows()},
		table{name: "node encryption", settings: settingsOf(encrypting, nodeEncryption), rows: nodeRows()},
		table{name: "node encryption, tracking", settings: settingsOf(encrypting, nodeEncryption, tracking, servicing),
			rows: nodeRows()},
		table{name: "node encryption, strict", settings: settingsOf(encrypting, nodeEncryption, strict, tunnel4),
			rows: slices.Concat(nodeRows(), strictNodeRows())},
		table{name: "node encryption, no pods with IPv6", settings: settingsOf(encrypting, nodeEncryption, strict,
			func(s *Settings) { s.Ipv6 = 0 }), rows: []row{
			only6(one("to node2", "to_wire eth0", `eth node > node2 | ip node > node2 | udp 1 > 2`,
				"FORWARD_ENCRYPT", "=")),
			only6(one("in plain text", "from_wire eth0", `eth node2 > node | ip node2 > node | udp 1 > 2`,
				"DROP_NOT_ENCRYPTED", "")),
		}},
	)
}

func encryptionRows() []row {
	in, out := `eth a > gw | ip a > c ttl 9 | tcp 40000 > 80 S | "x"`,
		`eth none > none | ip a > c ttl 8 | tcp 40000 > 80 S | "x"`
	return []row{
		{name: "to node2's pod", steps: []step{
			{at: "from_pod linka", in: in, want: "FORWARD_ENCRYPT", out: out},
			{at: "from_pod linka", in: in, want: "FORWARD_ENCRYPT", out: out},
			{at: "from_wire other0", in: `eth none > none | ip c > a ttl 63 | tcp 80 > 40000 SA`, want: "FORWARD_POD",
				out: `eth gw > a | ip c > a ttl 62 | tcp 80 > 40000 SA`},
		}},
		one("to node2", "from_pod linka", `eth a > gw | ip a > node2 | udp 1 > 2`,
			"FORWARD_ENCRYPT", `eth none > none | ip a > node2 ttl 63 | udp 1 > 2`),
		one("from node2", "from_wire other0", `eth none > none | ip node2 > a | udp 1 > 2`,
			"FORWARD_POD", `eth gw > a | ip node2 > a ttl 63 | udp 1 > 2`),
		one("to the node", "from_wire other0", `eth none > none | ip c > node | tcp 1 > 22 S`, "FORWARD_STACK", "="),
		one("from node2, to an address that no pod has", "from_wire other0",
			`eth none > none | ip node2 > gone | udp 1 > 2`, "DROP_NO_ROUTE REPLY_ICMP",
			`eth none > none | ip gw > node2 df | icmp unreachable host | ip node2 > gone | udp 1 > 2`),
		one("as large as the device allows", "from_pod linka", `eth a > gw | ip a > c df | udp 1 > 2 | len 1372`,
			"FORWARD_ENCRYPT", `eth none > none | ip a > c df ttl 63 | udp 1 > 2 | len 1372`),
		one("too large", "from_pod linka", `eth a > gw | ip a > c df | udp 1 > 2 | len 1424`,
			"DROP_TOO_BIG REPLY_ICMP",
			`eth gw > a | ip gw > a df | icmp too-big mtu 1420 quote 96 | ip a > c df | udp 1 > 2 | len 1424`),
	}
}

// encryptedServiceRows: a client outside gets the address of this node, which peers take; answer is how what the
// backend answers leaves.
func encryptedServiceRows(answer string) []row {
	return []row{
		{name: "from outside, to a pod of node2", steps: []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > node ttl 60 | tcp 40000 > 30081 S`,
				want: "FORWARD_ENCRYPT", out: `eth none > none | ip node > c ttl 59 | tcp 51000 > 8080 S`},
			{at: "from_wire other0", in: `eth none > none | ip c > node ttl 60 | tcp 8080 > 51000 SA`,
				want: answer, out: `eth node > router | ip node > world ttl 59 | tcp 30081 > 40000 SA`},
		}},
		{name: "to a pod of node2", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > vip ttl 64 | udp 40000 > 81`, want: "FORWARD_ENCRYPT",
				out: `eth none > none | ip a > c ttl 63 | udp 40000 > 8080`},
			{at: "from_wire other0", in: `eth none > none | ip c > a ttl 60 | udp 8080 > 40000`, want: "FORWARD_POD",
				out: `eth gw > a | ip vip > a ttl 59 | udp 81 > 40000`},
		}},
	}
}

// encryptedDirectRows: what keeps the client's address is not encrypted, since node2 would not take it, and what pods
// send to the same backend is.
func encryptedDirectRows() []row {
	return optioned("direct, and from a pod", func(ip optionIP) []step {
		return []step{
			{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | udp 40000 > 81 | "q"`,
				want: "FORWARD_RESOLVE", out: `eth node > node2 | ` + ip("world > c ttl 59",
					81) + ` | udp 40000 > 8080 | "q"`},
			{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | udp 40000 > 81 | "r"`,
				want: "FORWARD_WIRE", out: `eth node > node2 | ` + ip("world > c ttl 59",
					81) + ` | udp 40000 > 8080 | "r"`},
			{at: "from_pod linka", in: `eth a > gw | ip a > vip ttl 64 | udp 40000 > 81`, want: "FORWARD_ENCRYPT",
				out: `eth none > none | ip a > c ttl 63 | udp 40000 > 8080`},
		}
	})
}
