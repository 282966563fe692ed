package tlsfile_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"myelin/operator/pki"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// fetch asks a server for example.com, with TLS of no higher version than limit; zero: any.
func fetch(t *testing.T, url string, ca *pki.Authority, limit uint16) error {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Cert)
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MaxVersion: limit,
		ServerName: "example.com"}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); err != nil || string(text) != "hello" {
		return fmt.Errorf("got %q: %w", text, err)
	}
	return nil
}
