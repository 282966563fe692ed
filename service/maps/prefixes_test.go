package maps

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestAllowed asks of addresses at the edges of each range, and of others,
// whether the datapath would find them.
func TestAllowed(t *testing.T) {
	for _, tc := range []struct {
		ranges string
		rows   [2]int // that it takes to allow them, and to deny them
	}{
		{"", [2]int{0, 0}},
		{"192.0.2.0/24", [2]int{1, 120}},
		{"192.0.2.7/32", [2]int{1, 128}},
		{"10.0.0.0/8 10.1.0.0/16", [2]int{2, 104}}, // the one is in the other
		{"10.0.0.0/8 11.0.0.0/8", [2]int{2, 103}},
		{"0.0.0.0/0", [2]int{1, 96}},
		{"2001:db8::/32", [2]int{1, 32}},
		{"2001:db8::1/128 2001:db8::2/128", [2]int{2, 128}},
		{"::/0", [2]int{96, 1}},
		{"0.0.0.0/0 ::/0", [2]int{1, 0}},
		{"192.0.2.0/24 ::/1", [2]int{96, 0}},
		{"192.0.2.0/24 ::/0", [2]int{97, 24}},
	} {
		for i, deny := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/deny %v", tc.ranges, deny), func(t *testing.T) {
				var ranges []netip.Prefix
				try := []netip.Addr{netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("2002::1"),
					netip.MustParseAddr("::1"), netip.MustParseAddr("ffff::")}
				for text := range strings.FieldsSeq(tc.ranges) {
					p := netip.MustParsePrefix(text)
					ranges = append(ranges, p)
					try = append(try, p.Addr(), p.Addr().Prev(), lastOf(p), lastOf(p).Next())
				}
				got := allowedPrefixes(ranges, deny)
				if n := tc.rows[i]; n != 0 && len(got) != n || n == 0 && !deny && len(got) != 0 {
					t.Errorf("takes %d rows, want %d", len(got), n)
				}
				for _, a := range try {
					in := func(p netip.Prefix) bool { return p.Contains(a) }
					want := len(ranges) > 0 && slices.ContainsFunc(ranges, in) != deny
					found := slices.ContainsFunc(got, func(p netip.Prefix) bool {
						return p.Contains(netip.AddrFrom16(a.As16()))
					})
					if a.IsValid() && found != want {
						t.Errorf("%s is allowed: %v, want %v", a, found, want)
					}
				}
			})
		}
	}
}

func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
