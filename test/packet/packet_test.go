package packet

import (
	"bytes"
	"net"
	"net/netip"
	"strings"
	"testing"
)

func testNames() Names {
	name := func(n byte) Name {
		return Name{
			MAC: net.HardwareAddr{2, 0, 0, 0, 0, n},
			IP4: netip.AddrFrom4([4]byte{10, 0, 1, n}),
			IP6: netip.AddrFrom16([16]byte{0: 0xfd, 15: n}),
		}
	}
	return Names{"pod1": name(5), "pod2": name(6), "gw": name(1), "world": {
		IP4: netip.MustParseAddr("198.51.100.7"), IP6: netip.MustParseAddr("2001:db8::7"),
	}}
}

// row is a packet. canonical is what Format makes of it for IPv4 and IPv6, ""
// where the row is not for that family.
type row struct{ name, text, canonical4, canonical6 string }

// rows are packets of every layer.
func rows() []row { return append(rowsOfBoth(), rowsOfOne()...) }

func rowsOfBoth() []row {
	return append(quotedRows(), []row{
		{"tcp", `eth pod1 > gw | ip pod1 > world ttl 64 | tcp 40000 > 80 S seq 1 ack 0 win 65535 | "hello"`,
			`eth pod1 > gw | ip4 pod1 > world | tcp 40000 > 80 S seq 1 | "hello"`,
			`eth pod1 > gw | ip6 pod1 > world | tcp 40000 > 80 S seq 1 | "hello"`},
		{"tcp options",
			`eth pod1 > gw | ip pod1 > pod2 ttl 3 tos 0xb8 df | tcp 1 > 2 AS mss 1400 sackok ts 1 2 nop wscale 7`,
			`eth pod1 > gw | ip4 pod1 > pod2 ttl 3 tos 0xb8 df | tcp 1 > 2 SA mss 1400 sackok ts 1 2 nop wscale 7`,
			`eth pod1 > gw | ip6 pod1 > pod2 ttl 3 tos 0xb8 | tcp 1 > 2 SA mss 1400 sackok ts 1 2 nop wscale 7`},
		{"udp", `eth pod1 > gw | ip pod1 > pod2 | udp 1024 > 53 | len 100`,
			`eth pod1 > gw | ip4 pod1 > pod2 | udp 1024 > 53 | len 100`,
			`eth pod1 > gw | ip6 pod1 > pod2 | udp 1024 > 53 | len 100`},
		{"udp overrides", `eth pod1 > gw | ip pod1 > pod2 badsum ihl 4 | udp 1 > 2 len 3 badsum | hex:00ff`,
			`eth pod1 > gw | ip4 pod1 > pod2 ihl 4 badsum proto udp | hex:000100020003bd8100ff`,
			`eth pod1 > gw | ip6 pod1 > pod2 | udp 1 > 2 len 3 badsum | hex:00ff`},
		{"sctp", `eth pod1 > gw | ip pod1 > pod2 | sctp 1 > 2 vtag 7 init | "odd"`,
			`eth pod1 > gw | ip4 pod1 > pod2 | sctp 1 > 2 vtag 0x7 init | "odd"`,
			`eth pod1 > gw | ip6 pod1 > pod2 | sctp 1 > 2 vtag 0x7 init | "odd"`},
		{"echo", `eth pod1 > gw | ip pod1 > gw | icmp echo id 7 seq 1 | len 56`,
			`eth pod1 > gw | ip4 pod1 > gw | icmp echo id 7 seq 1 | len 56`,
			`eth pod1 > gw | ip6 pod1 > gw | icmp echo id 7 seq 1 | len 56`},
	}...)
}

func quotedRows() []row {
	return []row{
		{"quoted", `eth gw > pod1 | ip gw > pod1 | icmp too-big mtu 1400 | ip pod1 > world ttl 63 | udp 40000 ` +
			`> 53 | "query"`,
			`eth gw > pod1 | ip4 gw > pod1 | icmp too-big mtu 1400 | ip4 pod1 > world ttl 63 | ` +
				`udp 40000 > 53 | "query"`,
			`eth gw > pod1 | ip6 gw > pod1 | icmp too-big mtu 1400 | ip6 pod1 > world ttl 63 | ` +
				`udp 40000 > 53 | "query"`},
		{"quoted and cut", `eth gw > pod1 | ip gw > pod1 | icmp unreachable port quote +8 | ip pod1 > world | tcp ` +
			`40000 > 80 S seq 5 | len 500`,
			`eth gw > pod1 | ip4 gw > pod1 | icmp unreachable port | ip4 pod1 > world tot-len 540 | tcp 40000 > 80 ` +
				`seq 5 cut 8`,
			`eth gw > pod1 | ip6 gw > pod1 | icmp unreachable port | ip6 pod1 > world payload-len 520 | tcp 40000 > ` +
				`80 seq 5 cut 8`},
		{"fragment, first", `eth pod1 > gw | ip pod1 > pod2 frag 7 mf | udp 1 > 2 len 3000 sum 0x1234 | len 16`,
			`eth pod1 > gw | ip4 pod1 > pod2 id 7 mf | udp 1 > 2 len 3000 sum 0x1234 | len 16`,
			`eth pod1 > gw | ip6 pod1 > pod2 | frag 7 mf | udp 1 > 2 len 3000 sum 0x1234 | len 16`},
		{"fragment, last", `eth pod1 > gw | ip pod1 > pod2 frag 7 off 1480 proto udp | "tail"`,
			`eth pod1 > gw | ip4 pod1 > pod2 id 7 off 1480 proto udp | "tail"`,
			`eth pod1 > gw | ip6 pod1 > pod2 | frag 7 off 1480 proto udp | "tail"`},
		{"vlan and padding", `eth pod1 > gw vlan 5 pcp 3 | ip pod1 > pod2 | udp 1 > 2 | pad 12`,
			`eth pod1 > gw | vlan 5 pcp 3 | ip4 pod1 > pod2 | udp 1 > 2 | pad 12`,
			`eth pod1 > gw | vlan 5 pcp 3 | ip6 pod1 > pod2 | udp 1 > 2 | pad 12`},
		{"vxlan", `eth gw > pod2 | ip gw > world | udp 5000 > 8472 nosum | vxlan vni 3 | eth pod1 > gw | ip pod1 > ` +
			`pod2 | icmp time-exceeded | ip pod2 > pod1 | icmp echo id 1`,
			`eth gw > pod2 | ip4 gw > world | udp 5000 > 8472 nosum | vxlan vni 3 | eth pod1 > gw | ip4 pod1 > pod2 ` +
				`| icmp time-exceeded | ip4 pod2 > pod1 | icmp echo id 1`,
			`eth gw > pod2 | ip6 gw > world | udp 5000 > 8472 nosum | vxlan vni 3 | eth pod1 > gw | ip6 pod1 > pod2 ` +
				`| icmp time-exceeded | ip6 pod2 > pod1 | icmp echo id 1`},
		{"geneve, four in six", `eth gw > pod2 | ip gw > world | udp 5000 > 6081 | geneve vni 3 opts 01020304 crit | ` +
			`ip4 pod1 > pod2 | ip6 pod1 > pod2 | "x"`,
			`eth gw > pod2 | ip4 gw > world | udp 5000 > 6081 | geneve vni 3 opts 01020304 crit | ip4 pod1 > pod2 | ` +
				`ip6 pod1 > pod2 | "x"`,
			`eth gw > pod2 | ip6 gw > world | udp 5000 > 6081 | geneve vni 3 opts 01020304 crit | ip4 pod1 > pod2 | ` +
				`ip6 pod1 > pod2 | "x"`},
		{"ipsec", `eth pod1 > gw | ip pod1 > pod2 | ah spi 1 seq 2 icv 00112233 | esp spi 3 seq 4 | "secret"`,
			`eth pod1 > gw | ip4 pod1 > pod2 | ah spi 0x1 seq 2 icv 00112233 | esp spi 0x3 seq 4 | "secret"`,
			`eth pod1 > gw | ip6 pod1 > pod2 | ah spi 0x1 seq 2 icv 00112233 | esp spi 0x3 seq 4 | "secret"`},
		{"truncated", `eth pod1 > gw | ip pod1 > pod2 | udp 1 > 2 | len 100 truncate 20`,
			`eth pod1 > gw type 0x800 | hex:450000800000`,
			`eth pod1 > gw type 0x86dd | hex:60000000006c`},
	}
}

func rowsOfOne() []row {
	return []row{
		{"arp request", `eth pod1 > broadcast | arp who-has gw tell pod1`,
			`eth pod1 > broadcast | arp who-has gw tell pod1`, ""},
		{"arp spoofed", `eth pod1 > broadcast | arp who-has gw tell pod2 sha pod1`,
			`eth pod1 > broadcast | arp who-has gw tell pod2 sha pod1`, ""},
		{"arp reply", `eth gw > pod1 | arp gw is-at gw to pod1`, `eth gw > pod1 | arp gw is-at gw to pod1`, ""},
		{"arp announcement", `eth gw > pod1 | arp 10.9.9.9 is-at pod2`,
			`eth gw > pod1 | arp 10.9.9.9 is-at pod2 to none`, ""},
		{"ip4 options", `eth pod1 > gw | ip4 pod1 > pod2 opts 44040500 | igmp report 224.0.0.251`,
			`eth pod1 > gw | ip4 pod1 > pod2 opts 44040500 | igmp report 224.0.0.251`, ""},
		{"redirect", `eth gw > pod1 | ip4 gw > pod1 | icmp redirect host gateway pod2 | ip4 pod1 > world | udp 1 > 2`,
			`eth gw > pod1 | ip4 gw > pod1 | icmp redirect host gateway pod2 | ip4 pod1 > world | udp 1 > 2`, ""},
		{"nd solicit", `eth pod1 > solicited:gw | ip6 pod1 > solicited:gw ttl 255 | nd solicit gw from pod1`, "",
			`eth pod1 > solicited:gw | ip6 pod1 > solicited:gw ttl 255 | nd solicit gw lladdr pod1`},
		{"nd advert", `eth gw > pod1 | ip6 gw > pod1 ttl 255 | nd advert gw router solicited override lladdr gw`, "",
			`eth gw > pod1 | ip6 gw > pod1 ttl 255 | nd advert gw router solicited override lladdr gw`},
		{"nd router", `eth pod1 > all-routers | ip6 pod1 > all-routers ttl 255 | nd router-solicit lladdr pod1`, "",
			`eth pod1 > all-routers | ip6 pod1 > all-routers ttl 255 | nd router-solicit lladdr pod1`},
		{"mld", `eth pod1 > all-nodes | ip6 pod1 > all-nodes ttl 1 | hbh body 050200000100 | mld query none delay 100`,
			"",
			`eth pod1 > all-nodes | ip6 pod1 > all-nodes ttl 1 | hbh body 050200000100 | mld query none delay 100`},
		{"extension headers", `eth pod1 > gw | ip6 pod1 > pod2 flow 0xabcde | hbh | dstopts | routing body 0400 | ` +
			`frag 1 | udp 1 > 2`, "",
			`eth pod1 > gw | ip6 pod1 > pod2 flow 0xabcde | hbh body 000000000000 | dstopts body 000000000000 | ` +
				`routing body 040000000000 | frag 1 | udp 1 > 2`},
		{"payload alone", `hex:0102`, `hex:0102`, `hex:0102`},
	}
}

func TestFormatIsCanonical(t *testing.T) {
	for _, r := range rows() {
		for f, want := range map[Family]string{IPv4: r.canonical4, IPv6: r.canonical6} {
			if want == "" {
				continue
			}
			t.Run(r.name+" "+f.String(), func(t *testing.T) {
				b, err := Parse(r.text, f, testNames())
				if err != nil {
					t.Fatal(err)
				}
				if got := Format(b, testNames()); got != want {
					t.Errorf("Format of %q\n got %s\nwant %s", r.text, got, want)
				}
				back, err := Parse(want, IPv4, testNames())
				if err != nil || !bytes.Equal(back, b) {
					t.Errorf("Parse of %q\n got %x %v\nwant %x", want, back, err, b)
				}
			})
		}
	}
}

func TestParseErrorNamesTheWord(t *testing.T) {
	for text, want := range map[string]string{
		``:                                     `empty layer`,
		`eth pod1 > gw | | udp 1 > 2`:          `empty layer`,
		`ip pod1 > gw`:                         `begins with eth`,
		`eth pod1 gw`:                          `"gw" (column 10): ">" is missing`,
		`eth pod1 > pod9`:                      `"pod9" (column 12): neither a name nor a MAC`,
		`eth pod1 > world`:                     `"world" (column 12): has no MAC`,
		`eth pod1 > gw | ip pod1 > fd00::1`:    `"fd00::1" (column 27): neither a name nor an ip4 address`,
		`eth pod1 > gw | ip pod1 > gw tll 3`:   `layer 2: "tll" (column 30): ip has no such word`,
		`eth pod1 > gw | ip pod1 > gw ttl 256`: `"256" (column 34): not a number below 256`,
		`eth pod1 > gw | ip6 pod1 > gw df`:     `ip6 has no such word`,
		`eth pod1 > gw | tcp 1 > 2 S seq`:      `after "seq": a number is missing`,
		`eth pod1 > gw | icmp unreachable up`:  `icmp has no such message`,
		`eth pod1 > gw | icmp6 redirect host`:  `does not exist`,
		`eth pod1 > gw | "hello`:               `string without an end`,
		`eth pod1 > gw | hex:0`:                `even number of hexadecimal digits`,
		`eth pod1 > gw | hello`:                `"hello" (column 17): no such layer`,
		`eth pod1 > gw | pad 3 | "x"`:          `only the last layer can be padding`,
		`eth pod1 > gw | "x" "y"`:              `"\"y\"" (column 21): unexpected`,
	} {
		_, err := Parse(text, IPv4, testNames())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q) = %v, want an error with %s", text, err, want)
		}
	}
}

func TestBothFamiliesPassOverWordsOfOne(t *testing.T) {
	with, err := Parse(`eth pod1 > gw | ip pod1 > pod2 df id 7 | udp 1 > 2`, IPv6, testNames())
	if err != nil {
		t.Fatal(err)
	}
	without, err := Parse(`eth pod1 > gw | ip pod1 > pod2 | udp 1 > 2`, IPv6, testNames())
	if err != nil || !bytes.Equal(with, without) {
		t.Errorf("df and id changed an IPv6 packet: %x %x %v", with, without, err)
	}
}

func TestIPWithoutLinkLayer(t *testing.T) {
	const text = `ip6 pod1 > pod2 ttl 9 | udp 1 > 2 | "x"`
	b, err := ParseIP(text, IPv4, testNames())
	if err != nil {
		t.Fatal(err)
	}
	if got := FormatIP(b, testNames()); got != text {
		t.Errorf("FormatIP = %s, want %s", got, text)
	}
}

func FuzzParse(f *testing.F) {
	for _, r := range rows() {
		f.Add(r.text, true)
		f.Add(r.text, false)
	}
	f.Fuzz(func(t *testing.T, text string, six bool) {
		family := IPv4
		if six {
			family = IPv6
		}
		b, err := Parse(text, family, testNames())
		if err != nil {
			return
		}
		roundTrip(t, b)
	})
}

func FuzzFormat(f *testing.F) {
	for _, r := range rows() {
		for _, family := range []Family{IPv4, IPv6} {
			if b, err := Parse(r.text, family, testNames()); err == nil {
				f.Add(b)
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) <= maxBytes {
			roundTrip(t, b)
		}
		FormatIP(b, nil)
	})
}

func roundTrip(t *testing.T, b []byte) {
	t.Helper()
	text := Format(b, testNames())
	back, err := Parse(text, IPv4, testNames())
	if err != nil || !bytes.Equal(back, b) {
		t.Fatalf("Parse(%q) = %x, %v; want %x", text, back, err, b)
	}
	if d := Diff(b, back, testNames()); d != "" {
		t.Fatalf("Diff of a packet and itself: %s", d)
	}
}
