package packet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// ip6 is an IPv6 header, RFC 8200 section 3.
type ip6 struct{ ipWords }

const ip6Len = 40

func (*ip6) etherType() uint16 { return typeIP6 }
func (*ip6) proto() uint8      { return protoIP6 }
func (h *ip6) pseudo() pseudo  { return pseudo{h.src, h.dst} }

func (h *ip6) encode(inner []byte, p place) ([]byte, error) {
	payLen := len(inner)
	switch {
	case h.payLen.set:
		payLen = int(h.payLen.value)
	case h.totLen.set:
		payLen = int(h.totLen.value) - ip6Len
	}
	if payLen < 0 || payLen > 0xffff {
		return nil, fmt.Errorf("ip6: payload length %d does not fit in 16 bits", payLen)
	}
	proto := h.ipWords.proto
	if h.frag {
		proto = override{} // it is the fragment header that names the payload
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(h.version.or(6))<<28|uint32(h.tos)<<20|h.flow)
	b = binary.BigEndian.AppendUint16(b, uint16(payLen))
	b = append(b, protoOf(p.next, proto), h.ttl)
	b = append(append(b, h.src.AsSlice()...), h.dst.AsSlice()...)
	return append(b, inner...), nil
}

func (d *decoder) ip6(b []byte, s scope) {
	if len(b) < ip6Len {
		d.raw(b, s)
		return
	}
	l := d.start("ip6")
	l.etherType, l.proto = typeIP6, protoIP6
	src, dst := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	s.ip = pseudo{src, dst}
	first := binary.BigEndian.Uint32(b)
	l.pair(d.names.addr(src), d.names.addr(dst))
	l.num("ttl", int(b[7]), defaultTTL)
	l.hexNum("tos", first>>20&0xff, 0)
	l.hexNum("flow", first&0xfffff, 0)
	l.num("ver", int(first>>28), 6)

	payLen := int(binary.BigEndian.Uint16(b[4:]))
	body, tail := b[ip6Len:], []byte(nil)
	if payLen < len(body) && s.hasEth {
		body, tail = body[:payLen], body[payLen:]
	}
	s.hasEth = false // bytes after a packet within a packet aren't padding
	l.num("payload-len", payLen, len(body))
	s.partial = s.partial || payLen > len(body)
	d.next(l, b[6], body, s)
	d.trailer(tail)
}
