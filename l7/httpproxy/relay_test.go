package httpproxy_test

import (
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
