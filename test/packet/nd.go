package packet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// nd is a message of neighbour discovery, RFC 4861 section 4.
type nd struct {
	kind, code  uint8
	rest        uint32
	target, dst netip.Addr
	router      [2]uint32 // reachable time, retransmission timer, of a router-advert
	opts        []byte
	sum         sumWords
}

const (
	ndRouterSolicit = 133
	ndRouterAdvert  = 134
	ndSolicit       = 135
	ndAdvert        = 136
	ndRedirect      = 137

	ndFlagRouter    = 1 << 31
	ndFlagSolicited = 1 << 30
	ndFlagOverride  = 1 << 29

	optSourceLink = 1
	optTargetLink = 2
	optMTU        = 5
)

// ndWords is the messages' names in the order of their types, from 133.
func ndWords() []string {
	return []string{"router-solicit", "router-advert", "solicit", "advert", "redirect"}
}

func (*nd) proto() uint8 { return protoICMP6 }

func (m *nd) encode(inner []byte, p place) ([]byte, error) {
	b := []byte{m.kind, m.code, 0, 0}
	b = binary.BigEndian.AppendUint32(b, m.rest)
	switch m.kind {
	case ndRouterAdvert:
		b = binary.BigEndian.AppendUint32(b, m.router[0])
		b = binary.BigEndian.AppendUint32(b, m.router[1])
	case ndSolicit, ndAdvert:
		b = append(b, m.target.AsSlice()...)
	case ndRedirect:
		b = append(append(b, m.target.AsSlice()...), m.dst.AsSlice()...)
	}
	b = append(append(b, m.opts...), inner...)
	binary.BigEndian.PutUint16(b[2:], m.sum.or16(icmpSum(b, p.ip, IPv6)))
	return b, nil
}

// linkOption is the type of the link-layer address option that goes with a
// message.
func linkOption(kind uint8) uint8 {
	if kind == ndAdvert || kind == ndRedirect {
		return optTargetLink
	}
	return optSourceLink
}

// parseND reads
//
//	nd solicit TARGET [lladdr MAC]
//	nd advert TARGET [router] [solicited] [override] [lladdr MAC]
//	nd router-solicit [lladdr MAC]
//	nd router-advert [reachable N] [retrans N] [rest N] [lladdr MAC] [mtu N]
//	nd redirect TARGET for DESTINATION [lladdr MAC]
//
// "from NAME" is another way to say "lladdr NAME".
func (c *parser) parseND(l *line) {
	m := &nd{}
	word := l.next()
	for i, w := range ndWords() {
		if w == word {
			m.kind = uint8(ndRouterSolicit + i)
		}
	}
	switch m.kind {
	case 0:
		l.failLast("nd has no such message")
		return
	case ndSolicit, ndAdvert:
		m.target = l.addr(IPv6, c.names)
	case ndRedirect:
		m.target = l.addr(IPv6, c.names)
		if !l.take("for") {
			l.fail("for is missing")
		}
		m.dst = l.addr(IPv6, c.names)
	}
	l.fields("nd", func(w string) bool { return m.field(l, w, c.names) })
	c.add(m)
}

func (m *nd) field(l *line, w string, names Names) bool {
	link := func(kind uint8) {
		mac := l.mac(names)
		m.opts = append(append(m.opts, kind, 1), mac[:]...)
	}
	switch {
	case w == "lladdr" || w == "from":
		link(linkOption(m.kind))
	case w == "slla":
		link(optSourceLink)
	case w == "tlla":
		link(optTargetLink)
	case w == "mtu":
		m.opts = binary.BigEndian.AppendUint32(append(m.opts, optMTU, 1, 0, 0), l.u32())
	case w == "opts":
		m.opts = append(m.opts, l.hex()...)
	case w == "router" && m.kind == ndAdvert:
		m.rest |= ndFlagRouter
	case w == "solicited" && m.kind == ndAdvert:
		m.rest |= ndFlagSolicited
	case w == "override" && m.kind == ndAdvert:
		m.rest |= ndFlagOverride
	case w == "reachable" && m.kind == ndRouterAdvert:
		m.router[0] = l.u32()
	case w == "retrans" && m.kind == ndRouterAdvert:
		m.router[1] = l.u32()
	case w == "rest":
		m.rest = l.u32()
	case w == "code":
		m.code = l.u8()
	default:
		return m.sum.take(l, w, 16)
	}
	return true
}

// icmp6 decodes a message of ICMPv6: one of ND, MLD, or another.
func (d *decoder) icmp6(b []byte, s scope) {
	switch {
	case len(b) >= icmpLen && b[0] >= ndRouterSolicit && b[0] <= ndRedirect:
		d.nd(b, s)
	case len(b) >= mldLen && b[0] >= mldQuery && b[0] <= mldDone:
		d.mld(b, s)
	default:
		d.icmp(b, s, IPv6)
	}
}

func ndLen(kind uint8) int {
	switch kind {
	case ndRouterAdvert:
		return 16
	case ndSolicit, ndAdvert:
		return 24
	case ndRedirect:
		return 40
	}
	return icmpLen
}

func (d *decoder) nd(b []byte, s scope) {
	n := ndLen(b[0])
	if len(b) < n {
		d.icmp(b, s, IPv6)
		return
	}
	l := d.start("nd")
	l.proto = protoICMP6
	word := ndWords()[b[0]-ndRouterSolicit]
	l.add("message", word, word)
	rest := binary.BigEndian.Uint32(b[4:])
	addr := func(name, before string, at int) {
		w := d.names.addr(netip.AddrFrom16([16]byte(b[at : at+16])))
		l.add(name, w, before+w)
	}
	switch b[0] {
	case ndSolicit:
		addr("target", "", 8)
	case ndAdvert:
		addr("target", "", 8)
		l.flag("router", rest&ndFlagRouter != 0)
		l.flag("solicited", rest&ndFlagSolicited != 0)
		l.flag("override", rest&ndFlagOverride != 0)
		if rest&(1<<29-1) == 0 {
			rest = 0
		}
	case ndRedirect:
		addr("target", "", 8)
		addr("for", "for ", 24)
	case ndRouterAdvert:
		l.num("reachable", int(binary.BigEndian.Uint32(b[8:])), 0)
		l.num("retrans", int(binary.BigEndian.Uint32(b[12:])), 0)
	}
	l.num("code", int(b[1]), 0)
	l.hexNum("rest", rest, 0)
	tail := d.ndOptions(l, b[0], b[n:])
	l.checksum(binary.BigEndian.Uint16(b[2:]), icmpSum(b, s.ip, IPv6), s)
	d.raw(tail, s)
}

// ndOptions adds options in words as far as they are known, and returns the
// rest.
func (d *decoder) ndOptions(l *layer, kind uint8, b []byte) []byte {
	for len(b) >= 8 && b[1] > 0 && int(b[1])*8 <= len(b) {
		opt, size := b, int(b[1])*8
		b = b[size:]
		switch {
		case opt[0] == linkOption(kind) && size == 8:
			l.add("lladdr", d.names.mac(opt[2:8]), "lladdr "+d.names.mac(opt[2:8]))
		case opt[0] == optSourceLink && size == 8:
			l.add("slla", d.names.mac(opt[2:8]), "slla "+d.names.mac(opt[2:8]))
		case opt[0] == optTargetLink && size == 8:
			l.add("tlla", d.names.mac(opt[2:8]), "tlla "+d.names.mac(opt[2:8]))
		case opt[0] == optMTU && size == 8 && opt[2]|opt[3] == 0:
			mtu := fmt.Sprint(binary.BigEndian.Uint32(opt[4:]))
			l.add("mtu", mtu, "mtu "+mtu)
		default:
			l.bytes("opts", opt[:size])
		}
	}
	return b
}
