package labtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	l7control "myelin/l7/control"
)

// tlsPolicy has the proxy end clients' TLS with a certificate for each server name, and open TLS to the server. The
// token of requests is a Secret's.
const tlsPolicy = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: tls}
spec:
  endpointSelector: {matchLabels: {app: api-server}}
  ingress:
  - fromEndpoints: [{matchLabels: {role: frontend}}]
    toPorts:
    - ports: [{port: "443", protocol: TCP}]
      serverNames: [a.example]
      terminatingTLS: {secret: {name: front-a}}
      originatingTLS: {secret: {namespace: pki, name: back}}
      rules:
        http:
        - {path: /public, headerMatches: [{mismatch: REPLACE, name: X-Token, secret: {name: token}}]}
    - ports: [{port: "443", protocol: TCP}]
      serverNames: [b.example]
      terminatingTLS: {secret: {name: front-b}}
      originatingTLS: {secret: {namespace: pki, name: back}}
      rules: {http: [{path: /b}]}
`

// plantedSecret is the value of the Secret "token", which nothing may show.
const plantedSecret = "velvet-thunder-42"

// keyPair is a certificate for names, which is its own authority, as a Secret has it.
func keyPair(t *testing.T, names ...string) map[string]string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	check(t, err)
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	check(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	check(t, err)
	chain := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return map[string]string{"ca.crt": chain, "tls.crt": chain,
		"tls.key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))}
}

// secretYAML is a Secret with some keys of data.
func secretYAML(name string, data map[string]string, keys ...string) string {
	text := "apiVersion: v1\nkind: Secret\nmetadata: {" + name + "}\ndata:\n"
	for _, key := range keys {
		text += fmt.Sprintf("  %s: %s\n", key, base64.StdEncoding.EncodeToString([]byte(data[key])))
	}
	return text
}

// tlsScene is a server and what clients trust.
type tlsScene struct {
	*cluster
	back, a, b map[string]string // certificates of the server, and of the proxy for both names
	pool       *x509.CertPool
}

// secrets are all Secrets that tlsPolicy names.
func (s *tlsScene) secrets() string {
	return strings.Join([]string{
		secretYAML("name: front-a", s.a, "tls.crt", "tls.key"), secretYAML("name: front-b", s.b, "tls.crt", "tls.key"),
		secretYAML("name: back, namespace: pki", s.back, "ca.crt"),
		secretYAML("name: token", map[string]string{"value": plantedSecret}, "value"),
	}, "---\n")
}

// serve answers with the server's name, the path and the token of requests.
func (s *tlsScene) serve() {
	pair, err := tls.X509KeyPair([]byte(s.back["tls.crt"]), []byte(s.back["tls.key"]))
	check(s.t, err)
	for _, a := range s.end("api").addrs {
		l, err := s.end("api").listenTCP(s.t.Context(), at(a, 443))
		check(s.t, err)
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter,
			r *http.Request) {
			fmt.Fprintf(w, "%s %s %s", r.TLS.ServerName, r.URL.Path, r.Header.Get("X-Token"))
		})}
		go func() { _ = server.Serve(tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}})) }()
		s.t.Cleanup(func() { server.Close() })
	}
}

// trust adds the authorities of a Secret's certificate to those of clients.
func (s *tlsScene) trust(secret map[string]string) map[string]string {
	s.pool.AppendCertsFromPEM([]byte(secret["ca.crt"]))
	return secret
}

// client makes requests to api in a family, whatever the host of the URL.
func (s *tlsScene) client(from string, family int) *http.Client {
	to := at(s.end("api").addr(family), 443)
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := s.end(from).dialTCP(ctx, netip.AddrPort{}, to)
			if err != nil {
				return nil, err // a nil *TCPConn is no nil net.Conn
			}
			return conn, nil
		},
		TLSClientConfig: &tls.Config{RootCAs: s.pool.Clone()},
	}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience(5 * time.Second)}
}

// ask returns the status and the body, and the serial number of the certificate that the client saw.
func (s *tlsScene) ask(client *http.Client, url string) (status int, body, serial string, err error) {
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, url, nil)
	check(s.t, err)
	r.Header.Set("X-Token", "from the client")
	answer, err := client.Do(r)
	if err != nil {
		return 0, "", "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), answer.TLS.PeerCertificates[0].SerialNumber.String(), err
}

// want makes a request on a new connection of each client, in both families.
func (s *tlsScene) want(url string, status int, body string) error {
	for _, from := range []string{"far", "near"} {
		for _, f := range []int{4, 6} {
			client := s.client(from, f)
			got, text, _, err := s.ask(client, url)
			client.CloseIdleConnections()
			if err == nil && (got != status || body != "" && text != body) {
				err = fmt.Errorf("%d %q, want %d %q", got, text, status, body)
			}
			if err != nil {
				return fmt.Errorf("%s from %s, IPv%d: %w", url, from, f, err)
			}
		}
	}
	return nil
}

// denied reports an error unless no connection reaches the server.
func (s *tlsScene) denied(url string) error {
	for _, f := range []int{4, 6} {
		client := s.client("far", f)
		status, body, _, err := s.ask(client, url)
		client.CloseIdleConnections()
		if err == nil {
			return fmt.Errorf("%s, IPv%d: %d %q", url, f, status, body)
		}
	}
	return nil
}

// TestL7TLS has the proxy end clients' TLS with the certificate of the server's name and open TLS to the server, which
// it verifies. Secrets that change are in force without a restart, and no request fails by that; a Secret that is
// missing denies what needs it and nothing else. Nothing shows what Secrets contain.
//
//	┌─ node1 ─────────────────┐  ┌─ node2 ──────────────────┐
//	│ far (frontend)          │  │ near (frontend)  api:443 │
//	└───────────┬─────────────┘  └────────────┬─────────────┘
//	════════════╧═════════════════════════════╧═════════════
func TestL7TLS(t *testing.T) {
	t.Parallel()
	s := &tlsScene{pool: x509.NewCertPool(), back: keyPair(t, "a.example", "b.example")}
	s.a, s.b = s.trust(keyPair(t, "a.example")), s.trust(keyPair(t, "b.example"))
	s.cluster = up(t, setup{mode: modeNamed("native"), yaml: l7Pods()})
	s.serve()
	s.apply("policy", tlsPolicy)
	missing := "Secret default/front-a does not exist"
	eventually(t, "the missing Secrets", 20*time.Second, func() error {
		if out, err := s.cli("node2", "policy", "secrets"); err != nil || !strings.Contains(out, missing) {
			return fmt.Errorf("%w: %s", err, out)
		}
		return s.denied("https://a.example/public")
	})
	contains(t, "status", s.mustCLI("node2", "status", "-o", "json"), missing, "CiliumNetworkPolicy default/tls")

	s.apply("secrets", s.secrets())
	eventually(t, "the Secrets", 20*time.Second, func() error {
		return s.want("https://a.example/public", http.StatusOK, "a.example /public "+plantedSecret)
	})
	check(t, s.want("https://b.example/b", http.StatusOK, "b.example /b from the client"))
	check(t, s.want("https://a.example/b", http.StatusForbidden, ""))
	check(t, s.want("https://b.example/public", http.StatusForbidden, ""))
	check(t, s.denied("https://c.example/public"))

	t.Run("change", s.change)
	t.Run("authority", s.authority)
	t.Run("removal", s.removal)
	t.Run("hidden", s.hidden)
}

// change replaces a certificate and the token while clients make requests.
func (s *tlsScene) change(t *testing.T) {
	var all sync.WaitGroup
	var requests, failed atomic.Int64
	next := s.trust(keyPair(t, "a.example"))
	stop := make(chan struct{})
	for _, from := range []string{"far", "near"} {
		for _, f := range []int{4, 6} {
			for _, short := range []bool{true, false} {
				client := s.client(from, f)
				client.Transport.(*http.Transport).DisableKeepAlives = short
				all.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(5 * time.Millisecond):
						}
						requests.Add(1)
						status, _, _, err := s.ask(client, "https://a.example/public")
						if err != nil || status != http.StatusOK {
							failed.Add(1)
							t.Errorf("from %s, IPv%d: %d, %v", from, f, status, err)
						}
					}
				})
			}
		}
	}
	probe := s.client("far", 4)
	probe.Transport.(*http.Transport).DisableKeepAlives = true
	for i := range 4 {
		s.a, next = next, s.a
		s.apply("secrets", s.secrets())
		want := serialOf(t, s.a)
		eventually(t, fmt.Sprintf("certificate %d", i), 20*time.Second, func() error {
			_, _, serial, err := s.ask(probe, "https://a.example/public")
			if err == nil && serial != want {
				err = errors.New("the certificate is the one before")
			}
			return err
		})
	}
	close(stop)
	all.Wait()
	t.Logf("%d of %d requests failed", failed.Load(), requests.Load())
	if requests.Load() == 0 {
		t.Error("no request was made")
	}
}

func serialOf(t *testing.T, secret map[string]string) string {
	t.Helper()
	block, _ := pem.Decode([]byte(secret["tls.crt"]))
	certificate, err := x509.ParseCertificate(block.Bytes)
	check(t, err)
	return certificate.SerialNumber.String()
}

// authority has the proxy trust another authority than the server's.
func (s *tlsScene) authority(t *testing.T) {
	right := s.back
	s.back = keyPair(t, "a.example", "b.example")
	s.apply("secrets", s.secrets())
	eventually(t, "the wrong authority", 20*time.Second, func() error {
		return s.want("https://b.example/b", http.StatusServiceUnavailable, "")
	})
	s.back = right
	s.apply("secrets", s.secrets())
	eventually(t, "the right authority", 20*time.Second, func() error {
		return s.want("https://b.example/b", http.StatusOK, "")
	})
}

// removal removes one certificate: its name is denied, the other goes on, also after a restart of the agent.
func (s *tlsScene) removal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "front-a.yaml")
	check(t, os.WriteFile(file, []byte(secretYAML("name: front-a", s.a, "tls.crt")), 0o600))
	check(t, s.Delete(t.Context(), file))
	eventually(t, "the removal", 20*time.Second, func() error { return s.denied("https://a.example/public") })
	check(t, s.want("https://b.example/b", http.StatusOK, ""))
	contains(t, "policy secrets", s.mustCLI("node2", "policy", "secrets"), "Secret default/front-a does not exist")
	check(t, s.Node("node2").RestartAgent(t.Context()))
	check(t, s.want("https://b.example/b", http.StatusOK, ""))
	check(t, s.denied("https://a.example/public"))
	s.apply("secrets", s.secrets())
	eventually(t, "the return", 20*time.Second, func() error {
		return s.want("https://a.example/public", http.StatusOK, "")
	})
}

// hidden looks for contents of Secrets in what users see, and at the file that has them.
func (s *tlsScene) hidden(t *testing.T) {
	key := strings.Split(s.a["tls.key"], "\n")[1]
	node := s.Node("node2")
	log, err := os.ReadFile(node.AgentLog())
	check(t, err)
	for name, text := range map[string]string{
		"the agent's log": string(log), "status": s.mustCLI("node2", "status", "--verbose", "-o", "json"),
		"the table of Secrets": s.mustCLI("node2", "table", "show", "secrets", "-o", "json"),
		"policy secrets":       s.mustCLI("node2", "policy", "secrets", "-o", "json"),
		"policy get":           s.mustCLI("node2", "policy", "get", "api", "-o", "json"),
		"flows":                s.mustCLI("node2", "observe", "--last", "1000", "-o", "json"),
	} {
		for _, secret := range []string{plantedSecret, key, base64.StdEncoding.EncodeToString([]byte(plantedSecret))} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q:\n%.2000s", name, secret, text)
			}
		}
	}
	file := l7control.ConfigFile(node.RunDir())
	data, err := os.ReadFile(file)
	check(t, err)
	info, err := os.Stat(file)
	check(t, err)
	if info.Mode().Perm() != 0o600 || !strings.Contains(string(data), base64.StdEncoding.EncodeToString(
		[]byte(plantedSecret))) {
		t.Errorf("%s has mode %s and %d bytes", file, info.Mode(), len(data))
	}
	dir, err := os.Stat(l7control.Dir(node.RunDir()))
	check(t, err)
	if dir.Mode().Perm()&0o077 != 0 {
		t.Errorf("%s has mode %s", l7control.Dir(node.RunDir()), dir.Mode())
	}
}
