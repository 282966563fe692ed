package sysdump

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
)

// Secrets that tests plant. None of them may be in what is redacted.
const (
	wireGuardKey = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk="
	wireGuardPub = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg="
	ipsecKey     = "44434241343332312423222114131211f4f3f2f1"
	jwt          = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJlLW9mLXRva2Vu"
	pem          = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIIrYSSNQFaA2Hwf1duRSxKtLYX5CB04fSeQ6tF1aY\n-----END EC " +
		"PRIVATE KEY-----"
	password = "correct-horse-battery"
)

func TestText(t *testing.T) {
	r := NewRedactor()
	for text, want := range map[string]string{
		// WireGuard
		"PrivateKey = " + wireGuardKey: "PrivateKey = " + redacted,
		"  private key: " + wireGuardKey + "\n  listening port: 51871": "  private key: " + redacted +
			"\n  listening port: 51871",
		"wg set wg0 key " + wireGuardKey: "wg set wg0 key " + redacted,
		"public key: " + wireGuardPub:    "public key: " + wireGuardPub,
		"peer: " + wireGuardPub + "\n  preshared key: " + wireGuardKey: "peer: " + wireGuardPub +
			"\n  preshared key: " +
			redacted,
		// IPsec, by ip xfrm state and in Cilium's Secret
		"\taead rfc4106(gcm(aes)) 0x" + ipsecKey + " 128":      "\taead rfc4106(gcm(aes)) " + redacted + " 128",
		"\tauth-trunc hmac(sha256) 0x" + ipsecKey + " 128":     "\tauth-trunc hmac(sha256) " + redacted + " 128",
		"3+ rfc4106(gcm(aes)) " + ipsecKey + " 128":            "3+ rfc4106(gcm(aes)) " + redacted + " 128",
		"3 hmac(sha256) " + ipsecKey + " cbc(aes) " + ipsecKey: "3 hmac(sha256) " + redacted + " cbc(aes) " + redacted,
		// tokens and passwords
		"token " + jwt + " is used":                       "token " + redacted + " is used",
		"Authorization: Bearer abcdef0123456789":          "Authorization: " + redacted,
		`level=INFO msg=x token=` + password + ` node=n1`: `level=INFO msg=x token=` + redacted,
		`{"level":"INFO","token":"` + password + `","node":"n1"}`: `{"level":"INFO","token":"` + redacted +
			`","node":"n1"}`,
		`env="{\"DB_PASSWORD\":\"` + password + `\",\"a\":1}"`: `env="{\"DB_PASSWORD\":\"` + redacted +
			`\",\"a\":1}"`,
		"password: " + password + " and more words\nnext: line": "password: " + redacted + "\nnext: line",
		`password: "with \" a quote" x`:                         `password: "` + redacted + `" x`,
		"--api-key=" + password + "\n":                          "--api-key=" + redacted + "\n",
		"serve --auth-token " + password + " --port 80": "serve --auth-token " + redacted +
			" --port 80",
		"https://user:" + password + "@example.com/x":                        "https://" + redacted + "@example.com/x",
		"key:\n" + pem + "\nend":                                             "key:\n" + redacted + "\nend",
		"cut off: -----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA":         "cut off: " + redacted,
		"client-key-data: " + base64.StdEncoding.EncodeToString([]byte(pem)): "client-key-data: " + redacted,
		// what stays
		"10.0.1.2:40000->10.0.2.2:80/TCP " +
			"fd00::1": "10.0.1.2:40000->10.0.2.2:80/TCP fd00::1",
		"containerID: 7c1d8d5ba3c4f0e9b7d6a5948372615049382716f5e4d3c2b1a0998877665544": "containerID: " +
			"7c1d8d5ba3c4f0e9b7d6a5948372615049382716f5e4d3c2b1a0998877665544",
		"automountServiceAccountToken: false\ntoken: true": "automountServiceAccountToken: " +
			"false\ntoken: true",
		"secretName: my-tls":                 "secretName: my-tls",
		"netnsCookie=4026532 monkey: banana": "netnsCookie=4026532 monkey: banana",
	} {
		if got := r.text(text); got != want {
			t.Errorf("%q\ngot  %q\nwant %q", text, got, want)
		}
		if got := r.text(r.text(text)); got != want {
			t.Errorf("once more: %q, want %q", got, want)
		}
	}
}

// TestLearned: a value that is known is found where nothing else tells it, in each of its encodings.
func TestLearned(t *testing.T) {
	r := NewRedactor()
	const secret = "blue elephants"
	r.learn(secret+"\n", "short")
	text := strings.Join([]string{
		"it is " + secret + "!", base64.StdEncoding.EncodeToString([]byte(secret)),
		base64.RawURLEncoding.EncodeToString([]byte(secret + "\n")),
		hex.EncodeToString([]byte(secret)), "a short word",
	}, " | ")
	want := "it is " + redacted + "! | " + redacted + " | " + redacted + " | " + redacted + " | a short word"
	if got := r.text(text); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

const manifest = `
apiVersion: v1
kind: Secret
metadata:
  name: db
  annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"stringData":{"plain":"swordfish9"}}'}
stringData: {plain: swordfish9, other: "` + password + `"}
data: {raw: c3dvcmRmaXNoOQ==}
# a comment with swordfish9
---
apiVersion: v1
kind: List
items:
- {kind: Secret, metadata: {name: keys}, data: {keys: bW9yZSBzZWNyZXRz}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, annotations: {note: "the word is swordfish9"}}
spec:
  serviceAccountName: web
  automountServiceAccountToken: false
  imagePullSecrets: [{name: registry}]
  containers:
  - name: web
    image: web:1
    args: ["--password=` + password + `", "--port", "80"]
    env:
    - {name: DB_TOKEN, value: "12345678"}
    - {name: PORT, value: "8080"}
    - {name: FROM, valueFrom: {secretKeyRef: {name: db, key: plain}}}
  volumes: [{name: tls, secret: {secretName: web-tls}}]
`

func TestYAML(t *testing.T) {
	r := NewRedactor()
	r.learnSecrets([]byte(manifest))
	got, err := r.yaml([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"swordfish9", "c3dvcmRmaXNoOQ", password, "bW9yZSBzZWNyZXRz", "12345678"} {
		if strings.Contains(string(got), secret) {
			t.Errorf("%s is left:\n%s", secret, got)
		}
	}
	for _, keeps := range []string{"name: db", "name: keys", "automountServiceAccountToken: false", "name: registry",
		"value: \"8080\"", "secretName: web-tls", "key: plain", "image: web:1", "--port"} {
		if !strings.Contains(string(got), keeps) {
			t.Errorf("%s is gone:\n%s", keeps, got)
		}
	}
}

func TestJSON(t *testing.T) {
	r := NewRedactor()
	in := `[{"key":"maglev.hashSeed","value":"seedling","default":""},{"publicKey":"` + wireGuardPub +
		`","privateKey":"` + wireGuardKey + `","n":18446744073709551615},
		{"credentials":{"user":"me","n":7,"on":true},"count":3}]`
	got, err := r.json([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	var v []map[string]any
	if err := json.Unmarshal(got, &v); err != nil {
		t.Fatal(err)
	}
	if v[0]["value"] != redacted || v[0]["key"] != "maglev.hashSeed" || v[1]["publicKey"] != wireGuardPub ||
		v[1]["privateKey"] != redacted ||
		v[2]["count"] != 3.0 {
		t.Errorf("%s", got)
	}
	if c := v[2]["credentials"].(map[string]any); c["user"] != redacted || c["n"] != redacted || c["on"] != true {
		t.Errorf("%s", got)
	}
	if !strings.Contains(string(got), "18446744073709551615") {
		t.Errorf("a large number is changed: %s", got)
	}
}
