package packet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// ip4 is an IPv4 header, RFC 791.
type ip4 struct{ ipWords }

const (
	ip4Len = 20

	flagMF  = 1 << 13
	flagDF  = 1 << 14
	flagRsv = 1 << 15
)

func (*ip4) etherType() uint16 { return typeIP4 }
func (*ip4) proto() uint8      { return protoIP4 }
func (h *ip4) pseudo() pseudo  { return pseudo{h.src, h.dst} }

func (h *ip4) encode(inner []byte, p place) ([]byte, error) {
	opts := h.opts
	for len(opts)%4 != 0 {
		opts = append(opts[:len(opts):len(opts)], 0)
	}
	if len(opts) > 40 {
		return nil, fmt.Errorf("ip4: %d bytes of options, at most 40 fit", len(opts))
	}
	hdrLen := ip4Len + len(opts)
	total := hdrLen + len(inner)
	switch {
	case h.totLen.set:
		total = int(h.totLen.value)
	case h.payLen.set:
		total = int(h.payLen.value) + hdrLen
	}
	if total > 0xffff {
		return nil, fmt.Errorf("ip4: total length %d needs more than 16 bits", total)
	}
	frag := uint16(h.off / 8)
	if h.mf {
		frag |= flagMF
	}
	if h.df {
		frag |= flagDF
	}
	if h.rsv {
		frag |= flagRsv
	}
	b := []byte{byte(h.version.or(4)<<4 | h.ihl.or(hdrLen/4)), h.tos}
	b = binary.BigEndian.AppendUint16(b, uint16(total))
	b = binary.BigEndian.AppendUint16(b, uint16(h.id))
	b = binary.BigEndian.AppendUint16(b, frag)
	b = append(b, h.ttl, protoOf(p.next, h.ipWords.proto), 0, 0)
	b = append(append(b, h.src.AsSlice()...), h.dst.AsSlice()...)
	b = append(b, opts...)
	binary.BigEndian.PutUint16(b[10:], h.sum.or16(checksum(b, 10)))
	return append(b, inner...), nil
}

func (d *decoder) ip4(b []byte, s scope) {
	if len(b) < ip4Len {
		d.raw(b, s)
		return
	}
	l := d.start("ip4")
	l.etherType, l.proto = typeIP4, protoIP4
	src, dst := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	s.ip = pseudo{src, dst}
	l.pair(d.names.addr(src), d.names.addr(dst))
	l.num("ttl", int(b[8]), defaultTTL)
	l.hexNum("tos", uint32(b[1]), 0)

	ihl := int(b[0] & 0xf)
	hdrLen := ihl * 4
	sane := hdrLen >= ip4Len && hdrLen <= len(b)
	if !sane {
		hdrLen = ip4Len
	}
	frag := binary.BigEndian.Uint16(b[6:])
	off := int(frag&0x1fff) * 8
	l.num("id", int(binary.BigEndian.Uint16(b[4:])), 0)
	l.num("off", off, 0)
	l.flag("mf", frag&flagMF != 0)
	l.flag("df", frag&flagDF != 0)
	l.flag("rsv", frag&flagRsv != 0)
	l.bytes("opts", b[ip4Len:hdrLen])
	l.num("ver", int(b[0]>>4), 4)
	l.num("ihl", ihl, hdrLen/4)
	l.checksum(binary.BigEndian.Uint16(b[10:]), checksum(b[:hdrLen], 10), scope{})

	total := int(binary.BigEndian.Uint16(b[2:]))
	body, tail := b[hdrLen:], []byte(nil)
	if sane && total >= hdrLen && total < len(b) && s.hasEth {
		body, tail = b[hdrLen:total], b[total:]
	}
	s.hasEth = false // bytes after a packet within a packet aren't padding
	l.num("tot-len", total, hdrLen+len(body))
	s.partial = s.partial || frag&flagMF != 0 || total > len(b)
	if off > 0 || !sane {
		d.opaque(l, b[9], body, s)
	} else {
		d.next(l, b[9], body, s)
	}
	d.trailer(tail)
}

// opaque is next for bytes that can't be decoded, such as those of a fragment
// that isn't the first.
func (d *decoder) opaque(l *layer, proto uint8, b []byte, s scope) {
	depth := d.depth
	d.depth = 0
	d.next(l, proto, b, s)
	d.depth = depth
}
