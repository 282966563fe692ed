package packet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
)

// icmp is a message of ICMP (RFC 792) or ICMPv6 (RFC 4443): type, code,
// checksum, four bytes whose meaning depends on the type, and a body.
type icmp struct {
	family    Family
	kind      uint8
	code      uint8
	rest      uint32
	sum       sumWords
	quote     override // bytes of what follows that are kept
	quotePlus bool     // quote counts from the end of the quoted IP header
}

const icmpLen = 8

// icmpKind is words that stand for a type and a code in each family; a
// negative type means that the family has no such message.
type icmpKind struct {
	words                      string
	type4, code4, type6, code6 int
	rest                       icmpRest
}

type icmpRest uint8

const (
	restNone icmpRest = iota
	restEcho          // identifier and sequence number
	restMTU           // RFC 1191 section 4; RFC 4443 section 3.2
	restPointer
	restGateway
)

func icmpKinds() []icmpKind {
	return []icmpKind{
		{"echo", 8, 0, 128, 0, restEcho},
		{"echo-reply", 0, 0, 129, 0, restEcho},
		{"unreachable net", 3, 0, 1, 0, restNone},
		{"unreachable host", 3, 1, 1, 3, restNone},
		{"unreachable proto", 3, 2, 4, 1, restNone}, // IPv6: RFC 4443 section 3.4, see fixPointer
		{"unreachable port", 3, 3, 1, 4, restNone},
		{"unreachable source-route", 3, 5, -1, 0, restNone},
		{"unreachable admin", 3, 13, 1, 1, restNone},
		{"unreachable scope", -1, 0, 1, 2, restNone},
		{"unreachable policy", -1, 0, 1, 5, restNone},
		{"unreachable reject", -1, 0, 1, 6, restNone},
		{"too-big", 3, 4, 2, 0, restMTU},
		{"time-exceeded", 11, 0, 3, 0, restNone},
		{"time-exceeded reassembly", 11, 1, 3, 1, restNone},
		{"parameter-problem", 12, 0, 4, 0, restPointer},
		{"parameter-problem option", -1, 0, 4, 2, restPointer},
		{"redirect net", 5, 0, -1, 0, restGateway},
		{"redirect host", 5, 1, -1, 0, restGateway},
		{"timestamp", 13, 0, -1, 0, restEcho},
		{"timestamp-reply", 14, 0, -1, 0, restEcho},
	}
}

func (k icmpKind) of(f Family) (kind, code int) {
	if f == IPv6 {
		return k.type6, k.code6
	}
	return k.type4, k.code4
}

// restOf says what the four bytes are.
func (k icmpKind) restOf(f Family) icmpRest {
	if k.words == "unreachable proto" && f == IPv6 {
		return restPointer
	}
	return k.rest
}

func (m *icmp) proto() uint8 { return icmpProto(m.family) }

func icmpProto(f Family) uint8 {
	if f == IPv6 {
		return protoICMP6
	}
	return protoICMP
}

func (m *icmp) encode(inner []byte, p place) ([]byte, error) {
	if m.quote.set {
		n := int(m.quote.value)
		if m.quotePlus {
			n += headerLen(p.next)
		}
		inner = inner[:min(n, len(inner))]
	}
	b := []byte{m.kind, m.code, 0, 0}
	b = append(binary.BigEndian.AppendUint32(b, m.rest), inner...)
	binary.BigEndian.PutUint16(b[2:], m.sum.or16(icmpSum(b, p.ip, m.family)))
	return b, nil
}

func headerLen(h header) int {
	switch h := h.(type) {
	case *ip4:
		return ip4Len + (len(h.opts)+3)/4*4
	case *ip6:
		return ip6Len
	}
	return 0
}

func icmpSum(b []byte, ip pseudo, f Family) uint16 {
	if f == IPv6 {
		return ip.checksum(b, 2, protoICMP6)
	}
	return checksum(b, 2)
}

// parseICMP reads "icmp WORDS …" in the words of icmpKinds, or
// "icmp type N code N rest N".
func (c *parser) parseICMP(l *line, kind string) {
	m := &icmp{family: c.family}
	switch {
	case kind == "icmp4":
		m.family = IPv4
	case kind == "icmp6":
		m.family = IPv6
	case c.ip.valid():
		m.family = c.ip.family()
	}
	if l.peek() != "type" {
		m.parseKind(l)
	}
	l.fields("icmp", func(w string) bool { return m.field(l, w, c.names) })
	c.add(m)
}

func (m *icmp) parseKind(l *line) {
	first := l.next()
	words := first
	if first == "unreachable" && l.peek() == "frag-needed" {
		l.next()
		words = "too-big"
	}
	if w := first + " " + l.peek(); findICMPKind(w) != nil {
		l.next()
		words = w
	}
	k := findICMPKind(words)
	if k == nil {
		l.failLast("icmp has no such message")
		return
	}
	kind, code := k.of(m.family)
	if kind < 0 {
		l.failLast("%s in %s does not exist", k.words, m.family)
		return
	}
	m.kind, m.code = uint8(kind), uint8(code)
}

func findICMPKind(words string) *icmpKind {
	for _, k := range icmpKinds() {
		if k.words == words {
			return &k
		}
	}
	return nil
}

func (m *icmp) field(l *line, w string, names Names) bool {
	switch w {
	case "type":
		m.kind = l.u8()
	case "code":
		m.code = l.u8()
	case "rest":
		m.rest = l.u32()
	case "id":
		m.rest = m.rest&0xffff | uint32(l.u16())<<16
	case "seq":
		m.rest = m.rest&^0xffff | uint32(l.u16())
	case "mtu":
		m.rest = l.number(32 - 16*m.is4()).value
	case "pointer":
		m.rest = l.number(32-24*m.is4()).value << (24 * m.is4())
	case "gateway":
		a := l.addr(m.family, names).As16()
		m.rest = binary.BigEndian.Uint32(a[12:])
	case "quote":
		if after, ok := strings.CutPrefix(l.peek(), "+"); ok {
			l.words[l.pos].text, m.quotePlus = after, true
		}
		m.quote = l.number(16)
	default:
		return m.sum.take(l, w, 16)
	}
	return true
}

func (m *icmp) is4() int {
	if m.family == IPv4 {
		return 1
	}
	return 0
}

// isError reports that a message quotes the packet that caused it.
func (m *icmp) isError() bool {
	if m.family == IPv6 {
		return m.kind >= 1 && m.kind <= 4
	}
	return m.kind == 3 || m.kind == 4 || m.kind == 5 || m.kind == 11 || m.kind == 12
}

func (d *decoder) icmp(b []byte, s scope, f Family) {
	if len(b) < icmpLen {
		d.raw(b, s)
		return
	}
	l := d.start("icmp")
	if s.ip.valid() && s.ip.family() != f {
		l.kind = map[Family]string{IPv4: "icmp4", IPv6: "icmp6"}[f]
	}
	l.proto = int(icmpProto(f))
	m := &icmp{family: f, kind: b[0], code: b[1], rest: binary.BigEndian.Uint32(b[4:])}
	d.icmpHeader(l, m)
	l.checksum(binary.BigEndian.Uint16(b[2:]), icmpSum(b, s.ip, f), s)
	if m.isError() && !d.full() {
		s.hasEth = false
		d.quoted(b[icmpLen:], s)
		return
	}
	d.raw(b[icmpLen:], s)
}

func (d *decoder) icmpHeader(l *layer, m *icmp) {
	for _, k := range icmpKinds() {
		kind, code := k.of(m.family)
		if kind != int(m.kind) || code != int(m.code) {
			continue
		}
		l.add("message", k.words, k.words)
		if d.icmpRest(l, m, k.restOf(m.family)) {
			return
		}
		l.hexNum("rest", m.rest, 0)
		return
	}
	l.add("type", fmt.Sprint(m.kind), fmt.Sprintf("type %d", m.kind))
	l.num("code", int(m.code), 0)
	l.hexNum("rest", m.rest, 0)
}

// icmpRest adds the four bytes in words, if they can say everything.
func (d *decoder) icmpRest(l *layer, m *icmp, rest icmpRest) bool {
	switch {
	case rest == restEcho:
		l.num("id", int(m.rest>>16), 0)
		l.num("seq", int(m.rest&0xffff), 0)
	case rest == restMTU && (m.family == IPv6 || m.rest <= 0xffff):
		l.num("mtu", int(m.rest), 0)
	case rest == restPointer && m.family == IPv6:
		l.num("pointer", int(m.rest), 0)
	case rest == restPointer && m.rest&0xffffff == 0:
		l.num("pointer", int(m.rest>>24), 0)
	case rest == restGateway:
		w := d.names.addr(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, m.rest))))
		l.add("gateway", w, "gateway "+w)
	default:
		return false
	}
	return true
}
