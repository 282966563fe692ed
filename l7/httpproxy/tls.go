package httpproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"myelin/policy"
)

const tlsHandshake = 22 // RFC 8446, section 5.1

// terminating is the certificate by which the client's TLS ends at the proxy.
type terminating struct{ config *tls.Config }

// originating opens TLS to the server.
type originating struct{ config *tls.Config }

// keyOf is the value of a Secret's key.
func keyOf(data map[string][]byte, key, usual string) []byte {
	if key == "" {
		key = usual
	}
	return data[key]
}

func newTerminating(c *policy.TLSContext, secrets Secrets) (*terminating, error) {
	if c == nil {
		return nil, nil
	}
	data := secrets[c.Secret]
	pair, err := tls.X509KeyPair(keyOf(data, c.Certificate, "tls.crt"), keyOf(data, c.PrivateKey, "tls.key"))
	if err != nil {
		return nil, fmt.Errorf("terminatingTLS: read certificate of Secret %s/%s: %w", c.Secret.Namespace,
			c.Secret.Name, err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if authorities := keyOf(data, c.TrustedCA, "ca.crt"); c.TrustedCA != "" {
		if config.ClientCAs, err = certPool(authorities, c); err != nil {
			return nil, err
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return &terminating{config}, nil
}

func certPool(authorities []byte, c *policy.TLSContext) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("read certificate authorities of Secret %s/%s: there are none", c.Secret.Namespace,
			c.Secret.Name)
	}
	return pool, nil
}

// newOriginating uses the authorities of the Secret, or those of the system if it has none.
func newOriginating(c *policy.TLSContext, secrets Secrets) (*originating, error) {
	if c == nil {
		return nil, nil
	}
	data, ok := secrets[c.Secret]
	if !ok {
		return nil, fmt.Errorf("originatingTLS: there is no Secret %s/%s", c.Secret.Namespace, c.Secret.Name)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if authorities := keyOf(data, c.TrustedCA, "ca.crt"); authorities != nil || c.TrustedCA != "" {
		if config.RootCAs, err = certPool(authorities, c); err != nil {
			return nil, fmt.Errorf("originatingTLS: %w", err)
		}
	}
	if certificate := keyOf(data, c.Certificate, "tls.crt"); certificate != nil {
		pair, err := tls.X509KeyPair(certificate, keyOf(data, c.PrivateKey, "tls.key"))
		if err != nil {
			return nil, fmt.Errorf("originatingTLS: read certificate of Secret %s/%s: %w", c.Secret.Namespace,
				c.Secret.Name, err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return &originating{config}, nil
}

// handshake opens TLS on a connection, with the protocol that the client speaks.
func (o *originating) handshake(ctx context.Context, conn net.Conn, name, protocol string) (net.Conn, error) {
	config := o.config.Clone()
	config.ServerName = name
	if protocol != "" {
		config.NextProtos = []string{protocol}
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	if protocol == "h2" && secure.ConnectionState().NegotiatedProtocol != "h2" {
		conn.Close()
		return nil, errors.New("the server does not speak HTTP/2")
	}
	return secure, nil
}

func (s *RuleSet) terminates() bool {
	return slices.ContainsFunc(s.parts, func(p part) bool { return p.terminating != nil })
}

// terminating is the certificate for a server name: of the parts that take the name, the first whose certificate is
// valid for it, or the first.
func (s *RuleSet) terminating(name string) (found *terminating) {
	for i := range s.parts {
		p := &s.parts[i]
		if p.terminating == nil || !p.matchServerName(name) {
			continue
		}
		if p.terminating.config.Certificates[0].Leaf.VerifyHostname(name) == nil {
			return p.terminating
		}
		if found == nil {
			found = p.terminating
		}
	}
	return found
}

// serveTLS handles a connection that begins with a TLS record. It is done unless it has terminated TLS: then what is
// inside remains.
func (s *session) serveTLS(ctx context.Context) (done bool, _ error) {
	hello, err := s.peekHello()
	if err != nil {
		return true, fmt.Errorf("read ClientHello: %w", endOfClient(err))
	}
	s.serverName = strings.ToLower(strings.TrimSuffix(hello.name, "."))
	for _, set := range s.flow.Sets() {
		if t := set.terminating(s.serverName); t != nil {
			return false, s.terminate(ctx, t, hello.protocols)
		}
	}
	return true, s.passTLS(ctx)
}

// terminate ends the client's TLS. HTTP/1.1 is preferred, because each server speaks it; clients that speak HTTP/2
// only, such as gRPC's, get it.
func (s *session) terminate(ctx context.Context, t *terminating, offered []string) error {
	config := t.config.Clone()
	config.NextProtos = []string{"http/1.1", "h2"}
	if len(offered) > 0 && !slices.Contains(offered, "http/1.1") && !slices.Contains(offered, "h2") {
		config.NextProtos = nil
	}
	conn := tls.Server(&unread{s.client.Conn, s.client}, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("terminate TLS: %w", err)
	}
	s.tls, s.protocol = true, conn.ConnectionState().NegotiatedProtocol
	s.conns.Lock()
	s.client = newStream(conn, &s.proxy.buffers)
	s.conns.Unlock()
	if err := s.client.fill(); err != nil {
		return endOfClient(err)
	}
	return nil
}

// unread is a connection of which some bytes are in a stream's buffer.
type unread struct {
	net.Conn
	stream *stream
}

func (u *unread) Read(b []byte) (int, error) { return u.stream.Read(b) }

// passTLS passes a TLS connection without looking inside, by its server name.
func (s *session) passTLS(ctx context.Context) error {
	s.tls = true
	d := decision{denied: -1}
	for i, set := range s.flow.Sets() {
		p := set.matchTLS(s.serverName)
		if p == nil {
			d.denied = i
			break
		}
		d.parts[i] = p.source
	}
	now := s.proxy.now()
	record := s.record(&Request{Host: s.serverName}, "TLS", &d, now)
	if d.denied >= 0 {
		s.finish(record, 0, true, now)
		if err := s.client.write(unrecognizedName(), now, lingerTime); err != nil {
			return err
		}
		s.client.linger(now)
		return nil
	}
	if err := s.dial(ctx, nil, ""); err != nil {
		s.finish(record, 0, true, s.proxy.now())
		return err
	}
	s.finish(record, 0, false, s.proxy.now())
	return s.tunnel()
}

// unrecognizedName is the fatal alert 112 (RFC 6066, section 3).
func unrecognizedName() []byte { return []byte{21, 3, 3, 0, 2, 2, 112} }

// hello is what a ClientHello says.
type hello struct {
	name      string
	protocols []string
}

var errPeeked = errors.New("the ClientHello is read")

// peekHello reads the ClientHello, however it is fragmented, and leaves it in the client's buffer. The standard
// library parses it, by a handshake that stops there and writes nothing.
func (s *session) peekHello() (hello, error) {
	var found hello
	config := &tls.Config{GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
		found = hello{info.ServerName, info.SupportedProtos}
		return nil, errPeeked
	}}
	peek := &peeker{Conn: s.client.Conn, session: s}
	if err := tls.Server(peek, config).Handshake(); !errors.Is(err, errPeeked) {
		if err == nil {
			err = errors.New("the handshake went on")
		}
		return found, err
	}
	return found, nil
}

// peeker reads what is in the buffer of a session's client, and more where it ends, and does not consume it.
type peeker struct {
	net.Conn
	session *session
	at      int
}

const maxHello = 64 << 10

func (p *peeker) Read(b []byte) (int, error) {
	client := p.session.client
	if p.at == len(client.bytes()) {
		if p.at > maxHello {
			return 0, io.ErrShortBuffer
		}
		if err := client.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(b, client.bytes()[p.at:])
	p.at += n
	return n, nil
}

// Write drops the alert that ends the handshake.
func (p *peeker) Write(b []byte) (int, error) { return len(b), nil }
