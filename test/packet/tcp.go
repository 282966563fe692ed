package packet

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// tcp is a TCP header, RFC 9293 section 3.1.
type tcp struct {
	sport, dport uint16
	seq, ack     uint32
	flags        uint16
	win, urg     uint16
	opts         []byte
	doff         override
	rsv          uint8
	sum          sumWords
	cut          bool
}

const (
	tcpLen    = 20
	tcpCutLen = 8 // what an ICMP error of RFC 792 quotes of a TCP header

	defaultWindow = 65535

	optNop, optMSS, optScale, optSACK, optTime = 1, 2, 3, 4, 8
)

// tcpFlags is the flags' letters in canonical order, each with its bit: N is
// AE, the former NS.
func tcpFlags() string { return "SFRPUAECN" }

func tcpFlagBit(letter byte) uint16 {
	switch letter {
	case 'F':
		return 1
	case 'S':
		return 1 << 1
	case 'R':
		return 1 << 2
	case 'P':
		return 1 << 3
	case 'A':
		return 1 << 4
	case 'U':
		return 1 << 5
	case 'E':
		return 1 << 6
	case 'C':
		return 1 << 7
	}
	return 1 << 8
}

func (*tcp) proto() uint8 { return protoTCP }

func (t *tcp) encode(inner []byte, p place) ([]byte, error) {
	opts := t.opts
	for len(opts)%4 != 0 {
		opts = append(opts[:len(opts):len(opts)], 0)
	}
	if len(opts) > 40 {
		return nil, fmt.Errorf("tcp: %d bytes of options, at most 40 fit", len(opts))
	}
	doff := t.doff.or((tcpLen + len(opts)) / 4)
	b := appendPorts(nil, t.sport, t.dport)
	b = binary.BigEndian.AppendUint32(b, t.seq)
	b = binary.BigEndian.AppendUint32(b, t.ack)
	b = binary.BigEndian.AppendUint16(b, uint16(doff)<<12|uint16(t.rsv)<<9|t.flags)
	b = binary.BigEndian.AppendUint16(b, t.win)
	b = binary.BigEndian.AppendUint16(b, 0)
	b = binary.BigEndian.AppendUint16(b, t.urg)
	b = append(append(b, opts...), inner...)
	binary.BigEndian.PutUint16(b[16:], t.sum.or16(p.ip.checksum(b, 16, protoTCP)))
	if t.cut {
		b = b[:tcpCutLen]
	}
	return b, nil
}

func appendPorts(b []byte, sport, dport uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, sport), dport)
}

func (l *line) ports() (sport, dport uint16) {
	sport = l.u16()
	l.arrow()
	return sport, l.u16()
}

// parseTCP reads "tcp SPORT > DPORT [FLAGS] [seq N] [ack N] [win N] …".
func (c *parser) parseTCP(l *line, last bool) {
	t := &tcp{win: defaultWindow}
	t.sport, t.dport = l.ports()
	if w := l.peek(); w != "" && strings.Trim(w, tcpFlags()) == "" {
		for i := range len(w) {
			t.flags |= tcpFlagBit(w[i])
		}
		l.next()
	}
	l.fields("tcp", func(w string) bool {
		switch w {
		case "seq":
			t.seq = l.u32()
		case "ack":
			t.ack = l.u32()
		case "win":
			t.win = l.u16()
		case "urg":
			t.urg = l.u16()
		case "rsv":
			t.rsv = uint8(l.number(3).value)
		case "doff":
			t.doff = l.number(4)
		case "cut":
			if t.cut = l.number(8).value == tcpCutLen; !t.cut || !last {
				l.failLast("only the last layer can be cut, and to %d bytes", tcpCutLen)
			}
		default:
			return t.option(l, w) || t.sum.take(l, w, 16)
		}
		return true
	})
	c.add(t)
}

// option takes the words of a TCP option, in the order they have in the
// packet.
func (t *tcp) option(l *line, w string) bool {
	switch w {
	case "nop":
		t.opts = append(t.opts, optNop)
	case "mss":
		t.opts = binary.BigEndian.AppendUint16(append(t.opts, optMSS, 4), l.u16())
	case "wscale":
		t.opts = append(t.opts, optScale, 3, l.u8())
	case "sackok":
		t.opts = append(t.opts, optSACK, 2)
	case "ts":
		t.opts = binary.BigEndian.AppendUint32(append(t.opts, optTime, 10), l.u32())
		t.opts = binary.BigEndian.AppendUint32(t.opts, l.u32())
	case "opts":
		t.opts = append(t.opts, l.hex()...)
	default:
		return false
	}
	return true
}

func (d *decoder) tcp(b []byte, s scope) {
	if len(b) < tcpLen {
		d.tcpCut(b, s)
		return
	}
	l := d.startPorts("tcp", protoTCP, b)
	bits := binary.BigEndian.Uint16(b[12:])
	letters := ""
	for i := range len(tcpFlags()) {
		if bits&tcpFlagBit(tcpFlags()[i]) != 0 {
			letters += tcpFlags()[i : i+1]
		}
	}
	value := letters
	if value == "" {
		value = "none"
	}
	l.add("flags", value, letters)
	l.num("seq", int(binary.BigEndian.Uint32(b[4:])), 0)
	l.num("ack", int(binary.BigEndian.Uint32(b[8:])), 0)
	l.num("win", int(binary.BigEndian.Uint16(b[14:])), defaultWindow)
	l.num("urg", int(binary.BigEndian.Uint16(b[18:])), 0)
	l.num("rsv", int(bits>>9&7), 0)
	doff := int(bits >> 12)
	n := doff * 4
	if n < tcpLen || n > len(b) {
		n = tcpLen
	}
	l.num("doff", doff, n/4)
	l.tcpOptions(b[tcpLen:n])
	l.checksum(binary.BigEndian.Uint16(b[16:]), s.ip.checksum(b, 16, protoTCP), s)
	d.raw(b[n:], s)
}

func (d *decoder) tcpCut(b []byte, s scope) {
	if len(b) != tcpCutLen {
		d.raw(b, s)
		return
	}
	l := d.startPorts("tcp", protoTCP, b)
	l.num("seq", int(binary.BigEndian.Uint32(b[4:])), 0)
	l.add("cut", "8", "cut 8")
}

// startPorts begins a layer with two ports.
func (d *decoder) startPorts(kind string, proto int, b []byte) *layer {
	l := d.start(kind)
	l.proto = proto
	l.pair(fmt.Sprint(binary.BigEndian.Uint16(b)), fmt.Sprint(binary.BigEndian.Uint16(b[2:])))
	l.fields[0].name, l.fields[1].name = "sport", "dport"
	return l
}

// tcpOptions adds options as words as far as they are known ones, the rest as
// bytes.
func (l *layer) tcpOptions(b []byte) {
	var words []string
	for len(b) > 0 {
		size := 1
		switch {
		case b[0] == optNop:
			words = append(words, "nop")
		case len(b) >= 4 && b[0] == optMSS && b[1] == 4:
			words, size = append(words, fmt.Sprintf("mss %d", binary.BigEndian.Uint16(b[2:]))), 4
		case len(b) >= 3 && b[0] == optScale && b[1] == 3:
			words, size = append(words, fmt.Sprintf("wscale %d", b[2])), 3
		case len(b) >= 2 && b[0] == optSACK && b[1] == 2:
			words, size = append(words, "sackok"), 2
		case len(b) >= 10 && b[0] == optTime && b[1] == 10:
			words, size = append(words, fmt.Sprintf("ts %d %d", binary.BigEndian.Uint32(b[2:]),
				binary.BigEndian.Uint32(b[6:]))), 10
		case len(b) < 4 && strings.Trim(string(b), "\x00") == "":
			size = len(b) // padding
		default:
			words, size = append(words, fmt.Sprintf("opts %x", b)), len(b)
		}
		b = b[size:]
	}
	text := strings.Join(words, " ")
	l.add("options", text, text)
}
