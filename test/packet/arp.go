package packet

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// arp is an ARP packet for Ethernet and IPv4, RFC 826.
type arp struct {
	op       uint16
	sha, tha [6]byte
	spa, tpa netip.Addr
}

const (
	arpLen     = 28
	arpRequest = 1
	arpReply   = 2
)

func (*arp) etherType() uint16 { return typeARP }

func (a *arp) encode(inner []byte, _ place) ([]byte, error) {
	b := []byte{0, 1, typeIP4 >> 8, typeIP4 & 0xff, 6, 4}
	b = binary.BigEndian.AppendUint16(b, a.op)
	b = append(append(b, a.sha[:]...), a.spa.AsSlice()...)
	b = append(append(b, a.tha[:]...), a.tpa.AsSlice()...)
	return append(b, inner...), nil
}

// parseARP reads
//
//	arp who-has TARGET tell SENDER [sha MAC] [tha MAC]
//	arp SENDER is-at MAC [to TARGET] [tha MAC]
//
// The sender of a request has the MAC of its name, or of the frame's source;
// the target of a reply that of its name, or of the frame's destination.
func (c *parser) parseARP(l *line) {
	a := &arp{spa: netip.IPv4Unspecified(), tpa: netip.IPv4Unspecified()}
	if l.take("who-has") {
		a.op = arpRequest
		a.tpa = l.addr(IPv4, c.names)
		if !l.take("tell") {
			l.fail("tell is missing")
		}
		a.sha = c.arpMAC(l.peek(), func(e *eth) [6]byte { return e.src })
		a.spa = l.addr(IPv4, c.names)
	} else {
		a.op = arpReply
		a.spa = l.addr(IPv4, c.names)
		if !l.take("is-at") {
			l.fail("is-at is missing")
		}
		a.sha = l.mac(c.names)
		if l.take("to") {
			a.tha = c.arpMAC(l.peek(), func(e *eth) [6]byte { return e.dst })
			a.tpa = l.addr(IPv4, c.names)
		}
	}
	l.fields("arp", func(w string) bool {
		switch w {
		case "sha":
			a.sha = l.mac(c.names)
		case "tha":
			a.tha = l.mac(c.names)
		case "op":
			a.op = l.u16()
		default:
			return false
		}
		return true
	})
	c.add(a)
}

func (c *parser) arpMAC(word string, of func(*eth) [6]byte) [6]byte {
	if name, ok := c.names.lookup(word); ok && len(name.MAC) == 6 {
		return [6]byte(name.MAC)
	}
	if c.eth != nil {
		return of(c.eth)
	}
	return [6]byte{}
}

func (d *decoder) arp(b []byte, s scope) {
	if len(b) < arpLen || string(b[:6]) != "\x00\x01\x08\x00\x06\x04" {
		d.raw(b, s)
		return
	}
	l := d.start("arp")
	l.etherType = typeARP
	op := binary.BigEndian.Uint16(b[6:])
	sha, spa := b[8:14], d.names.addr(netip.AddrFrom4([4]byte(b[14:18])))
	tha, tpa := b[18:24], d.names.addr(netip.AddrFrom4([4]byte(b[24:28])))
	if op == arpReply {
		l.add("sender", spa, spa+" is-at")
		l.add("sha", d.names.mac(sha), d.names.mac(sha))
		l.add("target", tpa, "to "+tpa)
		d.arpMAC(l, "tha", tha, tpa)
		l.num("op", int(op), arpReply)
	} else {
		l.add("target", tpa, "who-has "+tpa)
		l.add("sender", spa, "tell "+spa)
		d.arpMAC(l, "sha", sha, spa)
		l.add("tha", d.names.mac(tha), "")
		if string(tha) != "\x00\x00\x00\x00\x00\x00" {
			l.fields[len(l.fields)-1].words = "tha " + d.names.mac(tha)
		}
		l.num("op", int(op), arpRequest)
	}
	d.trailer(b[arpLen:])
}

// arpMAC adds the MAC that goes with the address that word stands for. It is
// written unless it is the MAC of the same name.
func (d *decoder) arpMAC(l *layer, name string, mac []byte, word string) {
	words := name + " " + d.names.mac(mac)
	if of, ok := d.names.macOf(word); ok && of == [6]byte(mac) {
		words = ""
	}
	l.add(name, net.HardwareAddr(mac).String(), words)
}

// trailer adds what follows the end of a packet within its frame.
func (d *decoder) trailer(b []byte) { d.pad(b) }
