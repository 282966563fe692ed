// Package message reads DNS messages and the packets that carry them, and writes refusals. All work is bounded by the
// length of what is read, and nothing is allocated.
package message

import (
	"encoding/binary"

	"golang.org/x/net/dns/dnsmessage"

	"myelin/l7/dns/pattern"
)

// Sizes and bits of the header (RFC 1035, section 4.1.1, and RFC 4035, section 3.2).
const (
	HeaderLen = 12

	flagResponse  = 1 << 15
	opcodeMask    = 0xf << 11
	flagTruncated = 1 << 9
	flagRecursion = 1 << 8
	flagUnchecked = 1 << 4
	codeMask      = 0xf
)

// MaxQuestions is how many questions of a query are read.
const MaxQuestions = 4

// Header is that of a message.
type Header struct {
	ID        uint16
	Response  bool
	Truncated bool
	Opcode    uint8
	Code      uint8
	Questions int
}

// ReadHeader reads the header of a message; false if the message is too short.
func ReadHeader(m []byte) (Header, bool) {
	if len(m) < HeaderLen {
		return Header{}, false
	}
	flags := binary.BigEndian.Uint16(m[2:])
	return Header{
		ID:        binary.BigEndian.Uint16(m),
		Response:  flags&flagResponse != 0,
		Truncated: flags&flagTruncated != 0,
		Opcode:    uint8(flags & opcodeMask >> 11),
		Code:      uint8(flags & codeMask),
		Questions: int(binary.BigEndian.Uint16(m[4:])),
	}, true
}

// Name is a name in lower case, without the final dot.
type Name struct {
	data   [255]byte
	length uint8
}

// Bytes is the text of the name. A label may contain any character but a dot. The root is empty.
func (n *Name) Bytes() []byte { return n.data[:n.length] }

// String is the name as in a zone file, with a final dot, and characters that patterns do not match as \DDD.
func (n *Name) String() string {
	return string(n.Append(nil))
}

// Append appends what String returns.
func (n *Name) Append(b []byte) []byte {
	for _, c := range n.Bytes() {
		if pattern.Plain(c) || c == '.' {
			b = append(b, c)
			continue
		}
		b = append(b, '\\', '0'+c/100, '0'+c/10%10, '0'+c%10)
	}
	return append(b, '.')
}

// Set takes a name with a final dot.
func (n *Name) set(name *dnsmessage.Name) {
	n.length = name.Length
	if n.length > 0 {
		n.length-- // the final dot
	}
	for i, c := range name.Data[:n.length] {
		n.data[i] = lower(c)
	}
}

// is reports whether n is name, which has a final dot and may have capitals.
func (n *Name) is(name *dnsmessage.Name) bool {
	if name.Length == 0 || name.Length-1 != n.length {
		return false
	}
	for i, c := range name.Data[:n.length] {
		if lower(c) != n.data[i] {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		return c + 'a' - 'A'
	}
	return c
}

// Question is one of a message.
type Question struct {
	Name        Name
	Type, Class uint16
}

// Read reads the question at an offset and returns the offset behind it. Names that are compressed, or have a dot in a
// label, are not understood: what is behind a pointer depends on the reader, and no sender of questions needs one.
func (q *Question) Read(m []byte, offset int) (end int, ok bool) {
	length := 0
	for {
		if offset >= len(m) {
			return 0, false
		}
		size := int(m[offset])
		offset++
		if size == 0 {
			break
		}
		if size > 63 || offset+size > len(m) || length+size+1 > 254 {
			return 0, false
		}
		if length > 0 {
			q.Name.data[length] = '.'
			length++
		}
		for _, c := range m[offset : offset+size] {
			if c == '.' {
				return 0, false
			}
			q.Name.data[length] = lower(c)
			length++
		}
		offset += size
	}
	if offset+4 > len(m) {
		return 0, false
	}
	q.Name.length = uint8(length)
	q.Type, q.Class = binary.BigEndian.Uint16(m[offset:]), binary.BigEndian.Uint16(m[offset+2:])
	return offset + 4, true
}

// Refuse turns a query, whose questions end at an offset, into a response with a code, and returns it. It has the
// questions of the query and nothing else.
func Refuse(m []byte, end int, code uint8) []byte {
	flags := binary.BigEndian.Uint16(m[2:])
	flags = flags&(opcodeMask|flagRecursion|flagUnchecked) | flagResponse | uint16(code)&codeMask
	binary.BigEndian.PutUint16(m[2:], flags)
	clear(m[6:HeaderLen]) // no answers, authorities and additional records
	return m[:end]
}
