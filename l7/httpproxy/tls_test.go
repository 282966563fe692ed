package httpproxy_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"myelin/cluster"
	"myelin/l7/config"
	"myelin/l7/httpproxy"
	"myelin/policy"
)

// certificate is one of its own authority for names, as a Secret has it.
func certificate(t testing.TB, names ...string) map[string][]byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: names[0]},
		DNSNames: names, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return map[string][]byte{"ca.crt": chain, "tls.crt": chain,
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}
}

// tlsServer answers by HTTP/1.1 and HTTP/2 with the SNI and protocol that it sees.
func tlsServer(t testing.TB, secret map[string][]byte) string {
	pair, err := tls.X509KeyPair(secret["tls.crt"], secret["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.TLS.ServerName+" "+r.Proto+" "+r.URL.Path)
	}))
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// httpsClient connects to an address whatever the URL says.
func httpsClient(t testing.TB, address string, secret map[string][]byte, wrap func(net.Conn) net.Conn,
	protocols ...string) *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(secret["ca.crt"])
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, NextProtos: protocols},
		Protocols: &http.Protocols{}, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil || wrap == nil {
				return conn, err
			}
			return wrap(conn), nil
		}}
	transport.Protocols.SetHTTP1(len(protocols) == 0 || protocols[0] != "h2")
	transport.Protocols.SetHTTP2(len(protocols) > 0)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func get(client *http.Client, url string) (string, error) {
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.Status[:3] + " " + string(body), err
}

// shredder writes the first record, which has the ClientHello, as records of few bytes, in several segments.
type shredder struct {
	net.Conn
	done bool
}

func (s *shredder) Write(b []byte) (int, error) {
	if s.done {
		return s.Conn.Write(b)
	}
	s.done = true
	for rest := b[5:]; len(rest) > 0; {
		n := min(len(rest), 50)
		record := append([]byte{22, 3, 1, 0, byte(n)}, rest[:n]...)
		for _, piece := range [][]byte{record[:3], record[3:]} {
			if _, err := s.Conn.Write(piece); err != nil {
				return 0, err
			}
		}
		rest = rest[n:]
	}
	return len(b), nil
}

func TestServerNames(t *testing.T) {
	secret := certificate(t, "a.example.org", "b.c.example.org", "other.org")
	names := config.Rule{Parts: []config.Part{{L7: policy.L7{ServerNames: []string{"*.example.org"}}}}}
	r := newRig(t, tlsServer(t, secret), config.HTTP{}, compile(t, names, nil))
	for _, test := range []struct {
		name, host string
		wrap       func(net.Conn) net.Conn
		want       string
	}{
		{"match", "A.example.org", nil, "200 a.example.org HTTP/2.0 /"},
		{"fragments", "a.example.org", func(c net.Conn) net.Conn { return &shredder{Conn: c} },
			"200 a.example.org HTTP/2.0 /"},
		{"two labels", "b.c.example.org", nil, ""},
		{"other name", "other.org", nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := get(httpsClient(t, r.address, secret, test.wrap, "h2"), "https://"+test.host+"/")
			if !strings.EqualFold(got, test.want) {
				t.Errorf("got %q: %v", got, err)
			}
			if test.want == "" && (err == nil || !strings.Contains(err.Error(), "unrecognized name")) {
				t.Errorf("error %v", err)
			}
		})
	}
	for _, text := range []string{"GET / HTTP/1.1\r\nHost: a.example.org\r\n\r\n",
		"\x16\x03\x01\x00\x05hello", "\x00"} {
		conn := r.connect()
		io.WriteString(conn, text)
		if got, _ := io.ReadAll(conn); len(got) > 0 {
			t.Errorf("%q was answered by %q", text, got)
		}
	}
	if r.dials != 2 {
		t.Errorf("%d connections to the server", r.dials)
	}
	records := r.recorded()
	if len(records) != 4 || records[0].Protocol != "TLS" || records[3].ServerName != "other.org" ||
		records[3].Denied != 0 {
		t.Errorf("records %+v", records)
	}
}

func TestTerminatingOriginating(t *testing.T) {
	inside, outside := certificate(t, "a.example.org"), certificate(t, "a.example.org")
	ref := func(name string) policy.SecretRef { return policy.SecretRef{Namespace: "n", Name: name} }
	secrets := httpproxy.Secrets{ref("inside"): inside, ref("outside"): {"ca.crt": outside["ca.crt"]}}
	rule := config.Rule{Parts: []config.Part{{L7: policy.L7{HTTP: []policy.HTTPRule{{Path: "/a"}},
		Terminating: &policy.TLSContext{Secret: ref("inside")},
		Originating: &policy.TLSContext{Secret: ref("outside")}}}}}
	r := newRig(t, tlsServer(t, outside), config.HTTP{}, compile(t, rule, secrets))
	for _, test := range []struct {
		protocols []string
		want      string
	}{{nil, "HTTP/1.1"}, {[]string{"h2"}, "HTTP/2.0"}} {
		client := httpsClient(t, r.address, inside, nil, test.protocols...)
		for range 2 {
			if got, err := get(client, "https://a.example.org/a"); got != "200 a.example.org "+test.want+" /a" {
				t.Errorf("%v: got %q: %v", test.protocols, got, err)
			}
			if got, err := get(client, "https://a.example.org/b"); got != "403 Access denied\r\n" {
				t.Errorf("%v, denied: got %q: %v", test.protocols, got, err)
			}
		}
	}
	// The server's certificate is of another authority than the Secret's.
	wrong := newRig(t, tlsServer(t, inside), config.HTTP{}, compile(t, rule, secrets))
	client := httpsClient(t, wrong.address, inside, nil)
	if got, err := get(client, "https://a.example.org/a"); !strings.HasPrefix(got, "503") {
		t.Errorf("wrong authority: got %q: %v", got, err)
	}
}

// TestPass passes connections without HTTP rules, also where the server speaks first.
func TestPass(t *testing.T) {
	server := rawServer(t, func(conn net.Conn) {
		io.WriteString(conn, "hello ")
		io.Copy(conn, conn)
	})
	all := config.Rule{Parts: []config.Part{{}}}
	r := newRig(t, server, config.HTTP{}, compile(t, all, nil))
	conn := r.connect()
	if _, err := io.ReadFull(conn, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	sent := bytes.Repeat([]byte("x"), 1<<20)
	go func() {
		conn.Write(sent)
		conn.CloseWrite()
	}()
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("got %d bytes: %v", len(got), err)
	}
	denied := newRig(t, server, config.HTTP{}, compile(t, all, nil), compile(t, config.Rule{}, nil))
	if got, _ := io.ReadAll(denied.connect()); len(got) > 0 || denied.dials > 0 {
		t.Errorf("denied: got %q", got)
	}
}

// TestCompileErrors names what cannot be enforced; it allows nothing, and the rest stays.
func TestCompileErrors(t *testing.T) {
	secret := &policy.SecretRef{Namespace: "n", Name: "missing"}
	for _, test := range []struct {
		rule policy.L7
		want string
	}{
		{policy.L7{HTTP: []policy.HTTPRule{{Path: "/("}}}, "path: parse regular expression"},
		{policy.L7{HTTP: []policy.HTTPRule{{Method: "a)(b"}}}, "method: parse regular expression"},
		{policy.L7{HTTP: []policy.HTTPRule{{Headers: []string{"a b: c"}}}}, "is not a header"},
		{policy.L7{HTTP: []policy.HTTPRule{{HeaderMatches: []policy.HeaderMatch{{Name: "A", Secret: secret,
			Mismatch: policy.MismatchAdd}}}}}, "Secret n/missing has 0 values"},
		{policy.L7{HTTP: []policy.HTTPRule{{HeaderMatches: []policy.HeaderMatch{{Name: "Host", Value: "a",
			Mismatch: policy.MismatchReplace}}}}}, "Host cannot be changed"},
		{policy.L7{Terminating: &policy.TLSContext{Secret: *secret}}, "terminatingTLS"},
		{policy.L7{Originating: &policy.TLSContext{Secret: *secret}}, "originatingTLS"},
	} {
		origin := policy.Origin{Ref: policy.Ref{Kind: "CiliumNetworkPolicy",
			Key: cluster.Key{Namespace: "n", Name: "p"}}}
		good := policy.L7{HTTP: []policy.HTTPRule{{Path: "/good"}}}
		parts := []config.Part{{Origin: origin, L7: test.rule}, {L7: good}}
		set, err := httpproxy.Compile(config.Rule{Parts: parts}, nil)
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "n/p") {
			t.Errorf("%+v: %v", test.rule, err)
		}
		bad := set.Match(&httpproxy.Request{Method: "GET", Path: "/bad", Host: "a"})
		if ok := set.Match(&httpproxy.Request{Method: "GET", Path: "/good"}); bad.Allowed || !ok.Allowed {
			t.Errorf("%+v: allowed %v and %v", test.rule, bad.Allowed, ok.Allowed)
		}
	}
}
