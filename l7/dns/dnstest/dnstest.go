// Package dnstest makes DNS messages of text, and packets of them, for tests.
package dnstest

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"myelin/test/packet"
)

// Message makes a message, with compressed names.
func Message(text string) ([]byte, error) {
	parts := strings.Split(text, "|")
	h, err := header(strings.Fields(parts[0]))
	if err != nil {
		return nil, fmt.Errorf("make DNS message %q: %w", text, err)
	}
	m := dnsmessage.Message{Header: h}
	var tail []byte
	section := &m.Answers
	for _, part := range parts[1:] {
		words := strings.Fields(part)
		switch {
		case len(words) == 1 && words[0] == "additional":
			section = &m.Additionals
			continue
		case len(words) == 2 && words[0] == "raw":
			tail, err = hex.DecodeString(words[1])
		case len(words) == 2:
			err = question(&m, words)
		default:
			err = record(section, words)
		}
		if err != nil {
			return nil, fmt.Errorf("make DNS message %q: %q: %w", text, part, err)
		}
	}
	b, err := m.Pack()
	return append(b, tail...), err
}

func header(words []string) (h dnsmessage.Header, err error) {
	if len(words) < 2 {
		return h, fmt.Errorf("want a direction and an ID")
	}
	id, err := strconv.ParseUint(words[1], 10, 16)
	h = dnsmessage.Header{ID: uint16(id), Response: words[0] == "response", RecursionDesired: true}
	for i := 2; err == nil && i < len(words); i++ {
		var n uint64
		switch words[i] {
		case "tc":
			h.Truncated = true
			continue
		case "code", "opcode":
			if i+1 == len(words) {
				return h, fmt.Errorf("%s: want a number", words[i])
			}
			if n, err = strconv.ParseUint(words[i+1], 10, 4); words[i] == "code" {
				h.RCode = dnsmessage.RCode(n)
			} else {
				h.OpCode = dnsmessage.OpCode(n)
			}
			i++
		default:
			err = fmt.Errorf("unknown word %q", words[i])
		}
	}
	return h, err
}

func question(m *dnsmessage.Message, words []string) error {
	name, err := fullName(words[0])
	if err != nil {
		return err
	}
	kind, err := typeOf(words[1])
	m.Questions = append(m.Questions, dnsmessage.Question{Name: name, Type: kind, Class: dnsmessage.ClassINET})
	return err
}

func fullName(text string) (dnsmessage.Name, error) {
	if !strings.HasSuffix(text, ".") {
		text += "."
	}
	return dnsmessage.NewName(text)
}

func typeOf(word string) (dnsmessage.Type, error) {
	for t := range dnsmessage.Type(256) {
		if t.String() == "Type"+word {
			return t, nil
		}
	}
	return 0, fmt.Errorf("unknown type %q", word)
}

func record(section *[]dnsmessage.Resource, words []string) error {
	if len(words) != 4 {
		return fmt.Errorf("want a name, a TTL, a type and data")
	}
	name, err := fullName(words[0])
	if err != nil {
		return err
	}
	ttl, err := strconv.ParseUint(words[1], 10, 32)
	if err != nil {
		return err
	}
	var r dnsmessage.Resource
	r.Header = dnsmessage.ResourceHeader{Name: name, TTL: uint32(ttl), Class: dnsmessage.ClassINET}
	switch words[2] {
	case "A", "AAAA":
		addr, err := netip.ParseAddr(words[3])
		switch {
		case err != nil:
			return err
		case addr.Is4():
			r.Body = &dnsmessage.AResource{A: addr.As4()}
		default:
			r.Body = &dnsmessage.AAAAResource{AAAA: addr.As16()}
		}
	case "CNAME":
		target, err := fullName(words[3])
		if err != nil {
			return err
		}
		r.Body = &dnsmessage.CNAMEResource{CNAME: target}
	case "TXT":
		r.Body = &dnsmessage.TXTResource{TXT: []string{words[3]}}
	default:
		return fmt.Errorf("unknown type %q", words[2])
	}
	*section = append(*section, r)
	return nil
}

// UDP makes an IP packet of a payload.
func UDP(source, destination netip.AddrPort, payload []byte) []byte {
	family := packet.IPv4
	if source.Addr().Is6() {
		family = packet.IPv6
	}
	text := fmt.Sprintf("ip %s > %s | udp %d > %d | hex:%x", source.Addr(), destination.Addr(), source.Port(),
		destination.Port(), payload)
	b, err := packet.ParseIP(text, family, nil)
	if err != nil {
		panic(fmt.Sprintf("make packet %q: %v", text, err))
	}
	return b
}

// Framed is a message with its length in front, for TCP.
func Framed(m []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(m))), m...)
}
