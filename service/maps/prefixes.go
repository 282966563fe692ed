package maps

import (
	"net/netip"
	"slices"
)

// allowed are the prefixes of mapped addresses from which clients may come: the
// ranges, or with deny all that is outside of them. Ranges of one family say
// nothing about the other: ::/0 is no IPv4 client. Without ranges nobody may.
//
// The datapath looks for the longest prefix that it finds, and what it finds is
// allowed, so that a hole in a prefix is that prefix in parts: 128 for one
// address, at most.
func allowedPrefixes(ranges []netip.Prefix, deny bool) []netip.Prefix {
	if len(ranges) == 0 {
		return nil
	}
	everyone, ipv4 := mapped(netip.PrefixFrom(netip.IPv6Unspecified(), 0)), mapped(netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	said := map[netip.Prefix]bool{}
	holes := deny
	if deny {
		said[everyone] = true
	}
	list := make([]netip.Prefix, len(ranges))
	for i, r := range ranges {
		list[i] = mapped(r)
		if list[i].Bits() < ipv4.Bits() && list[i].Overlaps(ipv4) {
			said[ipv4], holes = deny, true
		}
	}
	if !holes {
		return list
	}
	for _, m := range list {
		said[m] = !deny
	}
	return parts(everyone, false, said)
}

// mapped is the prefix of the addresses as the datapath has them.
func mapped(p netip.Prefix) netip.Prefix {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return netip.PrefixFrom(netip.AddrFrom16(p.Masked().Addr().As16()), bits)
}

// parts are the parts of p for which the longest prefix that is said says yes;
// on is for what none says anything of.
func parts(p netip.Prefix, on bool, said map[netip.Prefix]bool) []netip.Prefix {
	if yes, ok := said[p]; ok {
		on = yes
	}
	below := map[netip.Prefix]bool{}
	for q, yes := range said {
		if q.Bits() > p.Bits() && p.Overlaps(q) {
			below[q] = yes
		}
	}
	switch {
	case len(below) == 0 && on:
		return []netip.Prefix{p}
	case len(below) == 0:
		return nil
	}
	bits := p.Addr().As16()
	bits[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	halves := []netip.Prefix{netip.PrefixFrom(p.Addr(), p.Bits()+1), netip.PrefixFrom(netip.AddrFrom16(bits), p.Bits()+1)}
	out := slices.Concat(parts(halves[0], on, below), parts(halves[1], on, below))
	if slices.Equal(out, halves) {
		return []netip.Prefix{p}
	}
	return out
}
