package httpproxy

import "strings"

// parseResponse parses a whole response head.
func (h *head) parseResponse(b []byte) (status int, ok bool) {
	h.reset()
	text, rest, ok := line(b)
	if !ok {
		return 0, false
	}
	version, after, _ := strings.Cut(view(text), " ")
	code, reason, _ := strings.Cut(after, " ")
	switch version {
	case "HTTP/1.1":
		h.minor = 1
	case "HTTP/1.0":
	default:
		return 0, false
	}
	if len(code) != 3 || !validValue(reason) {
		return 0, false
	}
	for i := range 3 {
		if code[i] < '0' || code[i] > '9' {
			return 0, false
		}
		status = status*10 + int(code[i]-'0')
	}
	h.first = [3]string{version, code, reason}
	if status < 100 || h.parseHeaders(rest) != 0 || h.chunked && (h.length >= 0 || h.minor == 0) {
		return 0, false
	}
	if h.connection {
		h.hopByHop(false)
	}
	return status, true
}

// bodyKind is how the end of a body is found.
type bodyKind uint8

const (
	bodyNone bodyKind = iota
	bodyLength
	bodyChunked
	bodyUntilClose
)

// requestBody is that of a request (RFC 9112, section 6.3).
func (h *head) requestBody() bodyKind {
	switch {
	case h.chunked:
		return bodyChunked
	case h.length > 0:
		return bodyLength
	}
	return bodyNone
}

// responseBody is that of a response to a request with a method.
func (h *head) responseBody(status int, headRequest bool) bodyKind {
	switch {
	case headRequest || status < 200 || status == 204 || status == 304 || h.length == 0:
		return bodyNone
	case h.chunked:
		return bodyChunked
	case h.length > 0:
		return bodyLength
	}
	return bodyUntilClose
}
