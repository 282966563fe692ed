package maps

import (
	"net/netip"
	"slices"
)

// allowedPrefixes are the prefixes of IPv4-mapped addresses whose clients are allowed: the ranges, or with deny
// everything outside of them. Ranges of one family do not apply to the other: ::/0 contains no IPv4 client. Without
// ranges no client is allowed.
//
// The datapath looks up the longest matching prefix, and a match means that the client is allowed. A prefix with a hole
// is therefore divided into several, at most 128 for one address.
func allowedPrefixes(ranges []netip.Prefix, deny bool) []netip.Prefix {
	if len(ranges) == 0 {
		return nil
	}
	all := mapped(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	ipv4 := mapped(netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	rules := map[netip.Prefix]bool{}
	holes := deny
	if deny {
		rules[all] = true
	}
	list := make([]netip.Prefix, len(ranges))
	for i, r := range ranges {
		list[i] = mapped(r)
		if list[i].Bits() < ipv4.Bits() && list[i].Overlaps(ipv4) {
			rules[ipv4], holes = deny, true
		}
	}
	if !holes {
		return list
	}
	for _, m := range list {
		rules[m] = !deny
	}
	return parts(all, false, rules)
}

// mapped is a prefix of IPv4-mapped addresses, as the datapath has them.
func mapped(p netip.Prefix) netip.Prefix {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return netip.PrefixFrom(netip.AddrFrom16(p.Masked().Addr().As16()), bits)
}

// parts are the parts of p that are allowed by the longest matching prefix of rules; allowed applies where there is
// none.
func parts(p netip.Prefix, allowed bool, rules map[netip.Prefix]bool) []netip.Prefix {
	if yes, ok := rules[p]; ok {
		allowed = yes
	}
	below := map[netip.Prefix]bool{}
	for q, yes := range rules {
		if q.Bits() > p.Bits() && p.Overlaps(q) {
			below[q] = yes
		}
	}
	switch {
	case len(below) == 0 && allowed:
		return []netip.Prefix{p}
	case len(below) == 0:
		return nil
	}
	bits := p.Addr().As16()
	bits[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	halves := []netip.Prefix{
		netip.PrefixFrom(p.Addr(), p.Bits()+1), netip.PrefixFrom(netip.AddrFrom16(bits), p.Bits()+1),
	}
	out := slices.Concat(parts(halves[0], allowed, below), parts(halves[1], allowed, below))
	if slices.Equal(out, halves) {
		return []netip.Prefix{p}
	}
	return out
}
