package cluster

import (
	"strings"
	"testing"
)

func TestReadIPsec(t *testing.T) {
	epoch := strings.Repeat("0f", IPsecEpochSize)
	for text, want := range map[string]string{ // of the error; empty: it is read
		epoch + " 1": "", epoch + " 15": "", "": "",
		epoch:                   "does not end with the identifier of a key",
		epoch + " 0":            "does not end with the identifier of a key",
		epoch + " 16":           "does not end with the identifier of a key",
		epoch + " 3 4":          "does not end with the identifier of a key",
		epoch[2:] + " 3":        "does not begin with 16 bytes in hexadecimal",
		strings.ToUpper(epoch):  "does not begin with 16 bytes in hexadecimal",
		strings.Repeat("x", 32): "does not begin with 16 bytes in hexadecimal",
	} {
		got, err := ReadIPsec(map[string]string{IPsecAnnotation: text})
		if want == "" && (err != nil || text != "" && got.String() != text || (text == "") != (got == IPsec{})) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want) || got != (IPsec{}) ||
			!strings.Contains(err.Error(), IPsecAnnotation)) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	n := Node{IPsec: IPsec{epoch, 3}}
	if !n.Encrypts(IPsecType) || n.Encrypts(WireGuardType) || n.Encrypts("") {
		t.Error("a node with IPsec does not encrypt by it, or by something else")
	}
}
