// Package tlsfile makes TLS configurations of PEM files that may be replaced at any time, as those of a Kubernetes
// Secret are.
package tlsfile

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc/credentials"
)

// Files are paths of PEM files.
type Files struct {
	Cert, Key string   // of this side; both or none
	CAs       []string // of the other side's certificates; a server without them needs none of its clients
}

// Source reads files, and reads them again when they have changed. While new ones cannot be used, as in the middle of
// a replacement, the last good ones are.
type Source struct {
	files Files

	mu   sync.Mutex
	last []os.FileInfo
	good *material // nil: none yet
}

// material is what is in the files.
type material struct {
	pair []tls.Certificate
	pool *x509.CertPool // nil: no CAs
}

// minVersion is that of Hubble and of Myelin's own peers.
const minVersion = tls.VersionTLS13

// New returns a source. Files are read when they are needed.
func New(f Files) *Source { return &Source{files: f} }

// Check reads the files. Its error names the one that cannot be used.
func (s *Source) Check() error {
	_, err := s.load()
	return err
}

// Server returns the configuration of a server. Each handshake uses the newest files; with CAs, clients must have a
// certificate of them. Protocols are those of ALPN.
func (s *Source) Server(protocols ...string) *tls.Config {
	return &tls.Config{MinVersion: minVersion, NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			m, err := s.load()
			if err != nil {
				return nil, err
			}
			if m.pair == nil {
				return nil, errors.New("a server with TLS needs a certificate and a key")
			}
			c := &tls.Config{MinVersion: minVersion, Certificates: m.pair, NextProtos: protocols}
			if m.pool != nil {
				c.ClientCAs, c.ClientAuth = m.pool, tls.RequireAndVerifyClientCert
			}
			return c, nil
		}}
}

// ServerCredentials are those of a gRPC server.
func (s *Source) ServerCredentials() credentials.TransportCredentials {
	return credentials.NewTLS(s.Server("h2"))
}

// ClientCredentials are those of a gRPC client. Each connection uses the newest files. An empty serverName is that of
// the connection's target. Without CAs those of the system are used.
func (s *Source) ClientCredentials(serverName string) credentials.TransportCredentials {
	return &client{credentials.NewTLS(&tls.Config{MinVersion: minVersion, ServerName: serverName}), s, serverName}
}

// client reads files for each handshake.
type client struct {
	credentials.TransportCredentials
	source     *Source
	serverName string
}

// ClientHandshake implements credentials.TransportCredentials.
func (c *client) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn,
	credentials.AuthInfo, error) {
	m, err := c.source.load()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(&tls.Config{MinVersion: minVersion, ServerName: c.serverName, RootCAs: m.pool,
		Certificates: m.pair}).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (c *client) Clone() credentials.TransportCredentials {
	return &client{c.TransportCredentials.Clone(), c.source, c.serverName}
}

func (s *Source) load() (*material, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.files.stat() // before reading: what changes meanwhile is read again
	if err == nil && s.good != nil && same(now, s.last) {
		return s.good, nil
	}
	var m *material
	if err == nil {
		m, err = s.files.read()
	}
	switch {
	case err == nil:
		s.good, s.last = m, now
	case s.good == nil:
		return nil, err
	}
	return s.good, nil
}

func same(a, b []os.FileInfo) bool {
	for i := range a {
		if !os.SameFile(a[i], b[i]) || !a[i].ModTime().Equal(b[i].ModTime()) || a[i].Size() != b[i].Size() {
			return false
		}
	}
	return true
}

func (f Files) stat() ([]os.FileInfo, error) {
	paths := f.CAs
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("a certificate and its key are given together or not at all")
	}
	if f.Cert != "" {
		paths = append([]string{f.Cert, f.Key}, paths...)
	}
	list := make([]os.FileInfo, len(paths))
	for i, path := range paths {
		var err error
		if list[i], err = os.Stat(path); err != nil {
			return nil, fmt.Errorf("read certificates: %w", err)
		}
	}
	return list, nil
}

func (f Files) read() (*material, error) {
	m := &material{}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("read certificate %s and key %s: %w", f.Cert, f.Key, err)
		}
		m.pair = []tls.Certificate{pair}
	}
	for _, path := range f.CAs {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read CA: %w", err)
		}
		if m.pool == nil {
			m.pool = x509.NewCertPool()
		}
		if !m.pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("read CA %s: it has no certificate in PEM", path)
		}
	}
	return m, nil
}
