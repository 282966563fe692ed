package ipsec

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	testHex = "000102030405060708090a0b0c0d0e0f10111213"
	testKey = "3+ rfc4106(gcm(aes)) " + testHex + " 128\n"
)

func TestParseSecret(t *testing.T) {
	for text, want := range map[string]string{ // empty: it is one
		testKey: "",
		"15 rfc4106(gcm(aes)) 0x" + testHex + " 96":              "",
		"1+ rfc4106(gcm(aes)) " + testHex + testHex[:32] + " 64": "",
		"":                               "it has 0 fields",
		"3+ hmac(sha256) 00 cbc(aes) 00": "it has 5 fields",
		"0+ rfc4106(gcm(aes)) " + testHex + " 128":       "field 1",
		"16 rfc4106(gcm(aes)) " + testHex + " 128":       "field 1",
		"3++ rfc4106(gcm(aes)) " + testHex + " 128":      "field 1",
		"3+ gcm(aes) " + testHex + " 128":                "field 2",
		"3+ rfc4106(gcm(aes)) secret" + testHex + " 128": "field 3: the key must be in hexadecimal",
		"3+ rfc4106(gcm(aes)) " + testHex[:32] + " 128":  "field 3: the key has 16 bytes",
		"3+ rfc4106(gcm(aes)) " + testHex + " 129":       "field 4",
		testKey + testKey:                                "more than one line",
	} {
		_, err := parseSecret(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), testHex[:16])) {
			t.Errorf("the error has a part of the key in it: %v", err)
		}
	}
}

// The error names the file.
func TestReadSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys")
	if _, err := readSecret(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readSecret(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("no key: %v", err)
	}
}

func testSecret(t *testing.T, id string, last string) *secret {
	t.Helper()
	s, err := parseSecret(id + "+ rfc4106(gcm(aes)) " + testHex[:38] + last + " 128")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func testWay() way {
	return way{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), "aa", "bb"}
}

// Keys and SPIs change with each of the inputs, and are the same on both nodes. The text fixes the derivation: nodes of
// different versions must agree.
func TestDerive(t *testing.T) {
	w := testWay()
	base, err := testSecret(t, "3", "13").derive(w)
	if err != nil {
		t.Fatal(err)
	}
	other := w
	other.From = netip.MustParseAddr("2001:db8::1")
	seen := [][]byte{base.Key}
	spis := map[uint32]bool{base.SPI: true}
	for name, c := range map[string]struct {
		s *secret
		w way
	}{
		"back":             {testSecret(t, "3", "13"), w.back()},
		"another address":  {testSecret(t, "3", "13"), other},
		"another boot":     {testSecret(t, "3", "13"), way{w.From, w.To, "aa", "cc"}},
		"epochs exchanged": {testSecret(t, "3", "13"), way{w.From, w.To, "bb", "aa"}},
		"another id":       {testSecret(t, "4", "13"), w},
		"another secret":   {testSecret(t, "3", "14"), w},
	} {
		k, err := c.s.derive(c.w)
		if err != nil || len(k.Key) != 20 || k.SPI < minSPI || spis[k.SPI] {
			t.Errorf("%s: %+v, %v", name, k, err)
		}
		for _, one := range seen {
			if bytes.Equal(one, k.Key) || bytes.Equal(one[:16], k.Key[:16]) {
				t.Errorf("%s: a key for the second time", name)
			}
		}
		seen, spis[k.SPI] = append(seen, k.Key), true
	}
	again, err := testSecret(t, "3", "13").derive(w.back().back())
	if err != nil || !bytes.Equal(again.Key, base.Key) || again.SPI != base.SPI {
		t.Errorf("the same way gives other keys: %v", err)
	}
	const fixed = "7c6e039f94f4144fdf03cbbe1d240c34"
	if got := base.fingerprint(); got != fixed {
		t.Errorf("derivation has changed: SPI %#x, fingerprint %s", base.SPI, got)
	}
	if strings.Contains(base.fingerprint(), testHex[:8]) {
		t.Error("the fingerprint tells the key")
	}
}
