package packet

import (
	"encoding/binary"
	"fmt"
)

const (
	typeIP4  = 0x0800
	typeARP  = 0x0806
	typeTEB  = 0x6558 // an Ethernet frame, in Geneve
	typeVLAN = 0x8100
	typeIP6  = 0x86dd
	typeQinQ = 0x88a8

	// typeLocal is for local experiments (IEEE 802); a frame has it when
	// nothing says what is in it.
	typeLocal = 0x88b5
)

// etherTyped is a header that an Ethernet type stands for.
type etherTyped interface{ etherType() uint16 }

type eth struct {
	dst, src  [6]byte
	frameType override
}

type vlan struct {
	tpid      uint16
	tag       uint16
	frameType override
}

func (*eth) etherType() uint16    { return typeTEB }
func (v *vlan) etherType() uint16 { return v.tpid }

func typeOf(next header, set override) uint16 {
	right := typeLocal
	if n, ok := next.(etherTyped); ok {
		right = int(n.etherType())
	}
	return uint16(set.or(right))
}

func (e *eth) encode(inner []byte, p place) ([]byte, error) {
	b := append(append([]byte{}, e.dst[:]...), e.src[:]...)
	b = binary.BigEndian.AppendUint16(b, typeOf(p.next, e.frameType))
	return append(b, inner...), nil
}

func (v *vlan) encode(inner []byte, p place) ([]byte, error) {
	b := binary.BigEndian.AppendUint16(nil, v.tag)
	b = binary.BigEndian.AppendUint16(b, typeOf(p.next, v.frameType))
	return append(b, inner...), nil
}

// parseEth reads "eth SRC > DST [type N] [vlan N …]". The words of vlan layers
// may follow in the same layer.
func (c *parser) parseEth(l *line) {
	e := &eth{}
	e.src = l.mac(c.names)
	l.arrow()
	e.dst = l.mac(c.names)
	c.add(e)
	c.eth, c.ip = e, pseudo{}
	l.fields("eth", func(w string) bool {
		switch w {
		case "type":
			e.frameType = l.number(16)
		case "vlan", "qinq":
			c.parseVLAN(l, w)
		default:
			return false
		}
		return true
	})
}

// parseVLAN reads "vlan N [pcp N] [dei] [type N]"; kind is vlan (IEEE 802.1Q)
// or qinq (802.1ad).
func (c *parser) parseVLAN(l *line, kind string) {
	v := &vlan{tpid: typeVLAN}
	if kind == "qinq" {
		v.tpid = typeQinQ
	}
	v.tag = uint16(l.number(12).value)
	c.add(v)
	for l.more() {
		switch w := l.next(); w {
		case "pcp":
			v.tag |= uint16(l.number(3).value) << 13
		case "dei":
			v.tag |= 1 << 12
		case "type":
			v.frameType = l.number(16)
		case "vlan", "qinq":
			c.parseVLAN(l, w)
		default:
			l.failLast("vlan has no such word")
		}
	}
}

func (d *decoder) eth(b []byte, s scope) {
	if len(b) < 14 || d.full() {
		d.raw(b, s)
		return
	}
	l := d.start("eth")
	l.etherType = typeTEB
	l.pair(d.names.mac(b[6:12]), d.names.mac(b[:6]))
	d.inFrame(l, b[12:], scope{ethSrc: [6]byte(b[6:12]), hasEth: true, partial: s.partial})
}

// inFrame decodes what follows the Ethernet type that b begins with.
func (d *decoder) inFrame(l *layer, b []byte, s scope) {
	frameType := binary.BigEndian.Uint16(b)
	d.etherType(frameType, b[2:], s)
	right := typeLocal
	if next := d.after(l); next != nil && next.etherType >= 0 {
		right = next.etherType
	}
	l.hexNum("type", uint32(frameType), uint32(right))
}

func (d *decoder) etherType(frameType uint16, b []byte, s scope) {
	if d.full() {
		d.raw(b, s)
		return
	}
	switch frameType {
	case typeVLAN, typeQinQ:
		d.vlan(frameType, b, s)
	case typeARP:
		d.arp(b, s)
	case typeIP4:
		d.ip4(b, s)
	case typeIP6:
		d.ip6(b, s)
	case typeTEB:
		d.eth(b, s)
	default:
		d.raw(b, s)
	}
}

func (d *decoder) vlan(tpid uint16, b []byte, s scope) {
	if len(b) < 4 {
		d.raw(b, s)
		return
	}
	l := d.start("vlan")
	if tpid == typeQinQ {
		l.kind = "qinq"
	}
	l.etherType = int(tpid)
	tag := binary.BigEndian.Uint16(b)
	id := fmt.Sprint(tag & 0xfff)
	l.add("id", id, id)
	l.num("pcp", int(tag>>13), 0)
	l.flag("dei", tag&(1<<12) != 0)
	d.inFrame(l, b[2:], s)
}
