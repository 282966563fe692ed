package httpproxy

import (
	"bytes"
	"strings"
)

// problem is why a message is refused; its number is the status that a client gets. 0 means no problem.
type problem int

const (
	badRequest      problem = 400
	headerTooLarge  problem = 431
	badVersion      problem = 505
	noSuchCoding    problem = 501
	requestTimeout  problem = 408
	connectionLimit problem = 503
)

// fieldKind is what the relay itself must know of a header.
type fieldKind uint8

const (
	fieldOther fieldKind = iota
	fieldHost
	fieldContentLength
	fieldTransferEncoding
	fieldConnection
	fieldKeepAlive
	fieldProxyConnection
	fieldUpgrade
	fieldHTTP2Settings
	fieldTE
	fieldTrailer
	fieldExpect
	fieldContentType
)

// kindOf compares by length first: few names have one that matters.
func kindOf(name string) fieldKind {
	candidate, kind := "", fieldOther
	switch len(name) {
	case 2:
		candidate, kind = "te", fieldTE
	case 4:
		candidate, kind = "host", fieldHost
	case 6:
		candidate, kind = "expect", fieldExpect
	case 7:
		if name[0]|0x20 == 'u' {
			candidate, kind = "upgrade", fieldUpgrade
		} else {
			candidate, kind = "trailer", fieldTrailer
		}
	case 10:
		if name[0]|0x20 == 'k' {
			candidate, kind = "keep-alive", fieldKeepAlive
		} else {
			candidate, kind = "connection", fieldConnection
		}
	case 12:
		candidate, kind = "content-type", fieldContentType
	case 14:
		if name[0]|0x20 == 'h' {
			candidate, kind = "http2-settings", fieldHTTP2Settings
		} else {
			candidate, kind = "content-length", fieldContentLength
		}
	case 16:
		candidate, kind = "proxy-connection", fieldProxyConnection
	case 17:
		candidate, kind = "transfer-encoding", fieldTransferEncoding
	}
	if kind != fieldOther && strings.EqualFold(name, candidate) {
		return kind
	}
	return fieldOther
}

// head is a request or status line with its header section. Its strings are views of the bytes that were parsed.
type head struct {
	// first are the words of the first line: method, target and version, or version, status and reason.
	first   [3]string
	minor   int // HTTP/1.minor
	headers []Header
	// lines are the whole lines of the headers, with their line ends, in the same order.
	lines [][]byte

	length     int64 // of the body, by Content-Length; -1: none
	chunked    bool
	close      bool // "Connection: close"
	keepAlive  bool // "Connection: keep-alive"
	upgrade    string
	connection bool // there are options besides close and keep-alive
	expect     bool
	hosts      int
	host       string
	grpc       bool
	// changed: the lines are not those that were received.
	changed bool
}

func (h *head) reset() {
	clear(h.headers)
	clear(h.lines)
	*h = head{headers: h.headers[:0], lines: h.lines[:0], length: -1}
}

// headEnd finds the end of a header section: that of its first empty line. It is 0 if there is none yet. The search
// begins at from.
func headEnd(b []byte, from int) int {
	for i := max(from-2, 0); i < len(b); {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return 0
		}
		i += n + 1
		if i < len(b) && b[i] == '\n' {
			return i + 1
		}
		if i+1 < len(b) && b[i] == '\r' && b[i+1] == '\n' {
			return i + 2
		}
	}
	return 0
}

// line cuts the first line, which must end with CR LF and have neither of them elsewhere.
func line(b []byte) (text, rest []byte, ok bool) {
	end := bytes.IndexByte(b, '\n')
	if end < 1 || b[end-1] != '\r' {
		return nil, nil, false
	}
	return b[:end-1], b[end+1:], true
}

// parseHeaders parses header lines up to the empty line. Values are checked byte by byte, so that no bare CR and no NUL
// is in them, and a line that begins with a space is no header (obs-fold).
func (h *head) parseHeaders(b []byte) problem {
	for {
		text, rest, ok := line(b)
		if !ok {
			return badRequest
		}
		if len(text) == 0 {
			return 0
		}
		colon := bytes.IndexByte(text, ':')
		if colon < 0 {
			return badRequest
		}
		name, value := view(text[:colon]), trim(view(text[colon+1:]))
		if !validToken(name) || !validValue(value) {
			return badRequest
		}
		if p := h.note(kindOf(name), value); p != 0 {
			return p
		}
		h.headers = append(h.headers, Header{name, value})
		h.lines = append(h.lines, b[:len(b)-len(rest)])
		b = rest
	}
}

// note keeps what a header says about the message itself.
func (h *head) note(kind fieldKind, value string) problem {
	switch kind {
	case fieldHost:
		h.hosts++
		h.host = value
	case fieldContentLength:
		return h.noteLength(value)
	case fieldTransferEncoding:
		if h.chunked || !strings.EqualFold(value, "chunked") {
			return noSuchCoding
		}
		h.chunked = true
	case fieldConnection:
		for option := range strings.SplitSeq(value, ",") {
			switch option = trim(option); {
			case strings.EqualFold(option, "close"):
				h.close = true
			case strings.EqualFold(option, "keep-alive"):
				h.keepAlive = true
			default:
				h.connection = true
			}
		}
	case fieldUpgrade:
		h.connection = true
		if h.upgrade != "" {
			value = h.upgrade + "," + value
		}
		h.upgrade = value
	case fieldKeepAlive, fieldProxyConnection, fieldHTTP2Settings, fieldTE:
		h.connection = true
	case fieldExpect:
		h.expect = true
	case fieldContentType:
		h.grpc = isGRPC(value)
	}
	return 0
}

// noteLength accepts one Content-Length, of digits alone.
func (h *head) noteLength(value string) problem {
	if h.length >= 0 || value == "" || len(value) > 18 {
		return badRequest
	}
	h.length = 0
	for i := 0; i < len(value); i++ {
		if value[i] < '0' || value[i] > '9' {
			return badRequest
		}
		h.length = h.length*10 + int64(value[i]-'0')
	}
	return 0
}

func isGRPC(contentType string) bool {
	const grpc = "application/grpc"
	if len(contentType) < len(grpc) || !strings.EqualFold(contentType[:len(grpc)], grpc) {
		return false
	}
	return len(contentType) == len(grpc) || strings.IndexByte("+;", contentType[len(grpc)]) >= 0
}

// remove removes headers for which drop is true.
func (h *head) remove(drop func(Header) bool) {
	kept := 0
	for i, header := range h.headers {
		if drop(header) {
			h.changed = true
			continue
		}
		h.headers[kept], h.lines[kept] = header, h.lines[i]
		kept++
	}
	h.headers, h.lines = h.headers[:kept], h.lines[:kept]
}

// add adds a header.
func (h *head) add(name, value string) {
	h.headers = append(h.headers, Header{name, value})
	h.lines = append(h.lines, []byte(name+": "+value+"\r\n"))
	h.changed = true
}

// append appends the message's head as it is to be forwarded.
func (h *head) append(b []byte) []byte {
	b = append(b, h.first[0]...)
	b = append(b, ' ')
	b = append(b, h.first[1]...)
	b = append(b, ' ')
	b = append(b, h.first[2]...)
	b = append(b, '\r', '\n')
	for _, line := range h.lines {
		b = append(b, line...)
	}
	return append(b, '\r', '\n')
}
