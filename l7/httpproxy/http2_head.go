package httpproxy

import (
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// head2 is the header section of a request in HTTP/2.
type head2 struct {
	request Request
	scheme  string
	fields  []hpack.HeaderField // without pseudo-headers and Host
	grpc    bool
}

// malformed is a request that is reset; refused, one that gets a status.
const malformed problem = 1

// parseRequest2 brings a request to the form that rules see and that is forwarded (RFC 9113, section 8).
func parseRequest2(frame *http2.MetaHeadersFrame, serverName string) (*head2, problem) {
	h := &head2{request: Request{ServerName: serverName}}
	if p := h.parsePseudo(frame); p != 0 {
		return h, p
	}
	host, hosts, lengths := "", 0, 0
	for _, field := range frame.RegularFields() {
		switch kindOf(field.Name) {
		case fieldHost:
			host = field.Value
			hosts++
			continue
		case fieldConnection, fieldKeepAlive, fieldProxyConnection, fieldTransferEncoding, fieldUpgrade,
			fieldHTTP2Settings:
			return h, malformed
		case fieldTE:
			if field.Value != "trailers" {
				return h, malformed
			}
		case fieldContentLength:
			check := head{length: -1}
			if lengths++; lengths > 1 || check.noteLength(field.Value) != 0 {
				return h, malformed
			}
		case fieldContentType:
			h.grpc = h.grpc || isGRPC(field.Value)
		}
		h.fields = append(h.fields, field)
		h.request.Header = append(h.request.Header, Header{field.Name, field.Value})
	}
	if h.request.Host == "" {
		h.request.Host = host
	}
	if hosts > 1 || hosts == 1 && host != h.request.Host || !validHost(h.request.Host) {
		return h, badRequest
	}
	return h, h.parsePath()
}

func (h *head2) parsePseudo(frame *http2.MetaHeadersFrame) problem {
	seen := 0
	for _, field := range frame.PseudoFields() {
		seen++
		switch field.Name {
		case ":method":
			h.request.Method = field.Value
		case ":scheme":
			h.scheme = field.Value
		case ":path":
			h.request.Path = field.Value
		case ":authority":
			h.request.Host = field.Value
		default:
			return malformed
		}
	}
	connect := h.request.Method == "CONNECT"
	if !validToken(h.request.Method) || connect != (h.request.Path == "") || connect != (h.scheme == "") {
		return malformed
	}
	if !connect && h.scheme != "http" && h.scheme != "https" {
		return badRequest
	}
	return 0
}

func (h *head2) parsePath() problem {
	r := &h.request
	if r.Method == "CONNECT" || r.Path == "*" && r.Method == "OPTIONS" {
		return 0
	}
	path, ok := normalPath(r.Path)
	if !ok {
		return badRequest
	}
	r.Path = path
	return 0
}

// remove and add let rules change headers.
func (h *head2) remove(drop func(Header) bool) {
	kept := h.fields[:0]
	for _, field := range h.fields {
		if !drop(Header{field.Name, field.Value}) {
			kept = append(kept, field)
		}
	}
	h.fields = kept
}

func (h *head2) add(name, value string) {
	h.fields = append(h.fields, hpack.HeaderField{Name: strings.ToLower(name), Value: value})
}

// headers are those of the fields.
func (h *head2) headers() []Header {
	var all []Header
	for _, field := range h.fields {
		all = append(all, Header{field.Name, field.Value})
	}
	return all
}

// forwarded are the fields with the pseudo-headers.
func (h *head2) forwarded() []hpack.HeaderField {
	all := make([]hpack.HeaderField, 0, len(h.fields)+4)
	all = append(all, hpack.HeaderField{Name: ":method", Value: h.request.Method})
	if h.request.Method != "CONNECT" {
		all = append(all, hpack.HeaderField{Name: ":scheme", Value: h.scheme},
			hpack.HeaderField{Name: ":path", Value: h.request.Path})
	}
	all = append(all, hpack.HeaderField{Name: ":authority", Value: h.request.Host})
	return append(all, h.fields...)
}
