package httpproxy_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"myelin/l7/config"
	"myelin/policy"
)

func TestDenied(t *testing.T) {
	server := newRecorder(t)
	r := newRig(t, server.address, config.HTTP{}, rules(t, []policy.HTTPRule{{Method: "GET", Path: "/public.*"}}))
	got := r.exchange("GET /public/a HTTP/1.1\r\nHost: a\r\n\r\n" +
		"POST /public/a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc" +
		"GET /secret HTTP/1.1\r\nHost: a\r\n\r\n" +
		"GET /public/b HTTP/1.1\r\nHost: a\r\n\r\n")
	const denied = "HTTP/1.1 403 Forbidden\r\ncontent-length: 15\r\ncontent-type: text/plain\r\n\r\nAccess denied\r\n"
	const allowed = "HTTP/1.1 204 No Content\r\n\r\n"
	if want := allowed + denied + denied + allowed; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	const sent = "GET /public/a HTTP/1.1\r\nHost: a\r\n\r\nGET /public/b HTTP/1.1\r\nHost: a\r\n\r\n"
	if server.bytes() != sent {
		t.Errorf("the server got %q", server.bytes())
	}
	if n := len(r.recorded()); n != 4 || r.dials != 1 {
		t.Errorf("%d records, %d connections to the server", n, r.dials)
	}
}

// TestPipeline answers many requests in order, of which the server answers the first one late.
func TestPipeline(t *testing.T) {
	const requests = 500
	begin := make(chan struct{})
	server := scripted(t, func(conn net.Conn, _ *bufio.Reader, _ *http.Request) bool {
		<-begin
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		return true
	})
	r := newRig(t, server, config.HTTP{}, rules(t, []policy.HTTPRule{{Path: "/a"}}))
	conn := r.connect()
	const pair = "GET /a HTTP/1.1\r\nHost: a\r\n\r\nGET /denied HTTP/1.1\r\nHost: a\r\n\r\n"
	io.WriteString(conn, strings.Repeat(pair, requests))
	conn.CloseWrite()
	close(begin)
	got, err := io.ReadAll(conn)
	if want := strings.Repeat("200 403 ", requests); err != nil || statuses(string(got))+" " != want {
		t.Errorf("%d bytes: %v", len(got), err)
	}
}

// TestRecords: what a record has stays as it was when the connection goes on.
func TestRecords(t *testing.T) {
	server := newRecorder(t)
	r := newRig(t, server.address, config.HTTP{}, rules(t, []policy.HTTPRule{{Method: "GET"}}))
	conn := r.connect()
	read := bufio.NewReader(conn)
	for _, path := range []string{"/a", "/another/path/at/which/the/protocol/of/the/first/was"} {
		io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: web\r\nX-Wanted: yes\r\n\r\n")
		answer, err := http.ReadResponse(read, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
	}
	records := r.recorded()
	if len(records) == 0 { // that of the second request may come after its response
		t.Fatal("no record")
	}
	first := records[0]
	if first.Protocol != "HTTP/1.1" || first.Method != "GET" || first.Path != "/a" || first.Host != "web" ||
		first.Status != http.StatusNoContent || len(first.Headers) != 1 || first.Headers[0].Value != "yes" {
		t.Errorf("%+v", first)
	}
}
