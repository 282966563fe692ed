// Package pki is a small certificate authority: it issues certificates for Hubble, and says when they are to be
// replaced. Its functions are pure but for random numbers.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
)

// backdate has certificates be valid for clocks that are behind.
const backdate = time.Hour

// Pair is a certificate and its key, in PEM. Of the certificates in Cert the first is that of Key.
type Pair struct{ Cert, Key []byte }

// Expires is when the certificate does; zero if it can't be read.
func (p Pair) Expires() time.Time {
	block, _ := pem.Decode(p.Cert)
	if block == nil {
		return time.Time{}
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}
	}
	return c.NotAfter
}

// Request is what a certificate is to be.
type Request struct {
	CommonName string
	Names      []string // DNS names and IP addresses
	Server     bool     // for servers
	Client     bool     // for clients
	Validity   time.Duration
}

// Authority signs certificates.
type Authority struct {
	Pair

	cert *x509.Certificate
	key  crypto.Signer
}

// NewAuthority makes an authority with a certificate of its own.
func NewAuthority(name string, now time.Time, validity time.Duration) (*Authority, error) {
	t := template(name, now, validity)
	t.IsCA, t.BasicConstraintsValid = true, true
	t.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	pair, err := sign(t, nil)
	if err != nil {
		return nil, err
	}
	return ReadAuthority(pair)
}

// ReadAuthority reads an authority. Of several certificates in p.Cert the first is its own.
func ReadAuthority(p Pair) (*Authority, error) {
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		return nil, fmt.Errorf("read a CA: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("read a CA: its certificate is not that of a CA")
	}
	return &Authority{Pair: p, cert: pair.Leaf, key: key}, nil
}

// Certificate is the authority's own certificate alone, in PEM.
func (a *Authority) Certificate() []byte { return encode(a.cert.Raw) }

// Begin is when the authority was made.
func (a *Authority) Begin() time.Time { return a.cert.NotBefore.Add(backdate) }

// Old reports whether less than a third of the authority's time is left.
func (a *Authority) Old(now time.Time) bool { return old(a.cert, now) }

// Issue makes a certificate.
func (a *Authority) Issue(r Request, now time.Time) (Pair, error) {
	t := template(r.CommonName, now, r.Validity)
	if t.NotAfter.After(a.cert.NotAfter) {
		t.NotAfter = a.cert.NotAfter
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = r.usages()
	for _, name := range r.Names {
		if ip := net.ParseIP(name); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, name)
		}
	}
	return sign(t, a)
}

func (r Request) usages() (list []x509.ExtKeyUsage) {
	if r.Server {
		list = append(list, x509.ExtKeyUsageServerAuth)
	}
	if r.Client {
		list = append(list, x509.ExtKeyUsageClientAuth)
	}
	return list
}

// Outdated says why a certificate is to be replaced; empty: it is as requested, of this authority, and has more than a
// third of its time left.
func (a *Authority) Outdated(p Pair, r Request, now time.Time) string {
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		return err.Error()
	}
	c := pair.Leaf
	names := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	want := slices.Clone(r.Names)
	for i, name := range want {
		if ip := net.ParseIP(name); ip != nil {
			want[i] = ip.String()
		}
	}
	slices.Sort(names)
	slices.Sort(want)
	switch {
	case c.CheckSignatureFrom(a.cert) != nil:
		return "it is of another CA"
	case c.Subject.CommonName != r.CommonName || !slices.Equal(names, want):
		return fmt.Sprintf("it is for %v, not %v", names, want)
	case !slices.Equal(c.ExtKeyUsage, r.usages()):
		return "it is for other uses"
	case c.NotAfter.Sub(c.NotBefore) > r.Validity+backdate+time.Second:
		return "it is valid for longer than is wanted"
	case old(c, now):
		return "it expires at " + c.NotAfter.UTC().Format(time.RFC3339)
	}
	return ""
}

func old(c *x509.Certificate, now time.Time) bool {
	return c.NotAfter.Sub(now) < c.NotAfter.Sub(c.NotBefore)/3
}

// Bundle joins certificates in PEM: each one once, and none that has expired.
func Bundle(now time.Time, lists ...[]byte) []byte {
	var out bytes.Buffer
	seen := map[string]bool{}
	for _, rest := range lists {
		var block *pem.Block
		for block, rest = pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil || now.After(c.NotAfter) || seen[string(block.Bytes)] {
				continue
			}
			seen[string(block.Bytes)] = true
			out.Write(encode(block.Bytes))
		}
	}
	return out.Bytes()
}

func template(name string, now time.Time, validity time.Duration) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-backdate).UTC(),
		NotAfter: now.Add(validity).UTC()}
}

// sign makes a key and a certificate of a template; without an authority it signs itself.
func sign(t *x509.Certificate, a *Authority) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make a key: %w", err)
	}
	if t.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return Pair{}, fmt.Errorf("choose a serial number: %w", err)
	}
	parent, signer := t, crypto.Signer(key)
	if a != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, signer)
	if err != nil {
		return Pair{}, fmt.Errorf("sign a certificate: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, fmt.Errorf("encode a key: %w", err)
	}
	return Pair{Cert: encode(der), Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}, nil
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
