package packet

import (
	"encoding/binary"
	"fmt"
)

// udp is a UDP header, RFC 768.
type udp struct {
	sport, dport uint16
	length       override
	sum          sumWords
}

const (
	udpLen = 8

	portVXLAN      = 4789 // RFC 7348
	portVXLANLinux = 8472 // Linux' default, and Cilium's
	portGeneve     = 6081 // RFC 8926
)

func (*udp) proto() uint8 { return protoUDP }

func (u *udp) encode(inner []byte, p place) ([]byte, error) {
	length := u.length.or(udpLen + len(inner))
	if length > 0xffff {
		return nil, fmt.Errorf("udp: length %d needs more than 16 bits", length)
	}
	b := appendPorts(nil, u.sport, u.dport)
	b = binary.BigEndian.AppendUint16(b, uint16(length))
	b = append(append(b, 0, 0), inner...)
	binary.BigEndian.PutUint16(b[6:], u.sum.or16(udpSum(b, p.ip)))
	return b, nil
}

// udpSum is never zero, which would mean that there is none.
func udpSum(b []byte, ip pseudo) uint16 {
	if sum := ip.checksum(b, 6, protoUDP); sum != 0 {
		return sum
	}
	return 0xffff
}

// parseUDP reads "udp SPORT > DPORT [len N] [nosum|badsum|sum N]".
func (c *parser) parseUDP(l *line) {
	u := &udp{}
	u.sport, u.dport = l.ports()
	l.fields("udp", func(w string) bool {
		switch w {
		case "len":
			u.length = l.number(16)
		case "nosum":
			u.sum.value = override{set: true}
		default:
			return u.sum.take(l, w, 16)
		}
		return true
	})
	c.add(u)
}

func (d *decoder) udp(b []byte, s scope) {
	if len(b) < udpLen {
		d.raw(b, s)
		return
	}
	l := d.startPorts("udp", protoUDP, b)
	length := int(binary.BigEndian.Uint16(b[4:]))
	l.num("len", length, len(b))
	s.partial = s.partial || length > len(b)
	sum := binary.BigEndian.Uint16(b[6:])
	switch {
	case sum == 0:
		f := field{name: "sum", value: "none", words: "nosum", sum: unknownSum}
		l.fields = append(l.fields, f)
	default:
		l.checksum(sum, udpSum(b, s.ip), s)
	}
	if d.full() {
		d.raw(b[udpLen:], s)
		return
	}
	switch binary.BigEndian.Uint16(b[2:]) {
	case portVXLAN, portVXLANLinux:
		d.vxlan(b[udpLen:], s)
	case portGeneve:
		d.geneve(b[udpLen:], s)
	default:
		d.raw(b[udpLen:], s)
	}
}
