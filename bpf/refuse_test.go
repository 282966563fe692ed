package bpf

func refuseTables() []table {
	return []table{
		{name: "refuse", settings: settingsOf(), rows: append(headerRows(), destinationRows()...)},
		{name: "refuse, tracking", settings: settingsOf(tracking), rows: append(headerRows(), destinationRows()...)},
	}
}

// headerRows are packets whose headers or sender are wrong.
func headerRows() []row {
	return []row{
		one("link of no pod", "from_pod other0", `eth a > gw | ip a > b | udp 1 > 2`, "DROP_NO_ENDPOINT", "="),
		one("spoofed MAC", "from_pod linka", `eth b > gw | ip a > b | udp 1 > 2`, "DROP_SPOOFED_MAC", "="),
		one("spoofed address of a pod", "from_pod linka", `eth a > gw | ip b > c | udp 1 > 2`,
			"DROP_SPOOFED_ADDRESS", "="),
		one("spoofed address of the node", "from_pod linka", `eth a > gw | ip node > c | udp 1 > 2`,
			"DROP_SPOOFED_ADDRESS", "="),
		one("spoofed address of the gateway", "from_pod linka", `eth a > gw | ip gw > c | udp 1 > 2`,
			"DROP_SPOOFED_ADDRESS", "="),
		one("no address", "from_pod linka", `eth a > gw | ip none > c | udp 1 > 2`, "DROP_SPOOFED_ADDRESS", "="),
		one("multicast sender", "from_pod linka", `eth a > gw | ip all-nodes > c | udp 1 > 2`,
			"DROP_SPOOFED_ADDRESS", "="),
		only6(one("IPv4 address mapped into IPv6 as sender", "from_pod linka",
			`eth a > gw | ip6 ::ffff:10.1.0.10 > b | udp 1 > 2`, "DROP_MARTIAN", "=")),
		only6(one("link-local sender", "from_pod linka", `eth a > gw | ip6 fe80::a > b | udp 1 > 2`,
			"DROP_SPOOFED_ADDRESS", "=")),
		one("another protocol", "from_pod linka", `eth a > gw type 0x88cc | len 50`, "DROP_UNSUPPORTED_L2", "="),
		one("a tag inside the packet", "from_pod linka", `eth a > gw vlan 5 | ip a > b | udp 1 > 2`,
			"DROP_UNSUPPORTED_L2", "="),
		one("wrong version", "from_pod linka", `eth a > gw | ip a > b ver 5 | udp 1 > 2`, "DROP_BAD_HEADER", "="),
		one("version 0", "from_pod linka", `eth a > gw | ip a > b ver 0 | udp 1 > 2`, "DROP_BAD_HEADER", "="),
		only4(one("header of 16 bytes", "from_pod linka", `eth a > gw | ip4 a > b ihl 4 | udp 1 > 2`,
			"DROP_BAD_HEADER", "=")),
		only4(one("total length below the header's", "from_pod linka", `eth a > gw | ip4 a > b tot-len 19 | udp 1 > 2`,
			"DROP_BAD_HEADER", "=")),
		only4(one("header longer than the packet", "from_pod linka", `eth a > gw | ip4 a > b ihl 15 | udp 1 > 2`,
			"DROP_BAD_HEADER", "=")),
		only4(one("total length beyond the frame", "from_pod linka", `eth a > gw | ip4 a > b tot-len 100 | udp 1 > 2`,
			"DROP_TRUNCATED", "=")),
		only6(one("payload beyond the frame", "from_pod linka", `eth a > gw | ip6 a > b payload-len 100 | udp 1 > 2`,
			"DROP_TRUNCATED", "=")),
	}
}

// destinationRows are packets to where no pod may send.
func destinationRows() []row {
	return []row{
		one("all nodes", "from_pod linka", `eth a > all-nodes | ip a > all-nodes | udp 1 > 2`, "DROP_MULTICAST", "="),
		one("all routers, by unicast", "from_pod linka", `eth a > gw | ip a > all-routers | udp 1 > 2`,
			"DROP_MULTICAST", "="),
		only4(one("broadcast", "from_pod linka", `eth a > broadcast | ip4 a > broadcast | udp 68 > 67`,
			"DROP_MULTICAST", "=")),
		only4(one("multicast, high", "from_pod linka", `eth a > gw | ip4 a > 239.255.255.250 | udp 1 > 1900`,
			"DROP_MULTICAST", "=")),
		only4(one("class E", "from_pod linka", `eth a > gw | ip4 a > 240.0.0.1 | udp 1 > 2`, "DROP_MULTICAST", "=")),
		only4(one("igmp", "from_pod linka",
			`eth a > gw | ip4 a > 224.0.0.22 ttl 1 opts 94040000 | igmp report 224.0.0.251`, "DROP_MULTICAST", "=")),
		only6(one("multicast, wide", "from_pod linka", `eth a > gw | ip6 a > ff0e::1 | udp 1 > 2`,
			"DROP_MULTICAST", "=")),
		only6(one("mld", "from_pod linka",
			`eth a > all-nodes | ip6 a > ff02::16 ttl 1 | hbh body 050200000100 | mld report ff02::fb`,
			"DROP_MULTICAST", "=")),
		one("nowhere", "from_pod linka", `eth a > gw | ip a > none | udp 1 > 2`, "DROP_MARTIAN", "="),
		only4(one("loopback", "from_pod linka", `eth a > gw | ip4 a > 127.0.0.1 | tcp 1 > 80 S`, "DROP_MARTIAN", "=")),
		only4(one("loopback, high", "from_pod linka", `eth a > gw | ip4 a > 127.255.0.1 | tcp 1 > 80 S`,
			"DROP_MARTIAN", "=")),
		only4(one("this network", "from_pod linka", `eth a > gw | ip4 a > 0.1.2.3 | tcp 1 > 80 S`,
			"DROP_MARTIAN", "=")),
		only4(one("metadata is no martian", "from_pod linka", `eth a > gw | ip4 a > 169.254.169.254 | tcp 1 > 80 S`,
			"FORWARD_STACK", "=")),
		only6(one("loopback", "from_pod linka", `eth a > gw | ip6 a > ::1 | tcp 1 > 80 S`, "DROP_MARTIAN", "=")),
		only6(one("link-local", "from_pod linka", `eth a > gw | ip6 a > fe80::1 | tcp 1 > 80 S`, "DROP_MARTIAN", "=")),
		only6(one("link-local, high", "from_pod linka", `eth a > gw | ip6 a > febf::1 | tcp 1 > 80 S`,
			"DROP_MARTIAN", "=")),
		only6(one("IPv4-compatible", "from_pod linka", `eth a > gw | ip6 a > ::10.1.0.11 | tcp 1 > 80 S`,
			"DROP_MARTIAN", "=")),
		// What the datapath writes for IPv4 must not be reached by IPv6 packets.
		only6(one("pod's IPv4 address mapped into IPv6", "from_pod linka",
			`eth a > gw | ip6 a > ::ffff:10.1.0.11 | udp 1 > 2`, "DROP_MARTIAN", "=")),
		only6(one("world's IPv4 address mapped into IPv6", "from_pod linka",
			`eth a > gw | ip6 a > ::ffff:198.51.100.7 | udp 1 > 2`, "DROP_MARTIAN", "=")),
		only6(one("pod's IPv4 address mapped into IPv6, wire", "from_wire eth0",
			`eth router > node | ip6 world > ::ffff:10.1.0.10 | udp 1 > 2`, "DROP_MARTIAN", "=")),
	}
}
