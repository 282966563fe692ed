package oracle

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"myelin/test/packet"
)

// frame makes a frame from text.
func frame(t testing.TB, f int, text string) []byte {
	t.Helper()
	b, err := packet.Parse(text, packet.Family(f), packet.Names{
		"a": {MAC: []byte{2, 0, 0, 0, 0, 1}, IP4: netip.MustParseAddr("10.0.1.2"), IP6: netip.MustParseAddr("fd00::1")},
		"b": {MAC: []byte{2, 0, 0, 0, 0, 2}, IP4: netip.MustParseAddr("10.0.2.2"), IP6: netip.MustParseAddr("fd00::2")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestReadFrame(t *testing.T) {
	headers := "eth a > b | ip6 a > b | hbh body 010400000000 | ah spi 1 seq 1 | dstopts body 010400000000 " +
		"| udp 5 > 6 | "
	tag := "hex:" + hex.EncodeToString(tagOf(7))
	for name, row := range map[string]struct {
		text         string
		family       int
		proto        uint8
		sport, dport uint16
		whole        bool
		tagged       bool
	}{
		"udp":               {"eth a > b | ip a > b | udp 5 > 6 | " + tag, 0, UDP, 5, 6, true, true},
		"tcp":               {"eth a > b | ip a > b | tcp 5 > 6 S | " + tag, 0, TCP, 5, 6, true, true},
		"echo":              {"eth a > b | ip a > b | icmp echo id 9 seq 1 | " + tag, 4, ICMP, 9, 8, true, true},
		"tags":              {"eth a > b | qinq 0 | vlan 0 | ip a > b | udp 5 > 6 | " + tag, 0, UDP, 5, 6, true, true},
		"extension headers": {headers + tag, 6, UDP, 5, 6, true, true},
		"options":           {"eth a > b | ip4 a > b opts 01010101 | udp 5 > 6 | " + tag, 4, UDP, 5, 6, true, true},
		"atomic fragment":   {"eth a > b | ip6 a > b | frag 3 | udp 5 > 6 | " + tag, 6, UDP, 5, 6, true, true},
		"first fragment":    {"eth a > b | ip6 a > b | frag 3 mf | udp 5 > 6 | " + tag, 6, UDP, 0, 0, false, true},
		"later fragment":    {"eth a > b | ip4 a > b id 3 off 8 proto udp | " + tag, 4, UDP, 0, 0, false, true},
		"padding":           {"eth a > b | ip a > b proto 17 | pad " + tag, 4, UDP, 0, 0, false, false},
		"cut":               {"eth a > b | ip a > b proto 6 | hex:00050006000000", 0, TCP, 0, 0, false, false},
		"other protocol":    {"eth a > b | ip a > b proto 99 | " + tag, 0, 99, 0, 0, true, true},
	} {
		for _, f := range []int{4, 6} {
			if row.family != 0 && row.family != f {
				continue
			}
			s, ok := ReadFrame(frame(t, f, row.text))
			if !ok || s.Proto != row.proto || s.SPort != row.sport || s.DPort != row.dport || s.Whole != row.whole ||
				s.Tagged != row.tagged || s.Tagged && s.Tag != 7 {
				t.Errorf("%s over IPv%d: %+v %t", name, f, s, ok)
			}
		}
	}
}

func TestReadError(t *testing.T) {
	for _, f := range []int{4, 6} {
		text := "eth b > a | ip b > a | icmp unreachable port quote +8 | ip a > b | udp 5 > 6 | len 40"
		s, _ := ReadFrame(frame(t, f, text))
		if !s.Error || s.Quoted.SPort != 5 || s.Quoted.DPort != 6 || s.Quoted.Src != s.Dst || s.Quoted.Dst != s.Src {
			t.Errorf("IPv%d: %+v", f, s)
		}
	}
}

func TestReverse(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.1.2"), netip.MustParseAddr("10.0.2.2")
	for flow, want := range map[Flow]Flow{
		{a, b, TCP, 5, 6}:       {b, a, TCP, 6, 5},
		{a, b, ICMP, 9, 8}:      {b, a, ICMP, 9, 0},
		{a, b, ICMP, 9, 14}:     {b, a, ICMP, 9, 13},
		{a, b, ICMPv6, 9, 129}:  {b, a, ICMPv6, 9, 128},
		{a, b, ICMPv6, 0, 0xff}: {b, a, ICMPv6, 0, 0xff},
	} {
		if got := flow.reverse(); got != want {
			t.Errorf("the reverse of %s is %s, want %s", flow, got, want)
		}
	}
}

// FuzzReadFrame reads any bytes.
func FuzzReadFrame(f *testing.F) {
	f.Add(frame(f, 6, "eth a > b | ip6 a > b | hbh body 010400000000 | frag 3 mf | udp 5 > 6"))
	f.Add(frame(f, 4, "eth b > a | ip b > a | icmp unreachable port quote +8 | ip a > b | udp 5 > 6 | len 40"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, ok := ReadFrame(b); ok && (s.Fragment && s.Whole || !s.Src.IsValid()) {
			t.Errorf("%+v", s)
		}
	})
}
