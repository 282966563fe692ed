package message

import (
	"encoding/binary"
	"net/netip"
)

// Numbers of IP.
const (
	ProtoUDP = 17

	udpLen       = 8
	ip4Len       = 20
	ip6Len       = 40
	hopLimit     = 64
	dontFragment = 1 << 14

	extHopByHop    = 0
	extRouting     = 43
	extFragment    = 44
	extDestination = 60
	maxExtensions  = 8
)

// Fragment says which part of a packet a packet is.
type Fragment uint8

// Later fragments have no ports.
const (
	Whole Fragment = iota
	FirstFragment
	LaterFragment
)

// Packet is an IP packet with a UDP datagram.
type Packet struct {
	Source, Destination netip.AddrPort
	Fragment            Fragment
	// Payload is the part of the packet behind the UDP header. It is empty unless the packet is whole.
	Payload []byte

	raw []byte
}

// ReadPacket reads a packet without a link-layer header, or the part of a fragment that has ports. Checksums are not
// verified: those of packets of this node may not have been computed yet. It returns false if the packet is not UDP, or
// contradicts itself.
func ReadPacket(b []byte) (Packet, bool) {
	if len(b) == 0 {
		return Packet{}, false
	}
	switch b[0] >> 4 {
	case 4:
		return readIP4(b)
	case 6:
		return readIP6(b)
	}
	return Packet{}, false
}

func readIP4(b []byte) (Packet, bool) {
	if len(b) < ip4Len {
		return Packet{}, false
	}
	header, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if header < ip4Len || total < header || total > len(b) || b[9] != ProtoUDP {
		return Packet{}, false
	}
	const moreAndOffset = 1<<14 - 1
	source, destination := netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	fragment := fragmentOf(binary.BigEndian.Uint16(b[6:])&moreAndOffset, 1<<13)
	return readUDP(b, b[header:total], source, destination, fragment)
}

// fragmentOf is for the bits of offset and of more.
func fragmentOf(bits, more uint16) Fragment {
	switch {
	case bits == 0:
		return Whole
	case bits == more:
		return FirstFragment
	}
	return LaterFragment
}

func readIP6(b []byte) (Packet, bool) {
	if len(b) < ip6Len {
		return Packet{}, false
	}
	total := ip6Len + int(binary.BigEndian.Uint16(b[4:]))
	if total > len(b) {
		return Packet{}, false
	}
	source, destination := netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	next, rest, fragment := b[6], b[ip6Len:total], Whole
	for range maxExtensions {
		if next == ProtoUDP || fragment == LaterFragment {
			return readUDP(b, rest, source, destination, fragment)
		}
		if len(rest) < 8 {
			return Packet{}, false
		}
		size := 8
		switch next {
		case extHopByHop, extRouting, extDestination:
			size += int(rest[1]) * 8
		case extFragment:
			fragment = fragmentOf(binary.BigEndian.Uint16(rest[2:])&^6, 1)
		default:
			return Packet{}, false
		}
		if size > len(rest) {
			return Packet{}, false
		}
		next, rest = rest[0], rest[size:]
	}
	return Packet{}, false
}

func readUDP(raw, b []byte, source, destination netip.Addr, f Fragment) (Packet, bool) {
	if f == LaterFragment {
		p := Packet{Source: netip.AddrPortFrom(source, 0), Destination: netip.AddrPortFrom(destination, 0)}
		p.Fragment = f
		return p, true
	}
	if len(b) < udpLen {
		return Packet{}, false
	}
	p := Packet{raw: raw, Fragment: f}
	p.Source = netip.AddrPortFrom(source, binary.BigEndian.Uint16(b))
	p.Destination = netip.AddrPortFrom(destination, binary.BigEndian.Uint16(b[2:]))
	if f == Whole {
		length := int(binary.BigEndian.Uint16(b[4:]))
		if length < udpLen || length > len(b) {
			return Packet{}, false
		}
		p.Payload = b[udpLen:length]
	}
	return p, true
}

// Reply turns a whole packet into one from its destination to its source. The payload is a part of the packet's own,
// and the packet's memory is used for the reply.
func (p *Packet) Reply(payload []byte) []byte {
	b := p.raw
	length := udpLen + len(payload)
	header := ip4Len
	if b[0]>>4 == 6 {
		header = ip6Len
	}
	b = b[:header+length]
	copy(b[header+udpLen:], payload) // options or extension headers are left out
	udp := b[header:]
	binary.BigEndian.PutUint16(udp, p.Destination.Port())
	binary.BigEndian.PutUint16(udp[2:], p.Source.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(length))
	udp[6], udp[7] = 0, 0
	var sum uint32
	if header == ip4Len {
		sum = reply4(b)
	} else {
		sum = reply6(b, length)
	}
	check := ^fold(add(sum+ProtoUDP+uint32(length), udp))
	if check == 0 {
		check = 0xffff // RFC 768: zero means none
	}
	binary.BigEndian.PutUint16(udp[6:], check)
	return b
}

// reply4 writes the header of a reply, and returns the sum of its addresses.
func reply4(b []byte) uint32 {
	source, destination := [4]byte(b[16:]), [4]byte(b[12:])
	b[0], b[1] = 0x45, 0
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	binary.BigEndian.PutUint16(b[4:], 0)
	binary.BigEndian.PutUint16(b[6:], dontFragment)
	b[8], b[9], b[10], b[11] = hopLimit, ProtoUDP, 0, 0
	copy(b[12:], source[:])
	copy(b[16:], destination[:])
	binary.BigEndian.PutUint16(b[10:], ^fold(add(0, b[:ip4Len])))
	return add(0, b[12:ip4Len])
}

func reply6(b []byte, length int) uint32 {
	source, destination := [16]byte(b[24:]), [16]byte(b[8:])
	binary.BigEndian.PutUint32(b, 6<<28)
	binary.BigEndian.PutUint16(b[4:], uint16(length))
	b[6], b[7] = ProtoUDP, hopLimit
	copy(b[8:], source[:])
	copy(b[24:], destination[:])
	return add(0, b[8:ip6Len])
}

// add adds 16-bit words for the checksum of RFC 1071.
func add(sum uint32, b []byte) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}
