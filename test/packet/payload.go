package packet

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

const (
	payloadKind = "payload"
	padKind     = "pad"

	// maxBytes is the longest frame that Parse makes.
	maxBytes = 128 << 10

	// minPattern is the length from which Format writes bytes of the
	// pattern as "len N"; shorter ones are more readable as they are.
	minPattern = 9
)

// payload is bytes without a structure.
type payload []byte

func (p payload) encode(inner []byte, _ place) ([]byte, error) {
	return append(append([]byte{}, p...), inner...), nil
}

// pattern is n bytes that count up from zero, modulo 256.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// parsePayload reads "text", hex:0011, or len N. The first word is taken.
func (c *parser) parsePayload(l *line) {
	l.pos--
	c.add(payload(l.payload()))
}

func (l *line) payload() []byte {
	w := l.next()
	switch {
	case strings.HasPrefix(w, `"`):
		s, err := strconv.Unquote(w)
		if err != nil {
			l.failLast("not a string")
		}
		return []byte(s)
	case strings.HasPrefix(w, "hex:"):
		b, err := hex.DecodeString(w[len("hex:"):])
		if err != nil {
			l.failLast("not an even number of hexadecimal digits after hex:")
		}
		return b
	case w == "len":
		return pattern(l.number(16).or(0))
	}
	l.failLast("no such layer")
	return nil
}

// parsePad reads "pad N", or "pad" and a payload: bytes after the end of the
// innermost frame's IP packet.
func (c *parser) parsePad(l *line, last bool) {
	if !last {
		l.failLast("only the last layer can be padding")
		return
	}
	c.tailEth = -1
	for i, h := range c.headers {
		if _, ok := h.(*eth); ok {
			c.tailEth = i
		}
	}
	if c.tailEth < 0 {
		c.tailEth = 0
	}
	if w := l.peek(); w != "" && w[0] >= '0' && w[0] <= '9' {
		c.tail = make([]byte, l.number(16).or(0))
		return
	}
	c.tail = l.payload()
}

// raw adds b as a payload, if it isn't empty or the whole packet.
func (d *decoder) raw(b []byte, _ scope) {
	if len(b) == 0 && len(d.layers) > 0 {
		return
	}
	text := payloadText(b)
	d.start(payloadKind).add("bytes", text, text)
}

// pad adds b as padding, if it isn't empty.
func (d *decoder) pad(b []byte) {
	if len(b) == 0 {
		return
	}
	text := "pad " + payloadText(b)
	if strings.Trim(string(b), "\x00") == "" {
		text = fmt.Sprintf("pad %d", len(b))
	}
	d.start(padKind).add("bytes", text, text)
}

func payloadText(b []byte) string {
	if len(b) >= minPattern && len(b) <= 0xffff && string(b) == string(pattern(len(b))) {
		return fmt.Sprintf("len %d", len(b))
	}
	for _, c := range b {
		if c < ' ' || c > '~' {
			return "hex:" + hex.EncodeToString(b)
		}
	}
	return strconv.Quote(string(b))
}
