package packet

import (
	"encoding/binary"
	"fmt"
)

// extension is a hop-by-hop, destination or routing header of IPv6, RFC 8200
// section 4. Its length is in units of 8 bytes without the first.
type extension struct {
	kind      uint8
	body      []byte // after next header and length
	length    override
	nextProto override
}

func (e *extension) proto() uint8 { return e.kind }

func (e *extension) encode(inner []byte, p place) ([]byte, error) {
	b := append([]byte{protoOf(p.next, e.nextProto), 0}, e.body...)
	for len(b)%8 != 0 {
		b = append(b, 0) // Pad1
	}
	if len(b) > 256*8 {
		return nil, fmt.Errorf("extension header of %d bytes, at most 2048 fit", len(b))
	}
	b[1] = byte(e.length.or(len(b)/8 - 1))
	return append(b, inner...), nil
}

// fragment is the fragment header of IPv6, RFC 8200 section 4.5.
type fragment struct {
	id        uint32
	off       uint16 // in bytes
	mf        bool
	nextProto override
}

func (*fragment) proto() uint8 { return protoFrag }

func (f *fragment) encode(inner []byte, p place) ([]byte, error) {
	off := f.off
	if f.mf {
		off |= 1
	}
	b := []byte{protoOf(p.next, f.nextProto), 0}
	b = binary.BigEndian.AppendUint16(b, off)
	b = binary.BigEndian.AppendUint32(b, f.id)
	return append(b, inner...), nil
}

// esp is an Encapsulating Security Payload, RFC 4303; what it hides is opaque.
type esp struct{ spi, seq uint32 }

func (*esp) proto() uint8 { return protoESP }

func (e *esp) encode(inner []byte, _ place) ([]byte, error) {
	b := binary.BigEndian.AppendUint32(nil, e.spi)
	b = binary.BigEndian.AppendUint32(b, e.seq)
	return append(b, inner...), nil
}

// ah is an Authentication Header, RFC 4302. Its length is in units of 4 bytes
// without the first two.
type ah struct {
	esp
	icv       []byte
	nextProto override
}

func (*ah) proto() uint8 { return protoAH }

func (a *ah) encode(inner []byte, p place) ([]byte, error) {
	if len(a.icv)%4 != 0 || len(a.icv) > 255*4-4 {
		return nil, fmt.Errorf("ah: an ICV of %d bytes is not a multiple of 4 below 1020", len(a.icv))
	}
	b := []byte{protoOf(p.next, a.nextProto), byte(1 + len(a.icv)/4), 0, 0}
	b = binary.BigEndian.AppendUint32(b, a.spi)
	b = binary.BigEndian.AppendUint32(b, a.seq)
	return append(append(b, a.icv...), inner...), nil
}

// parseExtension reads
//
//	hbh|dstopts|routing [body HEX] [hdr-len N] [proto P]
//	frag ID [off N] [mf] [proto P]
//	esp spi N seq N
//	ah spi N seq N icv HEX [proto P]
func (c *parser) parseExtension(l *line, kind string) {
	switch kind {
	case "frag":
		f := &fragment{id: l.u32()}
		l.fields(kind, func(w string) bool {
			switch w {
			case "off":
				f.off = uint16(l.offset())
			case "mf":
				f.mf = true
			case "proto":
				f.nextProto = l.proto(IPv6)
			default:
				return false
			}
			return true
		})
		c.add(f)
	case "esp", "ah":
		c.parseIPsec(l, kind)
	default:
		e := &extension{kind: uint8(extensionProto(kind))}
		l.fields(kind, func(w string) bool {
			switch w {
			case "body":
				e.body = l.hex()
			case "hdr-len":
				e.length = l.number(8)
			case "proto":
				e.nextProto = l.proto(IPv6)
			default:
				return false
			}
			return true
		})
		c.add(e)
	}
}

func extensionProto(kind string) int {
	switch kind {
	case "hbh":
		return protoHBH
	case "routing":
		return protoRouting
	}
	return protoDstOpts
}

func (c *parser) parseIPsec(l *line, kind string) {
	a := &ah{}
	l.fields(kind, func(w string) bool {
		switch {
		case w == "spi":
			a.spi = l.u32()
		case w == "seq":
			a.seq = l.u32()
		case w == "icv" && kind == "ah":
			a.icv = l.hex()
		case w == "proto" && kind == "ah":
			a.nextProto = l.proto(IPv6)
		default:
			return false
		}
		return true
	})
	if kind == "ah" {
		c.add(a)
		return
	}
	c.add(&a.esp)
}

func (d *decoder) extension(proto uint8, b []byte, s scope) {
	if len(b) < 8 || s.ip.family() != IPv6 {
		d.raw(b, s)
		return
	}
	n := 8 + int(b[1])*8
	if n > len(b) {
		d.raw(b, s)
		return
	}
	l := d.start("dstopts")
	switch proto {
	case protoHBH:
		l.kind = "hbh"
	case protoRouting:
		l.kind = "routing"
	}
	l.proto = int(proto)
	l.bytes("body", b[2:n])
	d.next(l, b[0], b[n:], s)
}

func (d *decoder) frag(b []byte, s scope) {
	if len(b) < 8 || s.ip.family() != IPv6 {
		d.raw(b, s)
		return
	}
	l := d.start("frag")
	l.proto = protoFrag
	off := binary.BigEndian.Uint16(b[2:])
	id := fmt.Sprint(binary.BigEndian.Uint32(b[4:]))
	l.add("id", id, id)
	l.num("off", int(off&^7), 0)
	l.flag("mf", off&1 != 0)
	if off&^7 != 0 {
		d.opaque(l, b[0], b[8:], s)
		return
	}
	s.partial = s.partial || off&1 != 0
	d.next(l, b[0], b[8:], s)
}

func (d *decoder) esp(b []byte, s scope) {
	if len(b) < 8 {
		d.raw(b, s)
		return
	}
	l := d.start("esp")
	l.proto = protoESP
	l.hexNum("spi", binary.BigEndian.Uint32(b), 0)
	l.num("seq", int(binary.BigEndian.Uint32(b[4:])), 0)
	d.raw(b[8:], s)
}

func (d *decoder) ah(b []byte, s scope) {
	if len(b) < 12 || b[1] < 1 || int(b[1])*4+8 > len(b) {
		d.raw(b, s)
		return
	}
	n := int(b[1])*4 + 8
	l := d.start("ah")
	l.proto = protoAH
	l.hexNum("spi", binary.BigEndian.Uint32(b[4:]), 0)
	l.num("seq", int(binary.BigEndian.Uint32(b[8:])), 0)
	l.bytes("icv", b[12:n])
	d.next(l, b[0], b[n:], s)
}
