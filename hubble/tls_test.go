package hubble

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"myelin/internal/tlsfile"
)

// certificate writes a certificate that is its own authority, and its key.
func certificate(t *testing.T, dir, name string, serial int64) tlsfile.Files {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(serial), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	f := tlsfile.Files{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
	for path, block := range map[string]*pem.Block{
		f.Cert: {Type: "CERTIFICATE", Bytes: der}, f.Key: {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

// TestTLS: clients need a certificate of the authority, and a certificate that is replaced is used.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	files := certificate(t, dir, "node", 1)
	client := certificate(t, dir, "client", 9)
	files.CAs = []string{client.Cert}
	o := &Observer{Ring: newRing(t, 7), Source: written{}, Converter: newConverter(), Now: time.Now}
	s := &Server{Log: slog.New(slog.DiscardHandler), Observer: o, Peers: &Peers{}, Address: "127.0.0.1:0",
		TLS: tlsfile.New(files)}
	listener, server, err := s.listenTCP()
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(listener)
	defer server.Stop()
	pair, err := tls.LoadX509KeyPair(client.Cert, client.Key)
	if err != nil {
		t.Fatal(err)
	}
	call := func(certs ...tls.Certificate) (serial int64, err error) {
		c := &tls.Config{ServerName: "node", Certificates: certs, InsecureSkipVerify: true,
			VerifyConnection: func(st tls.ConnectionState) error {
				serial = st.PeerCertificates[0].SerialNumber.Int64()
				return nil
			}}
		conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(),
			grpc.WithTransportCredentials(credentials.NewTLS(c)))
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		_, err = observerpb.NewObserverClient(conn).ServerStatus(t.Context(), &observerpb.ServerStatusRequest{})
		return serial, err
	}
	if serial, err := call(pair); err != nil || serial != 1 {
		t.Errorf("serial %d: %v", serial, err)
	}
	if _, err := call(); err == nil {
		t.Error("a client without a certificate is served")
	}
	certificate(t, dir, "node", 200)
	if serial, err := call(pair); err != nil || serial != 200 {
		t.Errorf("serial %d after the certificate was replaced: %v", serial, err)
	}
	s.TLS = tlsfile.New(tlsfile.Files{Cert: dir + "/none", Key: dir + "/none"})
	if _, _, err := s.listenTCP(); err == nil {
		t.Error("files that are missing are accepted")
	}
}
