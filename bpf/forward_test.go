package bpf

import (
	"testing"

	"myelin/test/packet/packettest"
)

func forwardTables() []table {
	return []table{
		{name: "forward", settings: settingsOf(), rows: append(forwardRows(), wireRows()...)},
		{name: "forward, legacy", settings: settingsOf(legacy), rows: legacyRows()},
		{name: "forward, only IPv4", settings: settingsOf(func(s *Settings) { s.Ipv6 = 0 }), rows: []row{
			only4(one("on", "from_pod linka", `eth a > gw | ip a > b | udp 1 > 2`, "FORWARD_POD",
				`eth gwb > b | ip a > b ttl 63 | udp 1 > 2`)),
			only6(one("off", "from_pod linka", `eth a > gw | ip a > b | udp 1 > 2`, "DROP_UNSUPPORTED_FAMILY", "=")),
			only6(one("off, wire", "from_wire eth0", `eth node2 > node | ip c > a | udp 1 > 2`, "FORWARD_STACK", "=")),
		}},
		{name: "forward, only IPv6", settings: settingsOf(func(s *Settings) { s.Ipv4 = 0 }), rows: []row{
			only6(one("on", "from_pod linka", `eth a > gw | ip a > b | udp 1 > 2`, "FORWARD_POD",
				`eth gwb > b | ip a > b ttl 63 | udp 1 > 2`)),
			only4(one("off", "from_pod linka", `eth a > gw | ip a > b | udp 1 > 2`, "DROP_UNSUPPORTED_FAMILY", "=")),
			only4(one("off, wire", "from_wire eth0", `eth node2 > node | ip c > a | udp 1 > 2`, "FORWARD_STACK", "=")),
		}},
	}
}

func forwardRows() []row {
	return append([]row{
		one("pod to pod", "from_pod linka", `eth a > gw | ip a > b ttl 64 | tcp 40000 > 80 S seq 1`,
			"FORWARD_POD", `eth gwb > b | ip a > b ttl 63 | tcp 40000 > 80 S seq 1`),
		one("pod to pod, udp", "from_pod linkb", `eth b > gwb | ip b > a ttl 2 | udp 53 > 5000 | "x"`,
			"FORWARD_POD", `eth gw > a | ip b > a ttl 1 | udp 53 > 5000 | "x"`),
		one("pod to pod, sctp", "from_pod linka", `eth a > gw | ip a > b | sctp 1 > 2 init`, "FORWARD_POD",
			`eth gwb > b | ip a > b ttl 63 | sctp 1 > 2 init`),
		one("pod to pod, echo", "from_pod linka", `eth a > gw | ip a > b | icmp echo id 7 seq 1 | len 56`,
			"FORWARD_POD", `eth gwb > b | ip a > b ttl 63 | icmp echo id 7 seq 1 | len 56`),
		one("pod to pod, esp", "from_pod linka", `eth a > gw | ip a > b | esp spi 1 seq 1 | len 40`, "FORWARD_POD",
			`eth gwb > b | ip a > b ttl 63 | esp spi 1 seq 1 | len 40`),
		one("pod to itself by way of the gateway", "from_pod linka", `eth a > gw | ip a > a | udp 1 > 2`, "FORWARD_POD",
			`eth gw > a | ip a > a ttl 63 | udp 1 > 2`),
		one("marks of a packet stay", "from_pod linka", `eth a > gw | ip a > b tos 0xb9 df id 7 | udp 1 > 2`,
			"FORWARD_POD", `eth gwb > b | ip a > b tos 0xb9 df id 7 ttl 63 | udp 1 > 2`),
		one("fragments as they are", "from_pod linka", `eth a > gw | ip a > b frag 7 off 1480 proto udp | "tail"`,
			"FORWARD_POD", `eth gwb > b | ip a > b ttl 63 frag 7 off 1480 proto udp | "tail"`),
		only4(one("options stay", "from_pod linka", `eth a > gw | ip4 a > b opts 44040500 | udp 1 > 2`, "FORWARD_POD",
			`eth gwb > b | ip4 a > b ttl 63 opts 44040500 | udp 1 > 2`)),
		only4(one("a wrong header checksum stays wrong", "from_pod linka",
			`eth a > gw | ip a > b sum 0x1234 | udp 1 > 2`,
			"FORWARD_POD", `eth gwb > b | ip a > b ttl 63 sum 0x1334 | udp 1 > 2`)),
		only6(one("extension headers stay", "from_pod linka",
			`eth a > gw | ip6 a > b flow 0xabcde | hbh | dstopts | udp 1 > 2`,
			"FORWARD_POD", `eth gwb > b | ip6 a > b flow 0xabcde ttl 63 | hbh | dstopts | udp 1 > 2`)),
		one("padding stays", "from_pod linka", `eth a > gw | ip a > b | udp 1 > 2 | pad 18`, "FORWARD_POD",
			`eth gwb > b | ip a > b ttl 63 | udp 1 > 2 | pad 18`),
		one("pod to gateway", "from_pod linka", `eth a > gw | ip a > gw | icmp echo id 1 seq 1`, "FORWARD_STACK", "="),
		one("pod to gateway, last hop", "from_pod linka", `eth a > gw | ip a > gw ttl 1 | icmp echo id 1 seq 1`,
			"FORWARD_STACK", "="),
		one("pod to node", "from_pod linka", `eth a > gw | ip a > node | tcp 40000 > 22 S`, "FORWARD_STACK", "="),
		one("to a device that is no wire", "from_pod linka", `eth a > gw | ip a > other | udp 1 > 2`,
			"FORWARD_STACK", "="),
		one("without any route", "from_pod linka", `eth a > gw | ip a > stranger | udp 1 > 2`, "FORWARD_STACK", "="),
		keptRow("pod to node2", "c", "node2"), keptRow("to the world", "world", "router"),
		keptRow("to a node", "node2", "node2"),
	}, forwardCacheRows()...)
}

func forwardCacheRows() []row {
	return []row{
		{name: "unknown neighbour, never kept", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > d | udp 1 > 2`, want: "FORWARD_RESOLVE",
				out:   `eth none > none | ip a > d ttl 63 | udp 1 > 2`,
				after: pathsAre(0)},
			{at: "from_pod linka", in: `eth a > gw | ip a > d | udp 1 > 2`, want: "FORWARD_RESOLVE"},
		}},
		{name: "an epoch makes a path stale", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > c | udp 1 > 2`, want: "FORWARD_RESOLVE"},
			{at: "from_pod linka", in: `eth a > gw | ip a > c | udp 1 > 2`, want: "FORWARD_WIRE"},
			{at: "from_pod linka", in: `eth a > gw | ip a > c | udp 1 > 2`, want: "FORWARD_RESOLVE", before: bumps(0)},
			{at: "from_pod linka", in: `eth a > gw | ip a > c | udp 1 > 2`, want: "FORWARD_RESOLVE", before: bumps(2)},
			{at: "from_pod linka", in: `eth a > gw | ip a > c | udp 1 > 2`, want: "FORWARD_WIRE", before: bumps(3)},
		}},
		{name: "a forwarding cache entry is the sender's only", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 1 > 2`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: `eth stranger > gw | ip a > b | udp 1 > 2`, want: "DROP_SPOOFED_MAC", out: "="},
			{at: "from_pod linkb", in: `eth a > gw | ip a > b | udp 1 > 2`, want: "DROP_SPOOFED_MAC", out: "="},
			{at: "from_pod linkb", in: `eth b > gw | ip a > b | udp 1 > 2`, want: "DROP_SPOOFED_ADDRESS", out: "="},
		}},
		{name: "a body that is not linear", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 1 > 2 | len 1000`, want: "FORWARD_POD",
				options: packettest.Options{Linear: 54},
				out:     `eth gwb > b | ip a > b ttl 63 | udp 1 > 2 | len 1000`},
		}},
	}
}

// keptRow is a destination behind the wire: the first packet asks the kernel, the second goes by what was kept.
func keptRow(name, dst, hop string) row {
	in := `eth a > gw | ip a > ` + dst + ` ttl 9 | tcp 40000 > 80 S | "x"`
	out := `eth node > ` + hop + ` | ip a > ` + dst + ` ttl 8 | tcp 40000 > 80 S | "x"`
	return row{name: name, steps: []step{
		{at: "from_pod linka", in: in, want: "FORWARD_RESOLVE", out: out, after: pathsAre(1)},
		{at: "from_pod linka", in: in, want: "FORWARD_WIRE", out: out},
	}}
}

func pathsAre(n int) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		if got := freshPaths(t, w); len(got) != n {
			t.Fatalf("%d paths are kept, want %d: %+v", len(got), n, got)
		}
	}
}

func bumps(slot uint16) func(testing.TB, *world) {
	return func(t testing.TB, w *world) { t.Helper(); w.bump(t, slot) }
}

func wireRows() []row {
	return []row{
		one("to a pod", "from_wire eth0", `eth node2 > node | ip c > a ttl 63 | tcp 80 > 40000 SA`, "FORWARD_POD",
			`eth gw > a | ip c > a ttl 62 | tcp 80 > 40000 SA`),
		one("from the world to a pod", "from_wire eth0", `eth router > node | ip world > b ttl 3 | udp 1 > 2`,
			"FORWARD_POD", `eth gwb > b | ip world > b ttl 2 | udp 1 > 2`),
		one("to the node", "from_wire eth0", `eth router > node | ip world > node ttl 1 | tcp 5000 > 22 S`,
			"FORWARD_STACK", "="),
		one("to the gateway", "from_wire eth0", `eth router > node | ip c > gw | icmp echo id 1 seq 1`,
			"FORWARD_STACK", "="),
		one("to another host", "from_wire eth0", `eth router > node | ip world > d | udp 1 > 2`, "FORWARD_STACK", "="),
		one("to a pod that is gone", "from_wire eth0", `eth router > node | ip world > gone | udp 1 > 2`,
			"FORWARD_STACK", "="),
		one("broadcast", "from_wire eth0", `eth router > broadcast | ip router > all-nodes ttl 1 | udp 1 > 2`,
			"FORWARD_STACK", "="),
		only4(one("arp", "from_wire eth0", `eth router > broadcast | arp who-has node tell router`,
			"FORWARD_STACK", "=")),
		only6(one("nd", "from_wire eth0",
			`eth router > solicited:node | ip router > solicited:node ttl 255 | nd solicit node from router`,
			"FORWARD_STACK", "=")),
		one("another protocol", "from_wire eth0", `eth router > node type 0x88cc | len 50`, "FORWARD_STACK", "="),
		one("version", "from_wire eth0", `eth router > node | ip world > a ver 5 | udp 1 > 2`, "DROP_BAD_HEADER", "="),
	}
}

func legacyRows() []row {
	return []row{
		one("pod to pod", "from_pod linka", `eth a > gw | ip a > b | udp 1 > 2`, "FORWARD_STACK", "="),
		one("pod to node2", "from_pod linka", `eth a > gw | ip a > c ttl 1 | udp 1 > 2`, "FORWARD_STACK", "="),
		one("to the world", "from_pod linka", `eth a > gw | ip a > world | udp 1 > 2`, "FORWARD_STACK", "="),
		one("blackhole", "from_pod linka", `eth a > gw | ip a > blackhole | udp 1 > 2`, "FORWARD_STACK", "="),
		one("to a pod", "from_wire eth0", `eth node2 > node | ip c > a | udp 1 > 2`, "FORWARD_STACK", "="),
		one("out", "to_wire eth0", `eth node > node2 | ip a > c ttl 63 | udp 1 > 2`, "FORWARD_STACK", "="),
		one("spoofed", "from_pod linka", `eth a > gw | ip b > c | udp 1 > 2`, "DROP_SPOOFED_ADDRESS", "="),
		one("multicast", "from_pod linka", `eth a > gw | ip a > all-routers | udp 1 > 2`, "DROP_MULTICAST", "="),
	}
}
