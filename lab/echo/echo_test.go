package echo

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// output is a writer that two goroutines may use.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// freePort is one that was free for both protocols a moment ago.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// serve runs a server on three ports until the test ends.
func serve(t *testing.T) (opts Options, out *output) {
	t.Helper()
	out = &output{}
	opts = Options{HTTP: []int{freePort(t)}, TCP: []int{freePort(t)}, UDP: []int{freePort(t)}, Who: "me", Out: out}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := Serve(ctx, opts); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	for end := time.Now().Add(5 * time.Second); strings.Count(out.String(),
		"on port") < 3; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the server does not start: %s", out)
		}
	}
	return opts, out
}

func TestCall(t *testing.T) {
	opts, out := serve(t)
	for _, c := range []struct{ url, want string }{
		{fmt.Sprintf("http://127.0.0.1:%d/a/b", opts.HTTP[0]), "server  me\naddress 127.0.0.1:"},
		{fmt.Sprintf("http://[::1]:%d/", opts.HTTP[0]), "address [::1]:"},
		{fmt.Sprintf("tcp://127.0.0.1:%d", opts.TCP[0]), "hello from 127.0.0.1:"},
		{fmt.Sprintf("tcp://[::1]:%d", opts.TCP[0]), "hello from [::1]:"},
		// An address that is not the one routing would answer from.
		{fmt.Sprintf("udp://127.9.9.9:%d", opts.UDP[0]), fmt.Sprintf("from 127.9.9.9:%d", opts.UDP[0])},
		{fmt.Sprintf("udp://[::1]:%d", opts.UDP[0]), "hello from [::1]:"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		got, err := Call(ctx, c.url)
		cancel()
		if err != nil || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, %v; want %q", c.url, got, err, c.want)
		}
	}
	for _, want := range []string{"http GET /a/b from 127.0.0.1:", "tcp 127.0.0.1:", "udp from 127.0.0.1:"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output has no %q: %s", want, out)
		}
	}
}

func TestCallFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, url := range []string{
		"ftp://127.0.0.1/", "%", "tcp://127.0.0.1:1", "udp://127.0.0.1:1", "http://127.0.0.1:1/",
		"tcp://" + l.Addr().String(), "http://" + l.Addr().String(),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		begin := time.Now()
		if got, err := Call(ctx, url); err == nil || time.Since(begin) > 5*time.Second {
			t.Errorf("%s: %q %v after %v", url, got, err, time.Since(begin))
		}
		cancel()
	}
}

func TestServeFails(t *testing.T) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if err := Serve(t.Context(), Options{TCP: []int{port}, Out: &output{}}); err == nil {
		t.Error("two servers on a port")
	}
}
