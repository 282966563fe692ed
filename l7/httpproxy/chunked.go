package httpproxy

import "bytes"

const (
	maxChunkLine = 4096    // of a size with its extensions
	maxTrailers  = 8 << 10 // of all trailer lines together
)

// chunks follows a body in chunks (RFC 9112, section 7.1). It writes each chunk's size in its shortest form and
// removes extensions, so that whatever reads the result finds the same ends.
type chunks struct {
	state     chunkState
	remaining int64 // of the chunk's data
	trailers  int   // bytes of trailer lines
}

type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkData
	chunkDataEnd
	chunkTrailer
	chunkDone
)

// next takes bytes from b and writes what is to be forwarded to the beginning of b. It stops at the end of the body,
// or where a line is incomplete: the rest must come again, with more.
func (c *chunks) next(b []byte) (out, in int, ok bool) {
	for in < len(b) && c.state != chunkDone {
		if c.state == chunkData {
			n := int(min(c.remaining, int64(len(b)-in)))
			out += copy(b[out:], b[in:in+n])
			in += n
			if c.remaining -= int64(n); c.remaining == 0 {
				c.state = chunkDataEnd
			}
			continue
		}
		if c.state == chunkDataEnd && len(b)-in == 1 {
			return out, in, b[in] == '\r'
		}
		end := bytes.IndexByte(b[in:], '\n') + 1
		if end == 0 {
			return out, in, len(b)-in <= maxChunkLine
		}
		text, _, valid := line(b[in : in+end])
		if !valid || end > maxChunkLine {
			return out, in, false
		}
		keep, valid := c.line(text)
		if !valid {
			return out, in, false
		}
		// The line is written over itself: its shortest form is not longer.
		out += copy(b[out:], keep)
		out += copy(b[out:], "\r\n")
		in += end
	}
	return out, in, true
}

// line takes a line other than data, without its end, and returns the part that is forwarded.
func (c *chunks) line(text []byte) ([]byte, bool) {
	switch c.state {
	case chunkDataEnd:
		c.state = chunkSize
		return text, len(text) == 0
	case chunkTrailer:
		return text, c.trailer(text)
	}
	size, digits := int64(0), 0
	for ; digits < len(text); digits++ {
		value := hexValue(text[digits])
		if value > 15 {
			break
		}
		if size > 1<<56 {
			return nil, false
		}
		size = size<<4 | int64(value)
	}
	if digits == 0 || digits > 16 || !validExtension(text[digits:]) {
		return nil, false
	}
	c.state, c.remaining = chunkData, size
	if size == 0 {
		c.state = chunkTrailer
	}
	leading := 0
	for leading < digits-1 && text[leading] == '0' {
		leading++
	}
	return text[leading:digits], true
}

// validExtension allows what follows a chunk's size: spaces, then extensions of visible characters.
func validExtension(b []byte) bool {
	s := trim(view(b))
	return (s == "" || s[0] == ';') && validValue(s)
}

// trailer checks a trailer line; none may change what the head said (RFC 9110, section 6.5.1).
func (c *chunks) trailer(text []byte) bool {
	if len(text) == 0 {
		c.state = chunkDone
		return true
	}
	c.trailers += len(text)
	colon := bytes.IndexByte(text, ':')
	if colon < 0 || c.trailers > maxTrailers {
		return false
	}
	name := view(text[:colon])
	return validToken(name) && validValue(view(text[colon+1:])) && kindOf(name) == fieldOther
}
