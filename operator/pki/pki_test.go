package pki

import (
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"
)

const year = 365 * 24 * time.Hour

func start() time.Time { return time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC) }

func authority(t *testing.T, now time.Time) *Authority {
	t.Helper()
	a, err := NewAuthority("Test CA", now, 3*year)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func issue(t *testing.T, a *Authority, r Request, now time.Time) Pair {
	t.Helper()
	p, err := a.Issue(r, now)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func server() Request {
	return Request{CommonName: "*.default.hubble-grpc.cilium.io", Names: []string{"*.default.hubble-grpc.cilium.io",
		"192.0.2.1", "2001:DB8::1"}, Server: true, Client: true, Validity: year}
}

// verify has Go's own verification check a certificate, as clients and servers do.
func verify(t *testing.T, p Pair, roots []byte, name string, now time.Time, usage x509.ExtKeyUsage) error {
	t.Helper()
	block, _ := pem.Decode(p.Cert)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	_, err = c.Verify(x509.VerifyOptions{Roots: pool, DNSName: name, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

func TestIssue(t *testing.T) {
	now := start()
	a, other := authority(t, now), authority(t, now)
	p := issue(t, a, server(), now)
	for _, tc := range []struct {
		what, name string
		roots      []byte
		at         time.Time
		usage      x509.ExtKeyUsage
		want       string
	}{
		{"a node", "n1.default.hubble-grpc.cilium.io", a.Certificate(), now, x509.ExtKeyUsageServerAuth, ""},
		{"a clock behind", "n1.default.hubble-grpc.cilium.io", a.Certificate(), now.Add(-59 * time.Minute),
			x509.ExtKeyUsageServerAuth, ""},
		{"IPv4", "192.0.2.1", a.Certificate(), now, x509.ExtKeyUsageServerAuth, ""},
		{"IPv6", "2001:db8::1", a.Certificate(), now, x509.ExtKeyUsageServerAuth, ""},
		{"a client", "", a.Certificate(), now, x509.ExtKeyUsageClientAuth, ""},
		{"another cluster", "n1.east.hubble-grpc.cilium.io", a.Certificate(), now, x509.ExtKeyUsageServerAuth,
			"not n1.east"},
		{"another CA", "", other.Certificate(), now, x509.ExtKeyUsageServerAuth, "unknown authority"},
		{"too late", "", a.Certificate(), now.Add(year + time.Minute), x509.ExtKeyUsageServerAuth, "expired"},
		{"another use", "", a.Certificate(), now, x509.ExtKeyUsageCodeSigning, "usage"},
	} {
		err := verify(t, p, tc.roots, tc.name, tc.at, tc.usage)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", tc.what, err, tc.want)
		}
	}
	if _, err := ReadAuthority(p); err == nil || !strings.Contains(err.Error(), "not that of a CA") {
		t.Errorf("a certificate that is no CA's: %v", err)
	}
}

func TestOutdated(t *testing.T) {
	now := start()
	a := authority(t, now)
	r := server()
	p := issue(t, a, r, now)
	change := func(f func(*Request)) Request {
		r := server()
		f(&r)
		return r
	}
	for _, tc := range []struct {
		what string
		a    *Authority
		p    Pair
		r    Request
		at   time.Time
		want string
	}{
		{"new", a, p, r, now, ""},
		{"two thirds over", a, p, r, now.Add(year*2/3 - time.Hour), ""},
		{"less than a third left", a, p, r, now.Add(year*2/3 + time.Hour), "expires at 2027-11-24T00:00:00Z"},
		{"another CA", authority(t, now), p, r, now, "another CA"},
		{"another name", a, p, change(func(r *Request) { r.Names[0] = "x" }), now, "it is for "},
		{"a name more", a, p, change(func(r *Request) { r.Names = append(r.Names, "x") }), now, "it is for "},
		{"other uses", a, p, change(func(r *Request) { r.Client = false }), now, "other uses"},
		{"shorter", a, p, change(func(r *Request) { r.Validity = year / 2 }), now, "longer than is wanted"},
		{"no certificate", a, Pair{Cert: []byte("x"), Key: p.Key}, r, now, "failed to find any PEM"},
		{"another key", a, Pair{Cert: p.Cert, Key: issue(t, a, r, now).Key}, r, now, "does not match"},
	} {
		got := tc.a.Outdated(tc.p, tc.r, tc.at)
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.what, got, tc.want)
		}
	}
	late := now.Add(3*year - 30*24*time.Hour)
	if short := issue(t, a, r, late); !short.Expires().Equal(now.Add(3 * year)) {
		t.Errorf("a certificate outlives its CA: %s", short.Expires())
	}
}

func TestBundle(t *testing.T) {
	now := start()
	a, b := authority(t, now), authority(t, now.Add(year))
	both := Bundle(now, a.Certificate(), []byte("no certificate\n"), append(b.Certificate(), a.Certificate()...))
	if got := strings.Count(string(both), "BEGIN"); got != 2 {
		t.Errorf("%d certificates, want 2", got)
	}
	if got := Bundle(now.Add(3*year+time.Hour), both); string(got) != string(b.Certificate()) {
		t.Error("an expired CA is kept")
	}
}
