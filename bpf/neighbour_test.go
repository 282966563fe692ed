package bpf

import "slices"

func neighbourTables() []table {
	return []table{
		{name: "arp", settings: settingsOf(), rows: arpRows()},
		{name: "nd", settings: settingsOf(), rows: slices.Concat(ndRows(), ndRefusedRows(), ndHiddenRows(),
			[]row{only6(one("later fragment without a first one, to the host", "from_pod linka",
				`eth a > gw | ip6 a > gw ttl 255 | frag 6 off 32 proto 58 | len 8`, "FORWARD_STACK", "="))})},
		{name: "nd, tracking", settings: settingsOf(tracking),
			rows: slices.Concat(ndRows(), ndRefusedRows(), ndHiddenRows())},
		{name: "nd, legacy routing", settings: settingsOf(legacy), rows: ndHiddenRows()},
		{name: "arp where IPv4 is off", settings: settingsOf(func(s *Settings) {
			s.Ipv4, s.Gateway4.B = 0, [16]byte{}
		}), rows: []row{
			only4(one("gateway", "from_pod linka", `eth a > broadcast | arp who-has gw tell a`,
				"DROP_ARP_TARGET", "=")),
		}},
	}
}

func arpRows() []row {
	rows := []row{
		one("gateway", "from_pod linka", `eth a > broadcast | arp who-has gw tell a`, "REPLY_ARP",
			`eth gw > a | arp gw is-at gw to a`),
		one("gateway, asked directly", "from_pod linka", `eth a > gw | arp who-has gw tell a tha gw`, "REPLY_ARP",
			`eth gw > a | arp gw is-at gw to a`),
		one("gateway, of the other pod", "from_pod linkb", `eth b > broadcast | arp who-has gw tell b`, "REPLY_ARP",
			`eth gwb > b | arp gw is-at gwb to b`),
		one("padded", "from_pod linka", `eth a > broadcast | arp who-has gw tell a | pad 18`, "REPLY_ARP",
			`eth gw > a | arp gw is-at gw to a | pad 18`),
		one("is the gateway's address free", "from_pod linka", `eth a > broadcast | arp who-has gw tell none sha a`,
			"REPLY_ARP", `eth gw > a | arp gw is-at gw to none tha a`),
		one("is the own address free", "from_pod linka", `eth a > broadcast | arp who-has a tell none sha a`,
			"DROP_ARP_TARGET", "="),
		one("announcement", "from_pod linka", `eth a > broadcast | arp who-has a tell a`, "DROP_ARP_TARGET", "="),
		one("another pod", "from_pod linka", `eth a > broadcast | arp who-has b tell a`, "DROP_ARP_TARGET", "="),
		one("answer", "from_pod linka", `eth a > gw | arp a is-at a to gw`, "DROP_ARP_TARGET", "="),
		one("another operation", "from_pod linka", `eth a > gw | arp who-has gw tell a op 3`, "DROP_ARP_TARGET", "="),
		one("spoofed address", "from_pod linka", `eth a > broadcast | arp who-has gw tell b sha a`,
			"DROP_SPOOFED_ARP", "="),
		one("spoofed address of the gateway", "from_pod linka", `eth a > broadcast | arp who-has gw tell gw sha a`,
			"DROP_SPOOFED_ARP", "="),
		one("spoofed MAC", "from_pod linka", `eth a > broadcast | arp who-has gw tell a sha b`,
			"DROP_SPOOFED_ARP", "="),
		one("spoofed MAC of the frame", "from_pod linka", `eth b > broadcast | arp who-has gw tell a`,
			"DROP_SPOOFED_MAC", "="),
		one("truncated", "from_pod linka", `eth a > broadcast | arp who-has gw tell a truncate 41`,
			"DROP_TRUNCATED", "="),
		one("link of no pod", "from_pod other0", `eth a > broadcast | arp who-has gw tell a`, "DROP_NO_ENDPOINT", "="),
	}
	for i := range rows {
		rows[i] = only4(rows[i])
	}
	return rows
}

const advert = `eth gw > a | ip6 gw > a ttl 255 | nd advert gw router solicited override lladdr gw`

func ndRows() []row {
	rows := []row{
		one("gateway", "from_pod linka", `eth a > solicited:gw | ip6 a > solicited:gw ttl 255 | nd solicit gw from a`,
			"REPLY_ND", advert),
		one("gateway, of the other pod", "from_pod linkb",
			`eth b > solicited:gw | ip6 b > solicited:gw ttl 255 | nd solicit gw from b`,
			"REPLY_ND", `eth gwb > b | ip6 gw > b ttl 255 | nd advert gw router solicited override lladdr gwb`),
		one("is it still there", "from_pod linka", `eth a > gw | ip6 a > gw ttl 255 | nd solicit gw`, "REPLY_ND",
			advert),
		one("with a nonce first", "from_pod linka",
			`eth a > solicited:gw | ip6 a > solicited:gw ttl 255 | nd solicit gw opts 0e01010203040506 from a`,
			"REPLY_ND", advert),
		one("with a traffic class and flow", "from_pod linka",
			`eth a > solicited:gw | ip6 a > solicited:gw ttl 255 tos 0xc0 flow 7 | nd solicit gw from a`, "REPLY_ND",
			advert),
		one("by a link-local address", "from_pod linka",
			`eth a > solicited:gw | ip6 fe80::a > solicited:gw ttl 255 | nd solicit gw from a`,
			"REPLY_ND", `eth gw > a | ip6 gw > fe80::a ttl 255 | nd advert gw router solicited override lladdr gw`),
		// A solicitation behind another header is no neighbour's: it is forwarded with a hop limit that no host accepts
		// it with.
		one("behind an extension header", "from_pod linka",
			`eth a > gw | ip6 a > b ttl 255 | hbh | nd solicit b from a`,
			"FORWARD_POD", `eth gwb > b | ip6 a > b ttl 254 | hbh | nd solicit b from a`),
	}
	for i := range rows {
		rows[i] = only6(rows[i])
	}
	return rows
}

func ndRefusedRows() []row {
	rows := []row{
		one("another pod", "from_pod linka", `eth a > solicited:b | ip6 a > solicited:b ttl 255 | nd solicit b from a`,
			"DROP_ND_TARGET", "="),
		one("is the own address free", "from_pod linka",
			`eth a > solicited:a | ip6 none > solicited:a ttl 255 | nd solicit a`, "DROP_ND_TARGET", "="),
		one("is the gateway's address free", "from_pod linka",
			`eth a > solicited:gw | ip6 none > solicited:gw ttl 255 | nd solicit gw`, "DROP_SPOOFED_ND", "="),
		one("spoofed address", "from_pod linka",
			`eth a > solicited:gw | ip6 b > solicited:gw ttl 255 | nd solicit gw from a`, "DROP_SPOOFED_ND", "="),
		one("spoofed option", "from_pod linka",
			`eth a > solicited:gw | ip6 a > solicited:gw ttl 255 | nd solicit gw from b`, "DROP_SPOOFED_ND", "="),
		one("spoofed MAC of the frame", "from_pod linka",
			`eth b > solicited:gw | ip6 a > solicited:gw ttl 255 | nd solicit gw`, "DROP_SPOOFED_MAC", "="),
		one("from afar", "from_pod linka", `eth a > gw | ip6 a > gw ttl 254 | nd solicit gw from a`,
			"DROP_SPOOFED_ND", "="),
		one("advertisement", "from_pod linka",
			`eth a > all-nodes | ip6 a > all-nodes ttl 255 | nd advert a override lladdr a`, "DROP_SPOOFED_ND", "="),
		one("advertisement of the gateway to a pod", "from_pod linka",
			`eth a > gw | ip6 a > b ttl 255 | nd advert gw router override lladdr a`, "DROP_SPOOFED_ND", "="),
		one("router solicitation", "from_pod linka",
			`eth a > all-routers | ip6 fe80::a > all-routers ttl 255 | nd router-solicit from a`, "DROP_ND_TYPE", "="),
		one("router advertisement", "from_pod linka",
			`eth a > all-nodes | ip6 fe80::a > all-nodes ttl 255 | nd router-advert lladdr a`, "DROP_ND_TYPE", "="),
		one("redirect", "from_pod linka", `eth a > gw | ip6 a > b ttl 255 | nd redirect a for world lladdr a`,
			"DROP_ND_TYPE", "="),
		one("truncated in its head", "from_pod linka", `eth a > gw | ip6 a > gw ttl 255 | nd solicit gw truncate 57`,
			"DROP_TRUNCATED", "="),
		one("truncated in its target", "from_pod linka", `eth a > gw | ip6 a > gw ttl 255 | nd solicit gw truncate 77`,
			"DROP_TRUNCATED", "="),
		one("link of no pod", "from_pod other0",
			`eth a > solicited:gw | ip6 a > solicited:gw ttl 255 | nd solicit gw from a`, "DROP_NO_ENDPOINT", "="),
	}
	for i := range rows {
		rows[i] = only6(rows[i])
	}
	return rows
}

// ndHiddenRows have neighbour discovery behind extension headers, which the host's stack would accept, and what must
// still reach the host. The second packet of each kind finds the decision that the echo request has cached.
func ndHiddenRows() []row {
	const hidden = `nd advert a override lladdr b`
	echo := func(header string) step {
		return step{at: "from_pod linka", in: `eth a > gw | ip6 a > gw ttl 255 | ` + header + ` | icmp echo id 7`,
			want: "FORWARD_STACK", out: "="}
	}
	drop := func(layers, want string) step {
		return step{at: "from_pod linka", in: `eth a > gw | ip6 a > gw ttl 255 | ` + layers, want: want, out: "="}
	}
	rows := []row{
		{name: "hidden in fragments", steps: []step{
			drop(`frag 7 mf | `+hidden, "DROP_ND_TYPE"), drop(`frag 7 off 32 | len 8`, "DROP_ND_TYPE"),
			echo("frag 8 mf"), drop(`frag 9 mf | dstopts | `+hidden, "DROP_ND_TYPE"),
			drop(`frag 9 off 40 | len 8`, "DROP_ND_TYPE"),
		}},
		{name: "hidden behind too many headers", steps: []step{
			echo("dstopts"),
			drop(`hbh | dstopts | dstopts | dstopts | dstopts | dstopts | dstopts | `+hidden, "DROP_EXTENSION_HEADERS"),
		}},
	}
	for _, header := range []string{"dstopts", "hbh", "routing body 0000", "frag 7", "hbh | dstopts | frag 7"} {
		rows = append(rows, row{name: "hidden behind " + header, steps: []step{
			drop(header+" | "+hidden, "DROP_ND_TYPE"), echo(header), drop(header+" | "+hidden, "DROP_ND_TYPE"),
			drop(header+` | nd redirect a for world lladdr a`, "DROP_ND_TYPE"),
			drop(header+` | nd router-advert lladdr a`, "DROP_ND_TYPE"),
		}})
	}
	for i := range rows {
		rows[i] = only6(rows[i])
	}
	return rows
}
