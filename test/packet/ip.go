package packet

import (
	"fmt"
	"net/netip"
)

const (
	protoHBH     = 0
	protoICMP    = 1
	protoIGMP    = 2
	protoIP4     = 4
	protoTCP     = 6
	protoUDP     = 17
	protoIP6     = 41
	protoRouting = 43
	protoFrag    = 44
	protoESP     = 50
	protoAH      = 51
	protoICMP6   = 58
	protoNone    = 59
	protoDstOpts = 60
	protoSCTP    = 132

	// protoLocal is for experiments (RFC 3692); an IP header has it when
	// nothing says what is in it.
	protoLocal = 253

	defaultTTL = 64
)

// protoTyped is a header that an IP protocol number stands for.
type protoTyped interface{ proto() uint8 }

func protoOf(next header, set override) uint8 {
	right := protoLocal
	if n, ok := next.(protoTyped); ok {
		right = int(n.proto())
	}
	return uint8(set.or(right))
}

// protoWord is a name for a protocol number.
type protoWord struct {
	word  string
	proto uint8
}

func protoWords() []protoWord {
	return []protoWord{
		{"hbh", protoHBH}, {"icmp4", protoICMP}, {"igmp", protoIGMP}, {"ip4", protoIP4}, {"tcp", protoTCP},
		{"udp", protoUDP}, {"ip6", protoIP6}, {"routing", protoRouting}, {"frag", protoFrag}, {"esp", protoESP},
		{"ah", protoAH}, {"icmp6", protoICMP6}, {"none", protoNone}, {"dstopts", protoDstOpts}, {"sctp", protoSCTP},
	}
}

// proto takes a protocol's name or number; icmp is that of family f.
func (l *line) proto(f Family) override {
	w := l.peek()
	if w == "icmp" {
		w = "icmp4"
		if f == IPv6 {
			w = "icmp6"
		}
	}
	for _, p := range protoWords() {
		if p.word == w {
			l.pos++
			return override{true, uint32(p.proto)}
		}
	}
	return l.number(8)
}

// ipWords is what was written of an IP header of either family.
type ipWords struct {
	src, dst        netip.Addr
	ttl, tos        uint8
	flow            uint32
	df, mf, rsv     bool
	frag            bool
	id, off         uint32
	proto           override
	totLen, payLen  override
	ihl, version    override
	sum             sumWords
	opts            []byte
	dropped, forced bool // a word that the family doesn't have; the family was written
}

// parseIP reads the words of an IP header. Those that IPv6 doesn't have are
// passed over when kind is ip, since the line is then for both families, and
// refused when it is ip6.
func (c *parser) parseIP(l *line, kind string) {
	f := c.family
	switch kind {
	case "ip4":
		f = IPv4
	case "ip6":
		f = IPv6
	}
	w := &ipWords{ttl: defaultTTL, forced: kind != "ip"}
	w.src = l.addr(f, c.names)
	l.arrow()
	w.dst = l.addr(f, c.names)
	l.fields(kind, func(word string) bool {
		if !w.both(l, word, f) && !w.only4(l, word, f) {
			return f == IPv6 && word == "flow" && w.setFlow(l)
		}
		if w.dropped && w.forced {
			l.failLast("ip6 has no such word")
		}
		return true
	})
	c.ip = pseudo{src: w.src, dst: w.dst}
	if f == IPv4 {
		c.add(&ip4{*w})
		return
	}
	c.add(&ip6{*w})
	if w.frag {
		c.add(&fragment{id: w.id, off: uint16(w.off), mf: w.mf, nextProto: w.proto})
	}
}

func (w *ipWords) setFlow(l *line) bool {
	w.flow = l.number(20).value
	return true
}

// both takes the words of both families.
func (w *ipWords) both(l *line, word string, f Family) bool {
	switch word {
	case "ttl":
		w.ttl = l.u8()
	case "tos":
		w.tos = l.u8()
	case "proto":
		w.proto = l.proto(f)
	case "tot-len":
		w.totLen = l.number(16)
	case "payload-len":
		w.payLen = l.number(16)
	case "ver":
		w.version = l.number(4)
	case "frag":
		w.frag = true
		w.id = l.u32()
		if f == IPv4 && w.id > 0xffff {
			l.failLast("an IPv4 identification has 16 bits")
		}
		if l.take("off") {
			w.off = l.offset()
		}
		w.mf = l.take("mf")
	default:
		return false
	}
	return true
}

// offset takes a fragment's offset in bytes.
func (l *line) offset() uint32 {
	off := l.number(16).value
	if off%8 != 0 {
		l.failLast("a fragment's offset is a multiple of 8")
	}
	return off
}

// only4 takes the words that only IPv4 has.
func (w *ipWords) only4(l *line, word string, f Family) bool {
	var v ipWords
	switch word {
	case "df":
		v.df = true
	case "mf":
		v.mf = true
	case "rsv":
		v.rsv = true
	case "id":
		v.id = uint32(l.u16())
	case "off":
		v.off = l.offset()
	case "ihl":
		v.ihl = l.number(4)
	case "opts":
		v.opts = l.hex()
	default:
		if !v.sum.take(l, word, 16) {
			return false
		}
	}
	if f == IPv6 {
		w.dropped = true
		return true
	}
	w.df, w.mf, w.rsv = w.df || v.df, w.mf || v.mf, w.rsv || v.rsv
	w.id, w.off = max(w.id, v.id), max(w.off, v.off)
	if v.ihl.set {
		w.ihl = v.ihl
	}
	w.opts = append(w.opts, v.opts...)
	if v.sum != (sumWords{}) {
		w.sum = v.sum
	}
	return true
}

// protocol decodes b as protocol proto.
func (d *decoder) protocol(proto uint8, b []byte, s scope) {
	if d.full() {
		d.raw(b, s)
		return
	}
	switch proto {
	case protoTCP:
		d.tcp(b, s)
	case protoUDP:
		d.udp(b, s)
	case protoSCTP:
		d.sctp(b, s)
	case protoICMP:
		d.icmp(b, s, IPv4)
	case protoICMP6:
		d.icmp6(b, s)
	case protoIGMP:
		d.igmp(b, s)
	case protoIP4:
		d.ip4(b, s)
	case protoIP6:
		d.ip6(b, s)
	case protoESP:
		d.esp(b, s)
	case protoAH:
		d.ah(b, s)
	case protoHBH, protoDstOpts, protoRouting:
		d.extension(proto, b, s)
	case protoFrag:
		d.frag(b, s)
	default:
		d.raw(b, s)
	}
}

// next decodes b as proto, and adds to l the words for the protocol number
// where what follows doesn't say it.
func (d *decoder) next(l *layer, proto uint8, b []byte, s scope) {
	d.protocol(proto, b, s)
	right := protoLocal
	if next := d.after(l); next != nil && next.proto >= 0 {
		right = next.proto
	}
	value := fmt.Sprint(proto)
	for _, p := range protoWords() {
		if p.proto == proto {
			value = p.word
		}
	}
	words := ""
	if int(proto) != right {
		words = "proto " + value
	}
	l.add("proto", value, words)
}
