package packet

import (
	"encoding/binary"
	"fmt"
)

// vxlan is a VXLAN header, RFC 7348 section 5.
type vxlan struct {
	flags uint8
	rsv1  uint32 // 24 bits after the flags
	vni   uint32
	rsv2  uint8
}

// geneve is a Geneve header, RFC 8926 section 3.4.
type geneve struct {
	ver, rsv1   uint8
	oam, crit   bool
	vni         uint32
	rsv2        uint8
	opts        []byte
	payloadType override
}

const (
	tunnelLen = 8

	vxlanFlagVNI = 0x08
)

func (v *vxlan) encode(inner []byte, _ place) ([]byte, error) {
	b := binary.BigEndian.AppendUint32(nil, uint32(v.flags)<<24|v.rsv1)
	b = binary.BigEndian.AppendUint32(b, v.vni<<8|uint32(v.rsv2))
	return append(b, inner...), nil
}

func (g *geneve) encode(inner []byte, p place) ([]byte, error) {
	if len(g.opts)%4 != 0 || len(g.opts) > 63*4 {
		return nil, fmt.Errorf("geneve: %d bytes of options are not a multiple of 4 below 256", len(g.opts))
	}
	flags := g.rsv1
	if g.oam {
		flags |= 0x80
	}
	if g.crit {
		flags |= 0x40
	}
	b := []byte{g.ver<<6 | byte(len(g.opts)/4), flags}
	right := uint32(typeTEB)
	if n, ok := p.next.(etherTyped); ok {
		right = uint32(n.etherType())
	}
	b = binary.BigEndian.AppendUint16(b, uint16(g.payloadType.or(int(right))))
	b = binary.BigEndian.AppendUint32(b, g.vni<<8|uint32(g.rsv2))
	return append(append(b, g.opts...), inner...), nil
}

// parseVXLAN reads "vxlan vni N [flags N] [rsv1 N] [rsv2 N]".
func (c *parser) parseVXLAN(l *line) {
	v := &vxlan{flags: vxlanFlagVNI}
	l.fields("vxlan", func(w string) bool {
		switch w {
		case "vni":
			v.vni = l.number(24).value
		case "flags":
			v.flags = l.u8()
		case "rsv1":
			v.rsv1 = l.number(24).value
		case "rsv2":
			v.rsv2 = l.u8()
		default:
			return false
		}
		return true
	})
	c.add(v)
}

// parseGeneve reads
// "geneve vni N [opts HEX] [oam] [crit] [type N] [ver N] [rsv1 N] [rsv2 N]".
func (c *parser) parseGeneve(l *line) {
	g := &geneve{}
	l.fields("geneve", func(w string) bool {
		switch w {
		case "vni":
			g.vni = l.number(24).value
		case "opts":
			g.opts = append(g.opts, l.hex()...)
		case "oam":
			g.oam = true
		case "crit":
			g.crit = true
		case "type":
			g.payloadType = l.number(16)
		case "ver":
			g.ver = uint8(l.number(2).value)
		case "rsv1":
			g.rsv1 = uint8(l.number(6).value)
		case "rsv2":
			g.rsv2 = l.u8()
		default:
			return false
		}
		return true
	})
	c.add(g)
}

func (d *decoder) vxlan(b []byte, s scope) {
	if len(b) < tunnelLen {
		d.raw(b, s)
		return
	}
	l := d.start("vxlan")
	first, second := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
	l.vni(second >> 8)
	l.hexNum("flags", first>>24, vxlanFlagVNI)
	l.hexNum("rsv1", first&0xffffff, 0)
	l.hexNum("rsv2", second&0xff, 0)
	if d.full() {
		d.raw(b[tunnelLen:], s)
		return
	}
	d.eth(b[tunnelLen:], s)
}

func (l *layer) vni(v uint32) { l.add("vni", fmt.Sprint(v), fmt.Sprintf("vni %d", v)) }

func (d *decoder) geneve(b []byte, s scope) {
	if len(b) < tunnelLen || len(b) < tunnelLen+int(b[0]&0x3f)*4 {
		d.raw(b, s)
		return
	}
	n := tunnelLen + int(b[0]&0x3f)*4
	l := d.start("geneve")
	second := binary.BigEndian.Uint32(b[4:])
	l.vni(second >> 8)
	l.bytes("opts", b[tunnelLen:n])
	l.flag("oam", b[1]&0x80 != 0)
	l.flag("crit", b[1]&0x40 != 0)
	l.num("ver", int(b[0]>>6), 0)
	l.hexNum("rsv1", uint32(b[1]&0x3f), 0)
	l.hexNum("rsv2", second&0xff, 0)
	payloadType := binary.BigEndian.Uint16(b[2:])
	d.etherType(payloadType, b[n:], s)
	right := typeTEB
	if next := d.after(l); next != nil && next.etherType >= 0 {
		right = next.etherType
	}
	l.hexNum("type", uint32(payloadType), uint32(right))
}
