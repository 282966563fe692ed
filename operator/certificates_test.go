package operator_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"myelin/operator"
	"myelin/operator/pki"
	"myelin/test/kube/apiserver"
)

const secrets = "/api/v1/namespaces/kube-system/secrets/"

// clock is ahead of the machine's by as much as the test wants.
type clock struct{ ahead atomic.Int64 }

func (c *clock) read() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *clock) pass(d time.Duration) { c.ahead.Add(int64(d)) }

// certified is a server on which an operator may make certificates, and the clock of its operator.
func certified(t *testing.T) (*cluster, *clock, func(names ...string) *running) {
	c := newCluster(t)
	c.server.Grant(apiserver.Operator, "certificates-role.yaml")
	at := &clock{}
	return c, at, func(names ...string) *running {
		h := operator.HubbleCertificates{Kinds: operator.HubbleKinds(), Validity: 90 * 24 * time.Hour,
			ServerNames: names}
		list, err := h.Certificates()
		if err != nil {
			t.Fatal(err)
		}
		return c.start(c.make("", func(p *operator.Params) {
			p.Certificates, p.CertificatePace, p.Now = list, 20*time.Millisecond, at.read
		}))
	}
}

// secret reads a Secret; nil: there is none.
func (c *cluster) secret(name string) *corev1.Secret {
	c.Helper()
	code, body := c.server.Try(http.MethodGet, secrets+name, "", nil)
	if code != http.StatusOK {
		return nil
	}
	s := &corev1.Secret{}
	if err := json.Unmarshal(body, s); err != nil {
		c.Fatal(err)
	}
	return s
}

// written waits for a Secret that is another one than before.
func (c *cluster) written(name string, before *corev1.Secret) *corev1.Secret {
	c.Helper()
	var s *corev1.Secret
	c.eventually(name+" is written", func() string {
		if s = c.secret(name); s == nil || before != nil && s.ResourceVersion == before.ResourceVersion {
			return "it is not"
		}
		return ""
	})
	return s
}

// handshake connects a client to a server with the certificates of two Secrets, at a time.
func handshake(t *testing.T, client, server *corev1.Secret, name string, now time.Time) error {
	t.Helper()
	load := func(s *corev1.Secret) ([]tls.Certificate, *x509.CertPool) {
		pair, err := tls.X509KeyPair(s.Data["tls.crt"], s.Data["tls.key"])
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(s.Data["ca.crt"])
		return []tls.Certificate{pair}, pool
	}
	at := func() time.Time { return now }
	serverPair, clientCAs := load(server)
	clientPair, roots := load(client)
	a, b := net.Pipe()
	defer a.Close()
	done := make(chan error, 1)
	go func() {
		defer b.Close()
		done <- tls.Server(b, &tls.Config{Certificates: serverPair, ClientCAs: clientCAs, Time: at,
			ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13}).HandshakeContext(t.Context())
	}()
	conn := tls.Client(a, &tls.Config{Certificates: clientPair, RootCAs: roots, ServerName: name, Time: at,
		MinVersion: tls.VersionTLS13})
	if err := conn.HandshakeContext(t.Context()); err != nil {
		return err
	}
	go conn.Read(make([]byte, 1)) // the server's tickets
	return <-done
}

// TestCertificates: all Secrets are made, work with each other, and are made again when they are gone or others are
// wanted.
func TestCertificates(t *testing.T) {
	c, at, run := certified(t)
	r := run()
	server, relay := c.written("hubble-server-certs", nil), c.written("hubble-relay-client-certs", nil)
	relayServer, ui := c.written("hubble-relay-server-certs", nil), c.written("hubble-ui-client-certs", nil)
	c.written("hubble-metrics-server-certs", nil)
	if server.Type != corev1.SecretTypeTLS {
		t.Errorf("type %s", server.Type)
	}
	if err := handshake(t, relay, server, "n-1.default.hubble-grpc.cilium.io", at.read()); err != nil {
		t.Errorf("relay and node: %v", err)
	}
	if err := handshake(t, ui, relayServer, "ui.hubble-relay.cilium.io", at.read()); err != nil {
		t.Errorf("web page and relay: %v", err)
	}
	if err := handshake(t, relayServer, server, "n1.default.hubble-grpc.cilium.io", at.read()); err == nil {
		t.Error("a certificate for servers is accepted of a client")
	}
	c.metrics(r, `myelin_operator_leading 1`)
	code, _ := c.server.Try(http.MethodDelete, secrets+"hubble-server-certs", "", nil)
	if code != http.StatusOK {
		t.Fatal(code)
	}
	again := c.written("hubble-server-certs", server)
	if err := handshake(t, relay, again, "n1.default.hubble-grpc.cilium.io", at.read()); err != nil {
		t.Errorf("after a Secret was deleted: %v", err)
	}
	r.stop()
	run("extra.example.org", "2001:db8::5")
	more := c.written("hubble-server-certs", again)
	for _, name := range []string{"extra.example.org", "2001:db8::5", "n1.default.hubble-grpc.cilium.io"} {
		if err := handshake(t, relay, more, name, at.read()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if now := c.secret("hubble-relay-client-certs"); now.ResourceVersion != relay.ResourceVersion {
		t.Error("a certificate that is as wanted is written again")
	}
}

// TestCertificatesRenewed: certificates and the CA are replaced before they expire, and at no time does a side that
// has the new Secret not work with one that has still the old.
func TestCertificatesRenewed(t *testing.T) {
	c, at, run := certified(t)
	run()
	server, relay := c.written("hubble-server-certs", nil), c.written("hubble-relay-client-certs", nil)
	ca := c.written("myelin-ca", nil)
	check := func(what string, relays, servers []*corev1.Secret) {
		t.Helper()
		for _, r := range relays {
			for _, s := range servers {
				if err := handshake(t, r, s, "n1.default.hubble-grpc.cilium.io", at.read()); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
		}
	}
	renewals, changes := 0, 0
	const step = 12 * time.Hour
	for passed := time.Duration(0); passed < 4*365*24*time.Hour; passed += step {
		at.pass(step)
		// Whatever is due now is written within moments; what isn't needs no waiting: most steps change nothing.
		if !due(t, server, ca, at.read()) {
			continue
		}
		time.Sleep(200 * time.Millisecond)
		s, r, a := c.secret("hubble-server-certs"), c.secret("hubble-relay-client-certs"), c.secret("myelin-ca")
		check("after "+passed.String(), []*corev1.Secret{r, relay}, []*corev1.Secret{s, server})
		if !bytes.Equal(s.Data["tls.crt"], server.Data["tls.crt"]) {
			renewals++
		}
		if !bytes.Equal(a.Data["ca.key"], ca.Data["ca.key"]) {
			changes++
		}
		server, relay, ca = s, r, a
	}
	if renewals < 20 || changes < 1 {
		t.Errorf("%d renewals and %d changes of the CA in four years", renewals, changes)
	}
}

// due reports whether something is to be replaced: certificates with less than a third of 90 days left, or a CA.
func due(t *testing.T, server, ca *corev1.Secret, now time.Time) bool {
	t.Helper()
	if (pki.Pair{Cert: server.Data["tls.crt"]}).Expires().Sub(now) < 31*24*time.Hour || ca.Data["next.crt"] != nil {
		return true
	}
	a, err := pki.ReadAuthority(pki.Pair{Cert: ca.Data["ca.crt"], Key: ca.Data["ca.key"]})
	if err != nil {
		t.Fatal(err)
	}
	return a.Old(now)
}

// TestCertificatesOfOthers: Secrets that the operator did not make stay as they are, and a CA of others signs.
func TestCertificatesOfOthers(t *testing.T) {
	c, at, run := certified(t)
	own, err := pki.NewAuthority("Corporate CA", at.read(), 365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, data map[string][]byte) *corev1.Secret {
		object := &corev1.Secret{Data: data}
		object.APIVersion, object.Kind, object.Name = "v1", "Secret", name
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		c.put(secrets+name, string(text))
		return c.secret(name)
	}
	ca := put("myelin-ca", map[string][]byte{"ca.crt": own.Cert, "ca.key": own.Key})
	theirs := put("hubble-server-certs", map[string][]byte{"tls.crt": []byte("theirs")})
	r := run()
	client := c.written("hubble-relay-client-certs", nil)
	if !bytes.Equal(client.Data["ca.crt"], own.Certificate()) {
		t.Error("the CA that is there is not used")
	}
	at.pass(364 * 24 * time.Hour) // what the operator made is renewed; the rest expires
	c.written("hubble-relay-client-certs", client)
	for name, before := range map[string]*corev1.Secret{"myelin-ca": ca, "hubble-server-certs": theirs} {
		if now := c.secret(name); now.ResourceVersion != before.ResourceVersion {
			t.Errorf("%s is overwritten", name)
		}
	}
	r.stop()
	put("myelin-ca", map[string][]byte{"ca.crt": []byte("none")})
	r = run()
	c.eventually("the problem is told", func() string {
		_, err := r.State()
		if err == nil {
			return "it is not"
		}
		if !bytes.Contains([]byte(err.Error()), []byte("Secret kube-system/myelin-ca: ")) {
			return err.Error()
		}
		return ""
	})
}
