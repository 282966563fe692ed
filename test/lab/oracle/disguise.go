package oracle

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
)

// disguise changes the packet, cuts it, and wraps it; then it is known what a receiver makes of it.
func (g *Generator) disguise(d *draft) {
	for g.odds(45) {
		if d.f == 4 {
			pick(g.R, g.options4, g.length, g.flip, g.direct4)(d)
		} else {
			pick(g.R, g.extensions, g.extensions, g.length, g.flip, g.direct6)(d)
		}
	}
	s, ok := ReadIP(d.ip)
	if !ok {
		d.Real, d.Begins = nil, false
		return
	}
	d.Claimed, d.Real = s.Src, []Flow{s.Flow}
	if first, ok := readFirst(d.ip); ok && s.Fragment {
		d.Real = append(d.Real, first.Flow) // a bit was flipped; flows open by first fragments
	}
	d.Begins = d.Begins && !s.Error
	switch n := g.R.IntN(100); {
	case n < 30:
		g.cut(d)
	case n < 36:
		g.encapsulate(d)
	}
	if g.odds(10) {
		d.tags = pick(g.R, "q", "ad", "q q", "ad q")
	}
	if g.odds(10) && len(d.pads) == 0 {
		d.pads = [][]byte{make([]byte, g.R.IntN(40))}
	}
}

// fake is what a header that is not in the packet may look like: an old connection's segment.
func (g *Generator) fake(d *draft) []byte {
	b := binary.BigEndian.AppendUint16(nil, pick[uint16](g.R, 80, 443, 1000))
	b = binary.BigEndian.AppendUint16(b, pick[uint16](g.R, 40000, 50000, 80))
	b = append(b, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, pick[byte](g.R, 0x10, 0x18, 0x04, 0), 0xff, 0xff, 0, 0, 0, 0)
	if s, ok := ReadIP(d.ip); ok {
		f := Flow{Src: s.Src, Dst: s.Dst, Proto: TCP}
		f.SPort, f.DPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		d.Fakes = append(d.Fakes, f)
	}
	return b
}

// options4 puts options into an IPv4 header.
func (g *Generator) options4(d *draft) {
	list := [][]byte{
		{1, 1, 1, 1}, {0, 0, 0, 0}, {7, 7, 4, 0, 0, 0, 0, 0}, {0x44, 8, 5, 0, 0, 0, 0, 0},
		{0x83, 7, 4, 10, 0, 1, 2, 0}, {0x94, 4, 0, 0},
		{0x9a, 8, 0, 80, 10, 96, 0, 1}, {0x9a, 3, 0, 0}}
	g.insert4(d, pick(g.R, list...))
}

func (g *Generator) insert4(d *draft, options []byte) {
	header := int(d.ip[0]&15) * 4
	if header < 20 || header+len(options) > 60 || len(d.ip) < header {
		return
	}
	d.ip = slices.Insert(d.ip, 20, options...)
	d.ip[0] += byte(len(options) / 4)
	binary.BigEndian.PutUint16(d.ip[2:], binary.BigEndian.Uint16(d.ip[2:])+uint16(len(options)))
	sum4(d.ip)
}

// extensions puts a header between IPv6 and what is in it.
func (g *Generator) extensions(d *draft) {
	for range 1 + g.R.IntN(3) {
		kind := pick[byte](g.R, destOptions, destOptions, destOptions, hopByHop, routing, authHeader, fragment)
		header := []byte{0, 0, 1, 4, 0, 0, 0, 0}
		switch kind {
		case routing:
			header = []byte{0, 0, pick[byte](g.R, 0, 2, 4), 0, 0, 0, 0, 0}
		case authHeader:
			header = []byte{0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1}
			header = append(header, 0, 0, 0, 0)
			header[1] = 2
		case fragment: // one that is the whole packet (RFC 6946)
			header = binary.BigEndian.AppendUint32([]byte{0, 0, 0, 0}, uint32(d.N)|1<<31)
		case destOptions:
			if g.odds(30) {
				header = []byte{0, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
			}
		}
		g.insert6(d, kind, header)
	}
}

func (g *Generator) insert6(d *draft, kind byte, header []byte) {
	header[0], d.ip[6] = d.ip[6], kind
	d.ip = slices.Insert(d.ip, 40, header...)
	binary.BigEndian.PutUint16(d.ip[4:], binary.BigEndian.Uint16(d.ip[4:])+uint16(len(header)))
}

// length makes the packet say another length than it has.
func (g *Generator) length(d *draft) {
	by := uint16(pick(g.R, -1, -4, -8, -16, -24, -32, -40, 1, 4, 40))
	if d.f == 4 {
		binary.BigEndian.PutUint16(d.ip[2:], binary.BigEndian.Uint16(d.ip[2:])+by)
		sum4(d.ip)
		return
	}
	binary.BigEndian.PutUint16(d.ip[4:], binary.BigEndian.Uint16(d.ip[4:])+by)
}

// flip changes a byte behind the addresses, or before them.
func (g *Generator) flip(d *draft) {
	at := g.R.IntN(min(len(d.ip), 64))
	source := map[int][2]int{4: {12, 20}, 6: {8, 40}}[d.f]
	if at == 0 || at >= source[0] && at < source[1] {
		return
	}
	bit := byte(1) << g.R.IntN(8)
	d.ip[at] ^= bit
	if !bytes.Contains(d.ip, tagOf(d.N)) {
		d.ip[at] ^= bit // receivers must find the tag
	}
	if d.f == 4 {
		sum4(d.ip)
	}
}

// sum4 writes the checksum of an IPv4 header.
func sum4(b []byte) {
	b[10], b[11] = 0, 0
	var sum uint32
	for i := 0; i+1 < min(int(b[0]&15)*4, len(b)); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
}

// cut sends the packet in fragments: of any size, in any order, also twice, and some that lie over others or end before
// what they claim to have.
func (g *Generator) cut(d *draft) {
	header := 40
	if d.f == 4 {
		header = int(d.ip[0]&15) * 4
	}
	if header < 20 || len(d.ip) < header+16 {
		return
	}
	d.Kind += ", in fragments"
	payload := d.ip[header:]
	d.whole()
	if g.odds(25) {
		g.hide(d, header, payload)
		return
	}
	for off := 0; off < len(payload); {
		size := pick(g.R, 8, 8, 16, 24, 32, 8*(1+g.R.IntN(20)))
		end := min(off+size, len(payload))
		g.part(d, header, off, payload[off:end], end < len(payload))
		off = end
		if g.odds(8) {
			off = max(8, off-8) // overlap
		}
	}
	if g.odds(10) {
		g.secondFirst(d, header, payload)
	}
	if g.odds(40) {
		g.R.Shuffle(len(d.packets), func(i, j int) {
			d.packets[i], d.packets[j] = d.packets[j], d.packets[i]
			d.pads[i], d.pads[j] = d.pads[j], d.pads[i]
		})
	}
}

// whole has a receiver make of the fragments what the packet is with the length that it has.
func (d *draft) whole() {
	b := slices.Clone(d.ip)
	if d.f == 4 {
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		b[6], b[7] = 0, 0 // fragments have bits of their own
	} else {
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
	}
	if s, ok := ReadIP(b); ok {
		d.Real, d.Begins = []Flow{s.Flow}, d.Begins && !s.Error
	}
}

// hide sends a first fragment of eight bytes that seems to go on in padding, and the rest, which claims to be of TCP.
func (g *Generator) hide(d *draft, header int, payload []byte) {
	pad := g.fake(d)
	if d.f == 4 || d.ip[6] == TCP {
		pad = pad[8:]
	} else if payload[0] != TCP {
		pad = append([]byte{TCP, 0, 1, 4, 0, 0, 0, 0}, pad...)
	}
	g.part(d, header, 0, payload[:8], true)
	g.part(d, header, 8, payload[8:], false)
	for i, b := range d.packets {
		if d.pads[i] = nil; i == 0 {
			d.pads[i] = pad
		} else if d.f == 6 && binary.BigEndian.Uint16(b[header+2:]) >= 8 {
			b[header] = TCP
		}
	}
}

// secondFirst adds another first fragment, with other ports.
func (g *Generator) secondFirst(d *draft, header int, payload []byte) {
	other := slices.Clone(payload[:8])
	binary.BigEndian.PutUint16(other[2:], g.port())
	g.part(d, header, 0, other, true)
	s := Seen{Flow: d.Real[0]}
	if s.Proto == TCP || s.Proto == UDP || s.Proto == SCTP {
		s.SPort, s.DPort = binary.BigEndian.Uint16(other), binary.BigEndian.Uint16(other[2:])
		d.Real = append(d.Real, s.Flow)
	}
}

// part adds a fragment.
func (g *Generator) part(d *draft, header, off int, data []byte, more bool) {
	b := slices.Clone(d.ip[:header])
	if d.f == 4 {
		field := uint16(off / 8)
		if more {
			field |= 0x2000
		}
		binary.BigEndian.PutUint16(b[4:], uint16(d.N))
		binary.BigEndian.PutUint16(b[6:], field)
		b = append(b, data...)
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		if off > 0 && g.odds(10) {
			b[9] = pick[byte](g.R, TCP, UDP, ICMP, 99)
		}
		sum4(b)
	} else {
		next := b[6]
		if off > 0 && g.odds(30) {
			next = pick[byte](g.R, TCP, UDP, ICMPv6, destOptions, 99)
		}
		field := uint16(off)
		if more {
			field |= 1
		}
		b[6] = fragment
		b = append(b, next, 0)
		b = binary.BigEndian.AppendUint16(b, field)
		b = binary.BigEndian.AppendUint32(b, uint32(d.N))
		b = append(b, data...)
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
	}
	g.add(d, b, g.padding(d, off, data))
}

// add appends a part, maybe twice.
func (g *Generator) add(d *draft, b, pad []byte) {
	for range pick(g.R, 1, 1, 1, 1, 1, 1, 1, 2) {
		d.packets, d.pads = append(d.packets, b), append(d.pads, pad)
	}
}

// padding goes on behind a fragment as if there were a header of an old connection.
func (g *Generator) padding(d *draft, off int, data []byte) []byte {
	if off > 0 || !g.odds(60) {
		return nil
	}
	fake := g.fake(d)
	if d.f == 4 || len(data) == 0 || d.ip[6] == TCP {
		return fake[min(8, len(data)):]
	}
	return append([]byte{TCP, 0, 1, 4, 0, 0, 0, 0}, fake...)
}

// encapsulate puts the packet into a tunnel's: VXLAN, Geneve or IP in IP, to the node of the target.
func (g *Generator) encapsulate(d *draft) {
	node := g.Model.node(d.to.Node)
	if node == nil {
		return
	}
	f := pick(g.R, 4, 6)
	src, dst := g.address(d.From, f), g.address(node, f)
	if !d.From.Pod && g.odds(40) {
		src = g.address(pick(g.R, g.Model.Places...), f)
	}
	if !src.IsValid() || !dst.IsValid() {
		return
	}
	ethernet := []byte{2, 0x66, 0, 0, 0, 9, 2, 0x66, 0, 0, 0, 8}
	ethernet = append(ethernet, map[int][]byte{4: {8, 0}, 6: {0x86, 0xdd}}[d.f]...)
	inner := append(ethernet, d.ip...)
	switch g.R.IntN(4) {
	case 0, 1:
		d.Kind += ", in VXLAN"
		d.ip = datagram(src, dst, 8472, append([]byte{8, 0, 0, 0, 0, 0, pick[byte](g.R, 1, 1, 1, 0, 2), 0}, inner...))
	case 2:
		d.Kind += ", in Geneve"
		d.ip = datagram(src, dst, 6081, append([]byte{0, 0, 0x65, 0x58, 0, 0, pick[byte](g.R, 0, 1), 0}, inner...))
	default:
		d.Kind += ", in IP"
		d.ip = wrap(src, dst, map[int]byte{4: 4, 6: 41}[d.f], d.ip)
	}
	d.Outer = src
}

// datagram is a UDP datagram without a checksum; over IPv6 tunnels take those, too.
func datagram(src, dst netip.Addr, port uint16, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, 50000)
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	return wrap(src, dst, UDP, append(append(b, 0, 0), payload...))
}

// wrap puts an IP header before a payload.
func wrap(src, dst netip.Addr, proto byte, payload []byte) []byte {
	if src.Is6() {
		b := []byte{0x60, 0, 0, 0, byte(len(payload) >> 8), byte(len(payload)), proto, 64}
		return append(append(append(b, src.AsSlice()...), dst.AsSlice()...), payload...)
	}
	b := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, proto, 0, 0}
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(payload)))
	sum4(b)
	return append(b, payload...)
}
