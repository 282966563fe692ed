// Package packet writes packets as text and reads them back, so that a packet
// test is a table of lines that anybody can read:
//
//	eth pod1 > gw | ip pod1 > pod2 ttl 64 | tcp 40000 > 80 S seq 1 | "hello"
//
// Layers are separated by "|". Lengths, protocol numbers and checksums are
// computed; each can be overridden. The README has the whole grammar.
//
// Names such as pod1 stand for a MAC, an IPv4 and an IPv6 address, and the
// layer "ip" is of the family the test runs for, so one line serves both.
package packet

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// maxLayers bounds what Format decodes; what lies deeper is shown as bytes.
const maxLayers = 32

// Parse encodes text as an Ethernet frame. "ip" and "icmp" in text are of
// family f, words in place of an address are looked up in names.
//
// The text has to begin with an eth layer, or be a payload alone. An error
// names the layer and the word that is wrong.
func Parse(text string, f Family, names Names) ([]byte, error) {
	c, err := parse(text, f, names)
	if err != nil {
		return nil, err
	}
	switch c.headers[0].(type) {
	case *eth, payload:
	default:
		return nil, fmt.Errorf("parse packet %q: a frame begins with eth", text)
	}
	return c.encode()
}

// ParseIP is Parse for a packet without a link layer: text has to begin with
// ip, ip4 or ip6, or be a payload alone.
func ParseIP(text string, f Family, names Names) ([]byte, error) {
	c, err := parse(text, f, names)
	if err != nil {
		return nil, err
	}
	switch c.headers[0].(type) {
	case *ip4, *ip6, payload:
	default:
		return nil, fmt.Errorf("parse packet %q: a packet without a link layer begins with ip", text)
	}
	return c.encode()
}

// Format writes a frame as text, in a canonical form: Parse(Format(b)) is b
// for every b, whatever the family given to Parse, since the text says ip4 or
// ip6. Whatever can't be said in words is written as bytes.
func Format(frame []byte, names Names) string {
	return format(frame, names, (*decoder).eth, Parse)
}

// FormatIP is Format for a packet without a link layer, the inverse of ParseIP.
func FormatIP(pkt []byte, names Names) string {
	return format(pkt, names, (*decoder).quoted, ParseIP)
}

type decodeFunc func(*decoder, []byte, scope)

func format(b []byte, names Names, first decodeFunc, parse func(string, Family, Names) ([]byte, error)) string {
	// Undecodable layers are left as bytes, the innermost first, until the
	// text says exactly what the bytes say.
	for depth := maxLayers; depth > 0; {
		layers := decode(b, names, first, depth)
		text := layersText(layers)
		if back, err := parse(text, IPv4, names); err == nil && bytes.Equal(back, b) {
			return text
		}
		depth = min(depth, len(layers)) - 1
	}
	return layersText(decode(b, names, (*decoder).raw, maxLayers))
}

// header is one layer of a packet as it was written.
type header interface {
	// encode returns the layer's bytes followed by inner, the bytes of
	// everything within it.
	encode(inner []byte, p place) ([]byte, error)
}

// place is where in a packet a header stands.
type place struct {
	next header // nil for the innermost
	ip   pseudo // of the nearest IP header outside
}

// parser collects the headers of a packet.
type parser struct {
	family  Family
	names   Names
	headers []header
	ip      pseudo // of the nearest IP header so far
	eth     *eth   // nearest Ethernet header so far

	tail     []byte // bytes after the innermost frame's end
	tailEth  int    // index of the frame that tail belongs to
	truncate override
}

func (c *parser) add(h header) { c.headers = append(c.headers, h) }

func parse(text string, f Family, names Names) (*parser, error) {
	if f != IPv4 && f != IPv6 {
		return nil, fmt.Errorf("parse packet %q: family %d is neither IPv4 nor IPv6", text, f)
	}
	lines, err := split(text)
	if err != nil {
		return nil, fmt.Errorf("parse packet %q: %w", text, err)
	}
	c := &parser{family: f, names: names}
	if lines, err = c.takeTruncate(lines); err != nil {
		return nil, fmt.Errorf("parse packet %q: %w", text, err)
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("parse packet %q: no layers", text)
	}
	for i, l := range lines {
		last := i == len(lines)-1
		c.layer(l, last)
		if l.err == nil && l.more() {
			l.fail("unexpected")
		}
		if l.err != nil {
			return nil, fmt.Errorf("parse packet %q: layer %d: %w", text, i+1, l.err)
		}
	}
	if len(c.headers) == 0 {
		return nil, fmt.Errorf("parse packet %q: nothing but padding", text)
	}
	return c, nil
}

// takeTruncate removes a final "truncate N" from the text.
func (c *parser) takeTruncate(lines []*line) ([]*line, error) {
	if len(lines) == 0 {
		return lines, nil
	}
	l := lines[len(lines)-1]
	n := len(l.words)
	if n < 2 || l.words[n-2].text != "truncate" {
		return lines, nil
	}
	l.pos = n - 2
	l.next()
	c.truncate = l.number(17)
	if l.err != nil {
		return nil, l.err
	}
	l.words, l.pos = l.words[:n-2], 0
	if len(l.words) == 0 {
		lines = lines[:len(lines)-1]
	}
	return lines, nil
}

func (c *parser) layer(l *line, last bool) {
	switch kind := l.next(); kind {
	case "eth":
		c.parseEth(l)
	case "vlan", "qinq":
		c.parseVLAN(l, kind)
	case "arp":
		c.parseARP(l)
	case "ip", "ip4", "ip6":
		c.parseIP(l, kind)
	case "hbh", "dstopts", "routing", "frag", "esp", "ah":
		c.parseExtension(l, kind)
	case "tcp":
		c.parseTCP(l, last)
	case "udp":
		c.parseUDP(l)
	case "sctp":
		c.parseSCTP(l)
	case "icmp", "icmp4", "icmp6":
		c.parseICMP(l, kind)
	case "nd":
		c.parseND(l)
	case "mld":
		c.parseMLD(l)
	case "igmp":
		c.parseIGMP(l)
	case "vxlan":
		c.parseVXLAN(l)
	case "geneve":
		c.parseGeneve(l)
	case "pad":
		c.parsePad(l, last)
	default:
		c.parsePayload(l)
	}
}

func (c *parser) encode() ([]byte, error) {
	ips := make([]pseudo, len(c.headers))
	var ip pseudo
	for i, h := range c.headers {
		ips[i] = ip
		if h, ok := h.(interface{ pseudo() pseudo }); ok {
			ip = h.pseudo()
		}
	}
	var b []byte
	var next header
	for i := len(c.headers) - 1; i >= 0; i-- {
		var err error
		if b, err = c.headers[i].encode(b, place{next: next, ip: ips[i]}); err != nil {
			return nil, fmt.Errorf("encode packet: %w", err)
		}
		if len(b) > maxBytes {
			return nil, errors.New("encode packet: longer than 128 KiB")
		}
		if len(c.tail) > 0 && i == c.tailEth {
			b = append(b, c.tail...)
		}
		next = c.headers[i]
	}
	if c.truncate.set {
		b = b[:min(len(b), int(c.truncate.value))]
	}
	return b, nil
}

func layersText(layers []*layer) string {
	var texts []string
	for _, l := range layers {
		texts = append(texts, l.text())
	}
	return strings.Join(texts, " | ")
}
