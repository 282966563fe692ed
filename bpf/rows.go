package bpf

import (
	"net"
	"net/netip"
)

// Addr returns the datapath's form of an address: IPv4 mapped into IPv6, zero for an invalid one.
func Addr(a netip.Addr) DatapathAddr {
	if !a.IsValid() {
		return DatapathAddr{}
	}
	return DatapathAddr{B: a.As16()}
}

// Netip is the inverse of Addr.
func (a DatapathAddr) Netip() netip.Addr {
	if a.B == [16]byte{} {
		return netip.Addr{}
	}
	return netip.AddrFrom16(a.B).Unmap()
}

// Prefix returns the key of a prefix; its length counts the bits of the mapped address.
func Prefix(p netip.Prefix) DatapathPrefixKey {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	key := DatapathPrefixKey{Length: uint32(bits)}
	b := p.Masked().Addr().As16()
	for i := range key.Addr {
		key.Addr[i] = word(b[4*i:])
	}
	return key
}

// Netip is the inverse of Prefix.
func (k DatapathPrefixKey) Netip() netip.Prefix {
	var b [16]byte
	for i, w := range k.Addr {
		putWord(b[4*i:], w)
	}
	a, bits := netip.AddrFrom16(b), int(k.Length)
	if a.Is4In6() && bits >= 96 {
		a, bits = a.Unmap(), bits-96
	}
	return netip.PrefixFrom(a, bits)
}

// MAC returns the datapath's form of a MAC address, zero if it is not 6 bytes long.
func MAC(m net.HardwareAddr) (d DatapathMac) {
	if len(m) == len(d.B) {
		copy(d.B[:], m)
	}
	return d
}
