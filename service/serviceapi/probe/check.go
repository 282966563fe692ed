// Package probe runs health checks of backends by TCP, HTTP and gRPC, with a bounded number at a time.
package probe

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Kind is the protocol of a check.
type Kind string

// The kinds. TCP requires a connection, HTTP a response 200..399 to GET, GRPC that grpc.health.v1.Health returns
// SERVING.
const (
	TCP  Kind = "tcp"
	HTTP Kind = "http"
	GRPC Kind = "grpc"
)

// Via is the way that a check's packets take.
type Via string

// The ways that can be asked for. Datapath, the default, is that of clients' packets: by DSR if they are sent so,
// otherwise directly. A Result has Direct, or the name of how DSR reaches the backend, such as "IPIP".
const (
	Datapath Via = "datapath"
	Direct   Via = "direct"
)

// Check is how and how often a backend is checked. It is comparable.
type Check struct {
	Kind Kind `json:"kind"`
	// Port is checked instead of the backend's own; 0 is the backend's.
	Port uint16 `json:"port,omitempty"`
	// Path is that of HTTP, with an optional query, and Host the header. The defaults are "/" and the backend's
	// address.
	Path string `json:"path,omitempty"`
	Host string `json:"host,omitempty"`
	// Service is whose health gRPC asks for; empty is the server as a whole.
	Service string `json:"service,omitempty"`
	// Via is Datapath or Direct; empty is Datapath.
	Via Via `json:"via,omitempty"`
	// Interval is the time from a result to the next check, ±10 %; Timeout is the longest that a check may take.
	Interval time.Duration `json:"interval"`
	Timeout  time.Duration `json:"timeout"`
	// Rise and Fall are how many equal results in a row change the state.
	Rise int `json:"rise"`
	Fall int `json:"fall"`
}

// Bounds of a Check.
const (
	minInterval = 100 * time.Millisecond
	maxInterval = time.Hour
	minTimeout  = 10 * time.Millisecond
	maxTimeout  = time.Minute
	maxCount    = 100 // of Rise and Fall
	maxText     = 1024
)

// WithDefaults sets fields that are zero: interval 2 s, timeout 1 s, rise 2, fall 3.
func (c Check) WithDefaults() Check {
	if c.Interval == 0 {
		c.Interval = 2 * time.Second
	}
	if c.Timeout == 0 {
		c.Timeout = time.Second
	}
	if c.Rise == 0 {
		c.Rise = 2
	}
	if c.Fall == 0 {
		c.Fall = 3
	}
	return c
}

// Validate calls bad for each invalid field, by its name in the API.
func (c Check) Validate(bad func(field, reason string)) {
	say := func(wrong bool, field, format string, args ...any) {
		if wrong {
			bad(field, fmt.Sprintf(format, args...))
		}
	}
	say(c.Kind != TCP && c.Kind != HTTP && c.Kind != GRPC, "kind", "%q is none of tcp, http, grpc", c.Kind)
	say(c.Kind != HTTP && c.Path != "", "path", "%q: only http has a path", c.Path)
	say(c.Kind != HTTP && c.Host != "", "host", "%q: only http has a host", c.Host)
	say(c.Kind != GRPC && c.Service != "", "service", "%q: only grpc has a service", c.Service)
	say(c.Path != "" && !plainPath(c.Path), "path", "%q is not a path such as /healthz", brief(c.Path))
	badHost := len(c.Host) > maxText || !httpguts.ValidHostHeader(c.Host)
	say(c.Host != "" && badHost, "host", "%q is not a host name", brief(c.Host))
	say(len(c.Service) > maxText, "service", "is longer than %d bytes", maxText)
	say(c.Via != "" && c.Via != Datapath && c.Via != Direct, "via", "%q is none of datapath, direct", c.Via)
	say(c.Interval < minInterval || c.Interval > maxInterval,
		"interval_ms", "%s is not in %s..%s", c.Interval, minInterval, maxInterval)
	say(c.Timeout < minTimeout || c.Timeout > maxTimeout,
		"timeout_ms", "%s is not in %s..%s", c.Timeout, minTimeout, maxTimeout)
	say(c.Rise < 1 || c.Rise > maxCount, "rise", "%d is not in 1..%d", c.Rise, maxCount)
	say(c.Fall < 1 || c.Fall > maxCount, "fall", "%d is not in 1..%d", c.Fall, maxCount)
}

// plainPath reports whether a request line can contain path without escapes.
func plainPath(path string) bool {
	escaped := func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '#' }
	return path[0] == '/' && len(path) <= maxText && !strings.ContainsFunc(path, escaped)
}

// brief shortens a text for a message.
func brief(text string) string {
	if len(text) > 60 {
		return strings.ToValidUTF8(text[:60], "") + "…"
	}
	return text
}

// at is the address and port that a check of backend connects to.
func (c Check) at(backend netip.AddrPort) netip.AddrPort {
	if c.Port != 0 {
		return netip.AddrPortFrom(backend.Addr(), c.Port)
	}
	return backend
}

// String is a short form such as "http:/healthz every 2s", or "tcp every 1s, direct".
func (c Check) String() string {
	text := string(c.Kind)
	if rest := c.Path + c.Service; rest != "" {
		text += ":" + rest
	}
	text += " every " + c.Interval.String()
	if c.Via == Direct {
		text += ", direct"
	}
	return text
}
