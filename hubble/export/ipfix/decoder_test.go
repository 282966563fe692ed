package ipfix

import (
	"encoding/binary"
	"fmt"
)

// collector decodes messages by RFC 7011 alone: it knows nothing of the encoder's templates.
type collector struct {
	templates map[uint16][]element
	messages  []header
	records   []map[uint16][]byte
	optional  []map[uint16][]byte
	options   map[uint16]bool // templates of options
}

type header struct {
	length                 int
	time, sequence, domain uint32
	data                   int // data records
}

type element struct{ id, length uint16 }

func newCollector() *collector {
	return &collector{templates: map[uint16][]element{}, options: map[uint16]bool{}}
}

// read decodes one message.
func (c *collector) read(m []byte) error {
	be := binary.BigEndian
	if len(m) < 16 || be.Uint16(m) != 10 || int(be.Uint16(m[2:])) != len(m) {
		return fmt.Errorf("header %x of %d bytes", m[:min(16, len(m))], len(m))
	}
	h := header{length: len(m), time: be.Uint32(m[4:]), sequence: be.Uint32(m[8:]), domain: be.Uint32(m[12:])}
	for m = m[16:]; len(m) > 0; {
		if len(m) < 4 {
			return fmt.Errorf("%d bytes after the last set", len(m))
		}
		id, length := be.Uint16(m), int(be.Uint16(m[2:]))
		if length < 4 || length > len(m) {
			return fmt.Errorf("set %d of %d bytes, with %d left", id, length, len(m))
		}
		n, err := c.set(id, m[4:length])
		if err != nil {
			return fmt.Errorf("set %d: %w", id, err)
		}
		h.data += n
		m = m[length:]
	}
	c.messages = append(c.messages, h)
	return nil
}

func (c *collector) set(id uint16, body []byte) (data int, err error) {
	switch {
	case id == 2 || id == 3:
		return 0, c.define(id == 3, body)
	case id < 256:
		return 0, fmt.Errorf("reserved")
	}
	elements, ok := c.templates[id]
	if !ok {
		return 0, fmt.Errorf("has no template")
	}
	for len(body) > 0 {
		r := map[uint16][]byte{}
		for _, e := range elements {
			if len(body) < int(e.length) {
				return 0, fmt.Errorf("record ends in element %d", e.id)
			}
			r[e.id], body = body[:e.length], body[e.length:]
		}
		if c.options[id] {
			c.optional = append(c.optional, r)
		} else {
			c.records = append(c.records, r)
		}
		data++
	}
	return data, nil
}

// define reads template records; those of options have a count of scope fields.
func (c *collector) define(options bool, body []byte) error {
	be := binary.BigEndian
	for len(body) > 0 {
		id, count := be.Uint16(body), int(be.Uint16(body[2:]))
		body = body[4:]
		if options {
			if scopes := be.Uint16(body); scopes < 1 || int(scopes) > count {
				return fmt.Errorf("template %d: %d scopes of %d", id, scopes, count)
			}
			body = body[2:]
		}
		var list []element
		for range count {
			e := element{be.Uint16(body), be.Uint16(body[2:])}
			if e.id&0x8000 != 0 || e.length == 0xffff {
				return fmt.Errorf("template %d: element %v is not as expected", id, e)
			}
			list, body = append(list, e), body[4:]
		}
		if have, ok := c.templates[id]; ok && fmt.Sprint(have) != fmt.Sprint(list) {
			return fmt.Errorf("template %d changes from %v to %v", id, have, list)
		}
		c.templates[id], c.options[id] = list, options
	}
	return nil
}
