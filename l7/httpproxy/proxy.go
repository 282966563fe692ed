// Package httpproxy relays connections on which policies have HTTP rules, or check the server's name in TLS. Each
// client's connection has one to the server, in the same protocol; requests that no rule allows are answered by the
// proxy.
package httpproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"myelin/l7/config"
)

// Defaults of config.HTTP.
const (
	defaultHeaderBytes    = 60 << 10
	defaultConnections    = 16384
	defaultHeaderTimeout  = 30 * time.Second
	defaultIdleTimeout    = time.Hour
	maxPipelined          = 16      // requests of one connection that wait for their responses
	maxDiscarded          = 1 << 20 // bytes of a denied request's body
	grpcPermissionDenied  = "7"
	grpcUnavailable       = "14"
	accessDenied          = "Access denied\r\n"
	connectionsExceeded   = "Too many connections\r\n"
	upstreamConnectFailed = "upstream connect error\r\n"
)

// Proxy serves connections. All of them share its limits and buffers.
type Proxy struct {
	limits      config.HTTP
	now         func() time.Time
	headers     []string
	connections atomic.Int64
	buffers     buffers
	loops       loops
	drain       *drain
}

// New makes a proxy. Limits that are zero have their defaults. Records have the request headers with the names in
// headers.
func New(limits config.HTTP, headers []string, now func() time.Time) *Proxy {
	if limits.MaxHeaderBytes <= 0 {
		limits.MaxHeaderBytes = defaultHeaderBytes
	}
	if limits.MaxConnections <= 0 {
		limits.MaxConnections = defaultConnections
	}
	if limits.HeaderTimeout <= 0 {
		limits.HeaderTimeout = defaultHeaderTimeout
	}
	if limits.IdleTimeout <= 0 {
		limits.IdleTimeout = defaultIdleTimeout
	}
	return &Proxy{limits: limits, now: now, headers: headers, drain: newDrain()}
}

// Flow is a connection that is redirected to the proxy.
type Flow struct {
	Source, Destination netip.AddrPort
	// Sets returns the current rule sets, all of which must allow a request: egress of the client, then ingress of the
	// server. There are at most two. It is called for each request, and the caller does not change the result.
	Sets func() []*RuleSet
	// Dial connects to the server. It is called at most once, when something is allowed.
	Dial func(context.Context) (net.Conn, error)
	// Count is called for each request whose rules were evaluated; nil: it is not.
	Count func(allowed bool)
	// Record is called for each request, before its response is forwarded, if Recorded is nil or true when the request
	// comes; nil: it is not.
	Record   func(*Record)
	Recorded func() bool
}

// Connections is the number of connections that are served.
func (p *Proxy) Connections() int { return int(p.connections.Load()) }

// Serve relays a connection until both sides have ended it or ctx is done, and closes it. An error says what ended it
// early.
func (p *Proxy) Serve(ctx context.Context, client net.Conn, flow *Flow) error {
	s := &session{proxy: p, flow: flow, client: newStream(client, &p.buffers)}
	defer func() { s.client.Conn.Close() }() // it may be another one by then, of the same socket
	defer s.client.release()
	defer p.connections.Add(-1)
	if p.connections.Add(1) > int64(p.limits.MaxConnections) {
		s.refuseConnection()
		return fmt.Errorf("serve %s: %d connections are served already", flow.Source, p.limits.MaxConnections)
	}
	defer context.AfterFunc(ctx, s.abort)()
	err := s.serve(ctx)
	s.closeServer()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("serve %s to %s: %w", flow.Source, flow.Destination, err)
	}
	return nil
}

func (s *session) refuseConnection() {
	now := s.proxy.now()
	reply := localReply(reply{status: 503, body: connectionsExceeded, close: true}, 1, false)
	if s.client.write(reply, now, lingerTime) == nil {
		s.client.linger(now)
	}
}
