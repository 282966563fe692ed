package packet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// group is a message about a multicast group: IGMPv2 (RFC 2236) or MLDv1
// (RFC 2710). What later versions add is its payload.
type group struct {
	family Family
	kind   uint8
	code   uint8
	delay  uint16 // IGMP: tenths of a second, in one byte; MLD: milliseconds
	rsv    uint16 // MLD
	addr   netip.Addr
	sum    sumWords
}

const (
	igmpLen = 8
	mldLen  = 24

	mldQuery = 130
	mldDone  = 132
)

type groupWord struct {
	word string
	kind uint8
}

func groupWords(f Family) []groupWord {
	if f == IPv6 {
		return []groupWord{{"query", mldQuery}, {"report", 131}, {"done", mldDone}}
	}
	return []groupWord{{"query", 0x11}, {"report", 0x16}, {"leave", 0x17}}
}

func (g *group) proto() uint8 {
	if g.family == IPv6 {
		return protoICMP6
	}
	return protoIGMP
}

func (g *group) encode(inner []byte, p place) ([]byte, error) {
	if g.family == IPv4 {
		b := append([]byte{g.kind, byte(g.delay), 0, 0}, g.addr.AsSlice()...)
		b = append(b, inner...)
		binary.BigEndian.PutUint16(b[2:], g.sum.or16(checksum(b, 2)))
		return b, nil
	}
	b := binary.BigEndian.AppendUint16([]byte{g.kind, g.code, 0, 0}, g.delay)
	b = binary.BigEndian.AppendUint16(b, g.rsv)
	b = append(append(b, g.addr.AsSlice()...), inner...)
	binary.BigEndian.PutUint16(b[2:], g.sum.or16(icmpSum(b, p.ip, IPv6)))
	return b, nil
}

// parseIGMP reads "igmp query|report|leave|type N GROUP [delay N]".
func (c *parser) parseIGMP(l *line) { c.parseGroup(l, &group{family: IPv4}, "igmp") }

// parseMLD reads "mld query|report|done GROUP [delay N]".
func (c *parser) parseMLD(l *line) { c.parseGroup(l, &group{family: IPv6}, "mld") }

func (c *parser) parseGroup(l *line, g *group, layer string) {
	word := l.next()
	for _, w := range groupWords(g.family) {
		if w.word == word {
			g.kind = w.kind
		}
	}
	if word == "type" && g.family == IPv4 {
		g.kind = l.u8()
	} else if g.kind == 0 {
		l.failLast("%s has no such message", layer)
	}
	g.addr = l.addr(g.family, c.names)
	l.fields(layer, func(w string) bool {
		switch {
		case w == "delay" && g.family == IPv4:
			g.delay = uint16(l.u8())
		case w == "delay":
			g.delay = l.u16()
		case w == "code" && g.family == IPv6:
			g.code = l.u8()
		case w == "rsv" && g.family == IPv6:
			g.rsv = l.u16()
		default:
			return g.sum.take(l, w, 16)
		}
		return true
	})
	c.add(g)
}

func (d *decoder) igmp(b []byte, s scope) {
	if len(b) < igmpLen {
		d.raw(b, s)
		return
	}
	l := d.start("igmp")
	l.proto = protoIGMP
	l.groupMessage(IPv4, b[0])
	w := d.names.addr(netip.AddrFrom4([4]byte(b[4:8])))
	l.add("group", w, w)
	l.num("delay", int(b[1]), 0)
	l.checksum(binary.BigEndian.Uint16(b[2:]), checksum(b, 2), s)
	d.raw(b[igmpLen:], s)
}

func (l *layer) groupMessage(f Family, kind uint8) {
	word := fmt.Sprintf("type %d", kind)
	for _, w := range groupWords(f) {
		if w.kind == kind {
			word = w.word
		}
	}
	l.add("message", word, word)
}

func (d *decoder) mld(b []byte, s scope) {
	l := d.start("mld")
	l.proto = protoICMP6
	l.groupMessage(IPv6, b[0])
	w := d.names.addr(netip.AddrFrom16([16]byte(b[8:24])))
	l.add("group", w, w)
	l.num("delay", int(binary.BigEndian.Uint16(b[4:])), 0)
	l.num("code", int(b[1]), 0)
	l.num("rsv", int(binary.BigEndian.Uint16(b[6:])), 0)
	l.checksum(binary.BigEndian.Uint16(b[2:]), icmpSum(b, s.ip, IPv6), s)
	d.raw(b[mldLen:], s)
}
