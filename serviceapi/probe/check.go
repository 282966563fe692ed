// Package probe asks backends whether they serve: health checks by TCP, HTTP
// and gRPC, again and again, with as many at a time as is good for the node.
package probe

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Kind is how a backend is asked.
type Kind string

// The kinds. TCP wants a connection, HTTP an answer 200..399 to GET, GRPC that
// grpc.health.v1.Health says SERVING.
const (
	TCP  Kind = "tcp"
	HTTP Kind = "http"
	GRPC Kind = "grpc"
)

// Check says how a backend is asked and how often. It is comparable.
type Check struct {
	Kind Kind `json:"kind"`
	// Port is asked instead of the backend's own; 0: that one.
	Port uint16 `json:"port,omitempty"`
	// Path is that of HTTP, with a query if need be, and Host its header; empty:
	// "/", and the backend's address.
	Path string `json:"path,omitempty"`
	Host string `json:"host,omitempty"`
	// Service is whose health GRPC asks; empty: the server's as a whole.
	Service string `json:"service,omitempty"`
	// Interval is from one answer to the next question, ±10 %; Timeout is what an
	// answer may take.
	Interval time.Duration `json:"interval"`
	Timeout  time.Duration `json:"timeout"`
	// Rise and Fall are how many answers of one kind in a row change the state.
	Rise int `json:"rise"`
	Fall int `json:"fall"`
}

// Bounds of a Check.
const (
	MinInterval = 100 * time.Millisecond
	MaxInterval = time.Hour
	MinTimeout  = 10 * time.Millisecond
	MaxTimeout  = time.Minute
	MaxCount    = 100 // of Rise and Fall
	maxText     = 1024
)

// WithDefaults fills in what is zero: 2 s, 1 s, 2, 3.
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

// Validate tells of each field that is wrong, by the name that it has in the
// API.
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
	say(c.Host != "" && (len(c.Host) > maxText || !httpguts.ValidHostHeader(c.Host)), "host", "%q is not a host name", brief(c.Host))
	say(len(c.Service) > maxText, "service", "is longer than %d bytes", maxText)
	say(c.Interval < MinInterval || c.Interval > MaxInterval, "interval_ms", "%s is not in %s..%s", c.Interval, MinInterval, MaxInterval)
	say(c.Timeout < MinTimeout || c.Timeout > MaxTimeout, "timeout_ms", "%s is not in %s..%s", c.Timeout, MinTimeout, MaxTimeout)
	say(c.Rise < 1 || c.Rise > MaxCount, "rise", "%d is not in 1..%d", c.Rise, MaxCount)
	say(c.Fall < 1 || c.Fall > MaxCount, "fall", "%d is not in 1..%d", c.Fall, MaxCount)
}

// plainPath reports whether a request line can hold path as it is.
func plainPath(path string) bool {
	return path[0] == '/' && len(path) <= maxText && !strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '#' })
}

// brief cuts what is too long for a message.
func brief(text string) string {
	if len(text) > 60 {
		return strings.ToValidUTF8(text[:60], "") + "…"
	}
	return text
}

// At is whom a check of backend asks.
func (c Check) At(backend netip.AddrPort) netip.AddrPort {
	if c.Port != 0 {
		return netip.AddrPortFrom(backend.Addr(), c.Port)
	}
	return backend
}

// String is "http:/healthz every 2s", as much as the command line takes.
func (c Check) String() string {
	text := string(c.Kind)
	if rest := c.Path + c.Service; rest != "" {
		text += ":" + rest
	}
	return text + " every " + c.Interval.String()
}
