package labtest

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// fakeACK is a TCP header of an old connection's answer, from a server's port to a client's.
func fakeACK(dport uint16) []byte {
	b := binary.BigEndian.AppendUint16(nil, 1000)
	b = binary.BigEndian.AppendUint16(b, dport)
	b = append(b, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0)
	return b
}

// optionsHeader is a destination options header of eight bytes with nothing in it (RFC 8200 4.6).
func optionsHeader(next byte) []byte { return []byte{next, 0, 1, 4, 0, 0, 0, 0} }

// hiddenHeader sends an IPv6 packet in two fragments. Where the first one ends the packet goes on in padding, as if it
// were an old connection's; the second one, which claims to be of TCP, has the real rest.
func hiddenHeader(proto byte, l4 string) func(*shot) {
	return func(s *shot) {
		pad := append(optionsHeader(protoTCP), fakeACK(40000)...)
		rest := append(optionsHeader(proto), s.l4(l4, s.payload())...)
		s.send(
			s.text(s.eth(), s.ip(), fmt.Sprintf("frag %d mf proto 60", s.id),
				hexLayer(optionsHeader(60)), "pad "+hexLayer(pad)),
			s.text(s.eth(), s.ip(), fmt.Sprintf("frag %d off 8 proto 6", s.id), hexLayer(rest)))
	}
}

// tinyFragment sends a SYN over IPv4 of which the first fragment has eight bytes; the flags after them, in the padding,
// are an ACK's.
func tinyFragment(s *shot) {
	syn := s.l4(fmt.Sprintf("tcp 1000 > %d S seq 1", witnessPort), s.payload())
	fake := fakeACK(witnessPort)[8:]
	s.send(
		s.text(s.eth(), s.ip()+fmt.Sprintf(" id %d mf proto 6", s.id&0xffff), hexLayer(syn[:8]), "pad "+hexLayer(fake)),
		s.text(s.eth(), s.ip()+fmt.Sprintf(" id %d off 8 proto 6", s.id&0xffff), hexLayer(syn[8:])))
}

// cutHeader sends a packet that ends within its TCP header, behind the sequence number: that is what tells it from
// others.
func cutHeader(s *shot) {
	head := s.l4(fmt.Sprintf("tcp 1000 > %d A seq %d", witnessPort, binary.BigEndian.Uint32(s.tag[8:])))[:8]
	s.tag = head
	proto := "proto 6"
	if s.f == 6 {
		s.send(s.text(s.eth(), s.ip(), "dstopts proto 6", hexLayer(head)))
		return
	}
	s.send(s.text(s.eth(), s.ip()+" "+proto, hexLayer(head)))
}

// cutHeaderPadded does the same, and what is missing stands in the padding.
func cutHeaderPadded(s *shot) {
	head := s.l4(fmt.Sprintf("tcp 1000 > %d A seq %d", witnessPort, binary.BigEndian.Uint32(s.tag[8:])))
	s.tag = head[:8]
	proto := "proto 6"
	if s.f == 6 {
		s.send(s.text(s.eth(), s.ip(), "dstopts proto 6", hexLayer(head[:8]), "pad "+hexLayer(head[8:])))
		return
	}
	s.send(s.text(s.eth(), s.ip()+" "+proto, hexLayer(head[:8]), "pad "+hexLayer(head[8:])))
}

// loneSegment sends a TCP segment of no connection, between these ports.
func loneSegment(sport, dport int, flags string) func(*shot) {
	return func(s *shot) {
		s.plain(fmt.Sprintf("tcp %d > %d %s seq 7 ack 9", sport, dport, flags), s.payload())
	}
}

// quotingError opens a flow that is allowed, by datagrams from the shot's place to another, and sends an ICMP error
// about it to the shot's target.
func quotingError(kind, allowed string) func(*shot) {
	return func(s *shot) {
		flow := *s
		flow.to = allowed
		udp := fmt.Sprintf("udp %d > %d", 20000+s.shots%1000, witnessPort)
		for range 3 {
			flow.plain(udp, `"allowed"`)
		}
		more := make([]byte, 1200)
		copy(more[600:], s.tag)
		s.plain("icmp "+kind+" quote +1208", flow.ip(), udp, "hex:"+hex.EncodeToString(more))
	}
}

// fragmentedError has the shot's target send an ICMP error in two fragments, of which the later one must open no flow;
// what answers it so is no error that anybody is owed.
func fragmentedError(s *shot) {
	back := s.arena.shot(s.t, s.f, s.to, s.from)
	for _, each := range []*shot{back, s} {
		id, l4 := each.id&0xffff, each.l4("icmp unreachable port", each.payload())
		first, later := fmt.Sprintf(" id %d mf proto 1", id), fmt.Sprintf(" id %d off 8 proto 1", id)
		if s.f == 6 {
			first, later = fmt.Sprintf(" | frag %d mf proto 58", id), fmt.Sprintf(" | frag %d off 8 proto 58", id)
		}
		each.send(each.text(each.eth(), each.ip()+first, hexLayer(l4[:8])),
			each.text(each.eth(), each.ip()+later, hexLayer(l4[8:])))
	}
}
