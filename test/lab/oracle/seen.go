// Package oracle says of packets that were received whether policies allow them. It knows the sender of each packet,
// what a receiver makes of it, and which flows are open; policies it leaves to package reference.
package oracle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
)

// Protocols by their numbers in IP.
const (
	ICMP   = 1
	TCP    = 6
	UDP    = 17
	ICMPv6 = 58
	SCTP   = 132

	hopByHop    = 0
	routing     = 43
	fragment    = 44
	authHeader  = 51
	destOptions = 60
)

// Flow is a packet's source and destination. Of ICMP, DPort is the type, and SPort an echo's identifier.
type Flow struct {
	Src, Dst     netip.Addr
	Proto        uint8
	SPort, DPort uint16
}

// String is as in "10.0.1.2:1000 > 10.0.2.2:80 proto 6".
func (f Flow) String() string {
	src, dst := netip.AddrPortFrom(f.Src, f.SPort), netip.AddrPortFrom(f.Dst, f.DPort)
	return fmt.Sprintf("%s > %s proto %d", src, dst, f.Proto)
}

// reverse is the flow of the answers.
func (f Flow) reverse() Flow {
	r := Flow{Src: f.Dst, Dst: f.Src, Proto: f.Proto, SPort: f.DPort, DPort: f.SPort}
	if f.isICMP() {
		r.SPort, r.DPort = f.SPort, answerType(f.Proto, f.DPort)
	}
	return r
}

func (f Flow) isICMP() bool { return f.Proto == ICMP || f.Proto == ICMPv6 }

// isReply: an ICMP message that answers another one. It begins no flow.
func (f Flow) isReply() bool {
	for _, answer := range answers(f.Proto) {
		if f.isICMP() && answer == f.DPort {
			return true
		}
	}
	return false
}

// answers are the types of answers to ICMP messages, by those of the questions.
func answers(proto uint8) map[uint16]uint16 {
	if proto == ICMPv6 {
		return map[uint16]uint16{128: 129}
	}
	return map[uint16]uint16{8: 0, 13: 14, 15: 16, 17: 18}
}

// answerType is the type of the answer to an ICMP message, and of the question to an answer.
func answerType(proto uint8, kind uint16) uint16 {
	for question, answer := range answers(proto) {
		switch kind {
		case question:
			return answer
		case answer:
			return question
		}
	}
	return kind
}

// Seen is a packet as its receiver has it.
type Seen struct {
	Flow
	// Whole: the ports are the packet's own. Of fragments, and of packets that end before, they are not known.
	Whole    bool
	Fragment bool
	ID       uint32 // of a fragment
	TCPFlags uint8
	// Quoted is the flow of the packet that an ICMP error is about.
	Error  bool
	Quoted Flow
	// Tag is the number of the attempt whose tag is in the packet.
	Tag    uint64
	Tagged bool
}

// tagMagic begins a tag; the number of the attempt follows, and a checksum.
const tagMagic = "\xf7ora"

// tagOf is 16 bytes that only the attempt with this number has.
func tagOf(n uint64) []byte {
	b := binary.BigEndian.AppendUint64([]byte(tagMagic), n)
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
}

// FindTag looks for the tag of an attempt.
func (s *Seen) FindTag(b []byte) {
	i := bytes.Index(b, []byte(tagMagic))
	if i >= 0 && len(b) >= i+16 && bytes.Equal(b[i:i+16], tagOf(binary.BigEndian.Uint64(b[i+4:]))) {
		s.Tag, s.Tagged = binary.BigEndian.Uint64(b[i+4:]), true
	}
}

// ReadFrame reads an Ethernet frame; false if it has no IP packet.
func ReadFrame(b []byte) (Seen, bool) {
	for off := 12; len(b) >= off+2; off += 4 {
		switch binary.BigEndian.Uint16(b[off:]) {
		case 0x8100, 0x88a8:
		case 0x0800, 0x86dd:
			return ReadIP(b[off+2:])
		default:
			return Seen{}, false
		}
	}
	return Seen{}, false
}

// ReadIP reads an IP packet, up to the length that it says.
func ReadIP(b []byte) (s Seen, ok bool) {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		ok = s.read4(b)
	case len(b) >= 40 && b[0]>>4 == 6:
		ok = s.read6(b)
	}
	return s, ok
}

// readFirst reads an IPv4 packet that is a first fragment as if it were whole.
func readFirst(b []byte) (s Seen, ok bool) {
	if len(b) < 20 || b[0]>>4 != 4 || binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
		return s, false
	}
	b = bytes.Clone(b)
	b[6], b[7] = 0, 0
	return ReadIP(b)
}

func (s *Seen) read4(b []byte) bool {
	s.Src, s.Dst = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	s.Proto = b[9]
	header, length := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if header < 20 || length < header || header > len(b) {
		s.FindTag(b)
		return true
	}
	b = b[:min(length, len(b))]
	s.FindTag(b)
	if field := binary.BigEndian.Uint16(b[6:]); field&0x3fff != 0 {
		s.Fragment, s.ID = true, uint32(binary.BigEndian.Uint16(b[4:]))
		return true
	}
	s.ReadTransport(b[header:])
	return true
}

func (s *Seen) read6(b []byte) bool {
	s.Src, s.Dst = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	s.Proto = b[6]
	b = b[40:min(len(b), 40+int(binary.BigEndian.Uint16(b[4:])))]
	s.FindTag(b)
	for {
		length := 0
		switch s.Proto {
		case hopByHop, routing, destOptions:
			if len(b) >= 2 {
				length = int(b[1])*8 + 8
			}
		case authHeader:
			if len(b) >= 2 {
				length = int(b[1])*4 + 8
			}
		case fragment:
			if len(b) < 8 {
				return true
			}
			s.ID = binary.BigEndian.Uint32(b[4:])
			if binary.BigEndian.Uint16(b[2:])&0xfff9 != 0 {
				s.Fragment, s.Proto = true, b[0]
				return true
			}
			length = 8
		default:
			s.ReadTransport(b)
			return true
		}
		if length == 0 || len(b) < length {
			return true
		}
		s.Proto, b = b[0], b[length:]
	}
}

// ReadTransport reads a transport header, whose protocol and addresses are known.
func (s *Seen) ReadTransport(b []byte) {
	if !s.Tagged {
		s.FindTag(b)
	}
	switch {
	case s.Proto == TCP && len(b) >= 14:
		s.TCPFlags = b[13]
	case s.Proto == UDP && len(b) >= 8, s.Proto == SCTP && len(b) >= 12:
	case s.isICMP() && len(b) >= 8:
		s.readICMP(b)
		return
	default:
		s.Whole = s.Proto != TCP && s.Proto != UDP && s.Proto != SCTP && !s.isICMP()
		return
	}
	s.SPort, s.DPort, s.Whole = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:]), true
}

func (s *Seen) readICMP(b []byte) {
	s.Whole, s.DPort = true, uint16(b[0])
	echo := s.Proto == ICMP && (b[0] == 0 || b[0] == 8) || s.Proto == ICMPv6 && (b[0] == 128 || b[0] == 129)
	if echo {
		s.SPort = binary.BigEndian.Uint16(b[4:])
	}
	s.Error = s.Proto == ICMPv6 && b[0] < 128 || s.Proto == ICMP && (b[0] >= 3 && b[0] <= 5 || b[0] == 11 || b[0] == 12)
	if s.Error {
		if quoted, ok := readQuoted(b[8:]); ok {
			s.Quoted = quoted
		}
	}
}

// readQuoted reads the packet in an ICMP error: eight bytes of its transport header are enough.
func readQuoted(b []byte) (Flow, bool) {
	padded := append(bytes.Clone(b), make([]byte, 20)...)
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		binary.BigEndian.PutUint16(padded[2:], uint16(len(padded)))
		padded[6], padded[7] = 0, 0
	case len(b) >= 40 && b[0]>>4 == 6:
		binary.BigEndian.PutUint16(padded[4:], uint16(len(padded)-40))
	default:
		return Flow{}, false
	}
	s, ok := ReadIP(padded)
	return s.Flow, ok
}
