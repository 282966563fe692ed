package gateway

import (
	"fmt"
	"net"
	"net/netip"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"myelin/internal/tlsfile"
	"myelin/service/gateway/options"
)

// source has the certificate of this node, and the authority of its peers; nil: the network is trusted.
func source(c *options.Options) *tlsfile.Source {
	if !c.TLS() {
		return nil
	}
	return tlsfile.New(tlsfile.Files{Cert: c.CertFile, Key: c.KeyFile, CAs: []string{c.CAFile}})
}

// clientCredentials are those for connecting to a peer, whose certificate must have its address.
func clientCredentials(c *options.Options) (credentials.TransportCredentials, error) {
	s := source(c)
	if s == nil {
		return insecure.NewCredentials(), nil
	}
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("myelin.gateway.tls: %w", err)
	}
	return s.ClientCredentials(""), nil
}

// serverCredentials are those for peers that connect, which must have a certificate of the authority.
func serverCredentials(c *options.Options) credentials.TransportCredentials {
	if s := source(c); s != nil {
		return s.ServerCredentials()
	}
	return insecure.NewCredentials()
}

// peerListener accepts connections from peers only, which is all that a trusted network is asked for.
type peerListener struct {
	net.Listener
	peers map[netip.Addr]bool
}

// Accept closes connections of others at once.
func (l *peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if from, ok := conn.RemoteAddr().(*net.TCPAddr); ok && l.peers[from.AddrPort().Addr().Unmap()] {
			return conn, nil
		}
		conn.Close()
	}
}
