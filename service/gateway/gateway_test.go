package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apiv1 "myelin/api/v1"
)

// freeAddress is an address of loopback with a port that was free a moment ago.
func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// run runs a load balancer until the test, or what is returned, ends it.
func (r *rig) run() (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stopped := false
	stop = func() {
		if cancel(); stopped {
			return
		}
		stopped = true
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	}
	r.t.Cleanup(stop)
	return stop
}

// peering is the configuration of a load balancer that listens at one address and has a peer at the other.
func peering(listen, peer, how string) string {
	const text = "loadBalancer.mode: dsr\nmyelin.gateway: {peers: [%q], listenAddress: %q, %s}"
	return fmt.Sprintf(text, peer, listen, how)
}

const trusted = "trustedNetwork: true"

// to is the state of the peer that gets flows.
func (r *rig) to() string {
	p := r.Peers()[0]
	return fmt.Sprintf("%s, %d behind, refused %s", p.State, p.Behind, p.Refusals())
}

func (r *rig) has(port uint16) func() string { return func() string { return r.entries()[port] } }

// A peer gets what is there when it connects, and then each change, over certificates and without; what it has learned
// is not sent back; it learns the same again after it was away, and what it had refused when its Services have changed.
func TestPeers(t *testing.T) {
	eachFamily(t, func(t *testing.T, v6 bool) {
		at := [2]string{freeAddress(t), freeAddress(t)}
		a := newRig(t, v6, 4096, peering(at[0], at[1], trusted))
		b := newRig(t, v6, 4096, peering(at[1], at[0], trusted))
		pod1 := a.named("@pod1:8080")
		a.forward(a.flow(40000), 2)
		a.run()
		stop := b.run()
		eventually(t, "a snapshot", pod1+" learned", b.has(40000))
		eventually(t, "b is up to date", "connected, 0 behind, refused ", a.to)
		a.forward(a.flow(40001), 2)
		eventually(t, "a new flow", pod1+" learned", b.has(40001))
		m := a.flow(40001)
		m.State = closing
		key := a.forward(m, 3)
		eventually(t, "a flow that closes", pod1+" closing learned", b.has(40001))
		if err := a.Datapath.NatEntries.Delete(key); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a flow that has ended", "", b.has(40001))
		stop()
		if err := b.Datapath.NatEntries.Delete(a.forward(a.flow(40000), 2)); err != nil {
			t.Fatal(err)
		}
		b.Gateway = mustNew(t, b.Params)
		b.run()
		eventually(t, "a snapshot for a new agent", pod1+" learned", b.has(40000))

		b.serve(1)
		m = a.flow(40002)
		m.BackendAddress = a.addr("@pod2").AsSlice()
		a.forward(m, 2)
		eventually(t, "a backend that b lacks", "connected, 0 behind, refused no_backend: 1", a.to)
		b.serve(2)
		a.senders[0].session.Load().asked.Store(0) // as if b had connected long ago
		eventually(t, "a backend that b has again", a.named("@pod2:8080")+" learned", b.has(40002))
		eventually(t, "nothing is refused any more", "connected, 0 behind, refused ", a.to)
		if n := b.senders[0].sent.Load(); n > 0 || len(b.walk.index.flows) > 0 {
			t.Errorf("b has sent %d flows back, and wants to send %v", n, b.walk.index.flows)
		}
	})
}

func mustNew(t *testing.T, p Params) *Gateway {
	t.Helper()
	g, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Only peers with a certificate of the authority, which has their address, get or send flows.
func TestCertificates(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	local, other := net.ParseIP("127.0.0.1"), net.ParseIP("127.0.0.9")
	for name, tc := range map[string]struct {
		client, server string
		want           string // of the error at the client; empty: connected
	}{
		"good":                        {ours.files(t, local, ours), ours.files(t, local, ours), ""},
		"a server of others":          {ours.files(t, local, ours), theirs.files(t, local, ours), "unknown authority"},
		"a server of another address": {ours.files(t, local, ours), ours.files(t, other, ours), "not 127.0.0.1"},
		"a client of others":          {theirs.files(t, local, ours), ours.files(t, local, ours), "tls: "},
		"a client without":            {trusted, ours.files(t, local, ours), "error reading server preface"},
		"a server without":            {ours.files(t, local, ours), trusted, "tls: "},
	} {
		at := [2]string{freeAddress(t), freeAddress(t)}
		a := newRig(t, false, 4096, peering(at[0], at[1], tc.client))
		b := newRig(t, false, 4096, peering(at[1], at[0], tc.server))
		a.forward(a.flow(40000), 2)
		stopB := b.run()
		stopA := a.run()
		eventually(t, name, "true", func() string {
			p := a.Peers()[0]
			if tc.want == "" {
				return fmt.Sprint(p.State == Connected && b.entries()[40000] != "")
			}
			if strings.Contains(p.Error, tc.want) {
				return "true"
			}
			return p.Error
		})
		if got := b.entries(); tc.want != "" && len(got) > 0 {
			t.Errorf("%s: %v", name, got)
		}
		stopA()
		stopB()
	}
}

// Without certificates, connections from other addresses are closed.
func TestTrustedNetwork(t *testing.T) {
	listen := freeAddress(t)
	newRig(t, false, 4096, peering(listen, "127.0.0.2:1", trusted)).run()
	for from, want := range map[string]bool{"127.0.0.2": true, "127.0.0.3": false} {
		eventually(t, from, fmt.Sprint(want), func() string {
			dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
			conn, err := dialer.Dial("tcp", listen)
			if err != nil {
				return err.Error()
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
			n, _ := conn.Read(make([]byte, 1)) // of the server's settings
			return fmt.Sprint(n > 0)
		})
	}
}

// A peer cannot send more than it may.
func TestOversized(t *testing.T) {
	listen := freeAddress(t)
	r := newRig(t, false, 4096, peering(listen, "127.0.0.1:1", trusted))
	r.run()
	a := newRig(t, false, 4096, peering(freeAddress(t), listen, trusted))
	for name, tc := range map[string]struct {
		batch []*apiv1.PeerFlow
		want  string
	}{
		"flows": {make([]*apiv1.PeerFlow, maxBatch+1), "1025 flows in a message, want at most 1024"},
		"bytes": {[]*apiv1.PeerFlow{{ClientAddress: make([]byte, maxMessage)}}, "received message larger than max"},
	} {
		for i := range tc.batch {
			if tc.batch[i] == nil {
				tc.batch[i] = a.flow(40000)
			}
		}
		s := &sender{gateway: a.Gateway, address: netip.MustParseAddrPort(listen)}
		ended := make(chan error, 1)
		go func() {
			for {
				if err := s.connect(t.Context()); !strings.Contains(err.Error(), "refused") {
					ended <- err
					return
				}
			}
		}()
		eventually(t, name, "true", func() string { return fmt.Sprint(s.session.Load() != nil) })
		s.session.Load().queue <- tc.batch
		if err := <-ended; err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
	}
	if got := r.entries(); len(got) > 0 {
		t.Errorf("entries %v", got)
	}
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{}
	template := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.cert, a.key, a.pem = a.sign(t, template)
	return a
}

// sign makes a certificate, and signs it by itself if there is no authority yet.
func (a *authority) sign(t *testing.T, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: "test"}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// files writes a new certificate of the address, and that of the authority of peers. It returns the configuration.
func (a *authority) files(t *testing.T, ip net.IP, peers *authority) string {
	t.Helper()
	dir := t.TempDir()
	_, key, cert := a.sign(t, &x509.Certificate{IPAddresses: []net.IP{ip}})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text := "tls: {"
	for name, data := range map[string][]byte{
		"certFile": cert,
		"keyFile":  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		"caFile":   peers.pem,
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprintf("%s: %q, ", name, path)
	}
	return strings.TrimSuffix(text, ", ") + "}"
}
