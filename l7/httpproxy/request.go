package httpproxy

import (
	"strings"
)

// parseRequest parses a whole request head and brings it to the form that rules see and that is forwarded.
func (h *head) parseRequest(b []byte) problem {
	h.reset()
	text, rest, ok := line(b)
	if !ok {
		return badRequest
	}
	method, target, ok := strings.Cut(view(text), " ")
	if !ok || !validToken(method) {
		return badRequest
	}
	target, version, ok := strings.Cut(target, " ")
	if !ok {
		return badRequest
	}
	switch version {
	case "HTTP/1.1":
		h.minor = 1
	case "HTTP/1.0":
	default:
		if len(version) == len("HTTP/2.0") && strings.HasPrefix(version, "HTTP/") {
			return badVersion
		}
		return badRequest
	}
	h.first = [3]string{method, target, version}
	if p := h.parseHeaders(rest); p != 0 {
		return p
	}
	if p := h.checkFraming(); p != 0 {
		return p
	}
	if p := h.parseTarget(); p != 0 {
		return p
	}
	if h.connection {
		h.hopByHop(true)
	}
	return 0
}

// checkFraming refuses requests whose end could be understood in two ways (RFC 9112, section 6.3).
func (h *head) checkFraming() problem {
	if h.chunked && (h.length >= 0 || h.minor == 0) {
		return badRequest
	}
	if h.hosts > 1 || h.hosts == 0 && h.minor == 1 || h.hosts == 1 && !validHost(h.host) {
		return badRequest
	}
	if h.first[0] == "CONNECT" && (h.chunked || h.length > 0) {
		return badRequest
	}
	return 0
}

// parseTarget brings the target to origin form (RFC 9112, section 3.2).
func (h *head) parseTarget() problem {
	method, target := h.first[0], h.first[1]
	switch {
	case method == "CONNECT":
		if !validHost(target) || !strings.Contains(target, ":") {
			return badRequest
		}
		h.setHost(target)
		return 0
	case target == "*":
		if method != "OPTIONS" {
			return badRequest
		}
		return 0
	case target == "":
		return badRequest
	case target[0] != '/':
		var ok bool
		if target, ok = h.absoluteForm(target); !ok {
			return badRequest
		}
	}
	path, ok := normalPath(target)
	if !ok {
		return badRequest
	}
	if path != h.first[1] {
		h.first[1], h.changed = path, true
	}
	return 0
}

// absoluteForm makes the host of an absolute target that of the request, and returns the rest in origin form.
func (h *head) absoluteForm(target string) (string, bool) {
	scheme, rest, ok := strings.Cut(target, "://")
	if !ok || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return "", false
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	if !validHost(rest[:end]) {
		return "", false
	}
	h.setHost(rest[:end])
	if end == len(rest) || rest[end] == '?' {
		return "/" + rest[end:], true
	}
	return rest[end:], true
}

// setHost replaces the Host header.
func (h *head) setHost(host string) {
	if h.host == host {
		return
	}
	h.host = host
	h.remove(func(header Header) bool { return kindOf(header.Name) == fieldHost })
	h.add("Host", host)
}

// hopByHop removes headers that are for this connection only (RFC 9110, section 7.6.1), and what Connection names,
// and writes those again that the connection on the other side has too: close, keep-alive and Upgrade. An upgrade to
// HTTP/2 is not among them: the connection stays at HTTP/1.1.
func (h *head) hopByHop(request bool) {
	options := ""
	for _, header := range h.headers {
		if kindOf(header.Name) == fieldConnection {
			options += "," + header.Value
		}
	}
	upgrade := h.upgradeOptions(options)
	trailers := false
	h.remove(func(header Header) bool {
		switch kindOf(header.Name) {
		case fieldTE:
			trailers = trailers || hasOption(header.Value, "trailers")
			return true
		case fieldConnection, fieldUpgrade, fieldHTTP2Settings, fieldProxyConnection:
			return true
		case fieldKeepAlive:
			return request
		case fieldHost, fieldContentLength, fieldTransferEncoding:
			return false
		}
		return hasOption(options, header.Name)
	})
	var kept []string
	if h.close {
		kept = append(kept, "close")
	} else if h.keepAlive {
		kept = append(kept, "keep-alive")
	}
	if h.upgrade = upgrade; upgrade != "" {
		h.add("Upgrade", upgrade)
		kept = append(kept, "Upgrade")
	}
	if trailers {
		h.add("TE", "trailers")
		kept = append(kept, "TE")
	}
	if len(kept) > 0 {
		h.add("Connection", strings.Join(kept, ", "))
	}
}

// upgradeOptions are the protocols that a message upgrades to, without HTTP/2.
func (h *head) upgradeOptions(connection string) string {
	if h.upgrade == "" || h.minor == 0 || !hasOption(connection, "upgrade") {
		return ""
	}
	var protocols []string
	for protocol := range strings.SplitSeq(h.upgrade, ",") {
		protocol = trim(protocol)
		if protocol != "" && !strings.EqualFold(protocol, "h2c") && !strings.EqualFold(protocol, "h2") {
			protocols = append(protocols, protocol)
		}
	}
	return strings.Join(protocols, ", ")
}

// hasOption says whether a list, separated by commas, has an option.
func hasOption(list, option string) bool {
	for item := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(trim(item), option) {
			return true
		}
	}
	return false
}

// persistent says whether the connection may stay open after the message.
func (h *head) persistent() bool { return !h.close && (h.minor == 1 || h.keepAlive) }

// hasBody says whether a request has a body.
func (h *head) hasBody() bool { return h.chunked || h.length > 0 }

// request is what rules are evaluated on.
func (h *head) request(r *Request, serverName string) {
	*r = Request{Method: h.first[0], Path: h.first[1], Host: h.host, Header: h.headers, ServerName: serverName}
	if r.Method == "CONNECT" {
		r.Path = ""
	}
}
