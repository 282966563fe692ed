package httpproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"myelin/l7/config"
	"myelin/policy"
)

// session is one client's connection, whatever its protocol.
type session struct {
	proxy  *Proxy
	flow   *Flow
	client *stream
	// tls: the client's TLS is terminated. serverName is its SNI.
	tls        bool
	serverName string
	protocol   string // "" or what ALPN selected

	conns   sync.Mutex // guards the connections against abort
	server  *stream
	aborted bool
	pair    *pair // of a loop, which has the connections' sockets; nil: none has
}

// abort closes both connections, or ends them for the loop that has them.
func (s *session) abort() {
	s.conns.Lock()
	defer s.conns.Unlock()
	s.aborted = true
	if s.pair != nil {
		s.pair.shutdown()
		return
	}
	s.client.Conn.Close()
	if s.server != nil {
		s.server.Conn.Close()
	}
}

func (s *session) closeServer() {
	s.conns.Lock()
	defer s.conns.Unlock()
	if s.server != nil {
		s.server.Conn.Close()
		s.server.release()
	}
}

// decision is the verdict of all sets on a request or connection.
type decision struct {
	allowed bool
	// denied is the index of the set that denied; -1: none did.
	denied      int
	parts       [2]*config.Part
	originating *originating
	mismatches  []HeaderMismatch
}

// editor changes the headers of a request.
type editor interface {
	remove(drop func(Header) bool)
	add(name, value string)
}

// decide evaluates the sets one after the other: each sees what the ones before it changed.
func (s *session) decide(req *Request, edit editor, fields func() []Header) decision {
	sets := s.flow.Sets()
	d := decision{denied: -1, allowed: len(sets) > 0}
	for i, set := range sets {
		v := set.Match(req)
		if !v.Allowed {
			d.allowed, d.denied = false, i
			return d
		}
		if d.parts[i] = v.Part; v.part.originating != nil {
			d.originating = v.part.originating
		}
		if len(v.Mismatches) > 0 {
			d.mismatches = append(d.mismatches, v.Mismatches...)
			applyMismatches(v.Mismatches, edit)
			req.Header = fields()
		}
	}
	return d
}

// applyMismatches changes headers as rules want it. Rules that want the same change cause it once.
func applyMismatches(mismatches []HeaderMismatch, edit editor) {
	for i, m := range mismatches {
		repeated := false
		for _, before := range mismatches[:i] {
			repeated = repeated || before.Action == m.Action && before.Header == m.Header
		}
		if repeated || m.Action == policy.MismatchLog {
			continue
		}
		if m.Action != policy.MismatchAdd {
			edit.remove(func(h Header) bool { return equalFold(h.Name, m.Name) })
		}
		if m.Action != policy.MismatchDelete {
			edit.add(m.Name, m.Value)
		}
	}
}

var errAborted = errors.New("connection is aborted")

// dial opens the connection to the server.
func (s *session) dial(ctx context.Context, o *originating, host string) error {
	conn, err := s.flow.Dial(ctx)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", s.flow.Destination, err)
	}
	if o != nil {
		if conn, err = o.handshake(ctx, conn, s.serverNameFor(host), s.protocol); err != nil {
			return fmt.Errorf("originate TLS to %s: %w", s.flow.Destination, err)
		}
	}
	s.conns.Lock()
	defer s.conns.Unlock()
	if s.aborted {
		conn.Close()
		return errAborted
	}
	s.server = newStream(conn, &s.proxy.buffers)
	return nil
}

// serverNameFor is the SNI for the server: the client's, or the host of the request.
func (s *session) serverNameFor(host string) string {
	if s.serverName != "" {
		return s.serverName
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	if host == "" {
		return s.flow.Destination.Addr().String()
	}
	return host
}

// serve finds out the protocol and relays it.
func (s *session) serve(ctx context.Context) error {
	sets := s.flow.Sets()
	if len(sets) == 0 {
		return errNoRule
	}
	http, inspect := false, false
	for _, set := range sets {
		http = http || set.http
		inspect = inspect || set.http || set.serverNames || set.terminates()
	}
	if !inspect {
		return s.pass(ctx)
	}
	if err := s.client.SetReadDeadline(s.proxy.now().Add(s.proxy.limits.HeaderTimeout)); err != nil {
		return err
	}
	if err := s.client.fill(); err != nil {
		return endOfClient(err)
	}
	if s.client.bytes()[0] == tlsHandshake {
		var done bool
		var err error
		if done, err = s.serveTLS(ctx); done || err != nil {
			return err
		}
	}
	if !http {
		return s.pass(ctx)
	}
	http2, err := s.hasPreface()
	if err != nil {
		return endOfClient(err)
	}
	if http2 {
		return newRelay2(s).run(ctx)
	}
	return newRelay(s).run(ctx)
}

// endOfClient is nil if a client that has sent nothing yet went away or did nothing.
func endOfClient(err error) error {
	if timeout := net.Error(nil); err == io.EOF || errors.As(err, &timeout) && timeout.Timeout() {
		return nil
	}
	return err
}

var errNoRule = errors.New("no rule allows the connection")

// pass passes all bytes if the rules allow the connection as a whole.
func (s *session) pass(ctx context.Context) error {
	d := decision{}
	for _, set := range s.flow.Sets() {
		p := set.matchTLS(s.serverName)
		if p == nil {
			return errNoRule
		}
		if p.originating != nil {
			d.originating = p.originating
		}
	}
	if err := s.dial(ctx, d.originating, ""); err != nil {
		return err
	}
	return s.tunnel()
}

// tunnel passes bytes both ways until both directions have ended.
func (s *session) tunnel() error {
	if err := errors.Join(s.client.SetDeadline(time.Time{}), s.server.SetDeadline(time.Time{})); err != nil {
		return err
	}
	back := make(chan error, 1)
	go func() { back <- s.copyAll(s.client, s.server) }()
	err := s.copyAll(s.server, s.client)
	return errors.Join(err, <-back)
}

// copyAll passes bytes up to the end of a direction. If it fails, both directions end.
func (s *session) copyAll(to, from *stream) error {
	if buffered := from.bytes(); len(buffered) > 0 {
		if _, err := to.Conn.Write(buffered); err != nil {
			s.abort()
			return err
		}
		from.release()
	}
	if _, err := io.Copy(to.Conn, from.Conn); err != nil {
		s.abort()
		return err
	}
	return to.closeWrite()
}
