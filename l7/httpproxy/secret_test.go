package httpproxy_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"myelin/l7/config"
	"myelin/l7/httpproxy"
	"myelin/policy"
)

// TestCertificateOfName: of several certificates on a port a client gets the first that is for its server name, or the
// first one.
func TestCertificateOfName(t *testing.T) {
	t.Parallel()
	secrets := httpproxy.Secrets{}
	rule := config.Rule{}
	for _, name := range []string{"a.example", "*.b.example"} {
		ref := policy.SecretRef{Namespace: "n", Name: name}
		secrets[ref] = certificate(t, name)
		rule.Parts = append(rule.Parts, config.Part{L7: policy.L7{HTTP: []policy.HTTPRule{{}},
			Terminating: &policy.TLSContext{Secret: ref}}})
	}
	server := rawServer(t, func(conn net.Conn) { io.Copy(conn, conn) })
	r := newRig(t, server, config.HTTP{}, compile(t, rule, secrets))
	for _, test := range [][2]string{{"a.example", "a.example"}, {"x.b.example", "*.b.example"},
		{"other.example", "a.example"}} {
		conn, err := tls.Dial("tcp", r.address, &tls.Config{ServerName: test[0], InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		if got := conn.ConnectionState().PeerCertificates[0].DNSNames[0]; got != test[1] {
			t.Errorf("%s gets the certificate of %s, want %s", test[0], got, test[1])
		}
		conn.Close()
	}
}

// TestSecretOfRecord: records have neither the value of a Secret, nor what the client sent in its place.
func TestSecretOfRecord(t *testing.T) {
	t.Parallel()
	ref := policy.SecretRef{Namespace: "n", Name: "token"}
	headers := []policy.HeaderMatch{{Name: "A", Mismatch: policy.MismatchReplace, Secret: &ref},
		{Name: "B", Mismatch: policy.MismatchLog, Value: "plain"}}
	l7 := policy.L7{HTTP: []policy.HTTPRule{{HeaderMatches: headers}}}
	rule := config.Rule{Parts: []config.Part{{L7: l7}}}
	server := rawServer(t, func(conn net.Conn) {
		b := make([]byte, 4096)
		n, _ := conn.Read(b) // what there is of the request
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", n, b[:n])
	})
	set := compile(t, rule, httpproxy.Secrets{ref: {"x": []byte("hidden-value")}})
	r := newRig(t, server, config.HTTP{}, set)
	request, err := http.NewRequest(http.MethodGet, "http://"+r.address+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("A", "hidden-guess")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, _ := io.ReadAll(answer.Body); !strings.Contains(string(body), "A: hidden-value\r\n") {
		t.Errorf("the server saw %q", body)
	}
	records := r.recorded()
	if len(records) != 1 || len(records[0].Mismatches) != 2 || records[0].Mismatches[0].Name != "A" ||
		records[0].Mismatches[1].Value != "plain" {
		t.Fatalf("records %+v", records)
	}
	if text := fmt.Sprintf("%+v", records[0].Mismatches); strings.Contains(text, "hidden") {
		t.Errorf("recorded %s", text)
	}
}
