package httpload

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// counted is a listener that counts what it accepts.
type counted struct {
	net.Listener
	n atomic.Int64
}

func (c *counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.n.Add(1)
	}
	return conn, err
}

func serve(t *testing.T, network, address string) (*counted, netip.AddrPort) {
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	c := &counted{Listener: l}
	go func() { _ = Serve(c) }() // ends with the listener
	return c, l.Addr().(*net.TCPAddr).AddrPort()
}

// TestRun sends at a rate, and as fast as possible, in both families, on as many connections as it is told.
func TestRun(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, to := serve(t, "tcp", address)
		c := Config{To: to, Path: "/x", Connections: 8, Duration: 300 * time.Millisecond}
		fast, err := Run(c)
		if err != nil {
			t.Fatal(err)
		}
		c.Rate = 200
		slow, err := Run(c)
		if err != nil {
			t.Fatal(err)
		}
		if fast.RPS() < 2*slow.RPS() || fast.P50 <= 0 || fast.P99 < fast.P50 {
			t.Errorf("as fast as possible: %+v; at a rate: %+v", fast, slow)
		}
		if slow.Requests < 30 || slow.Requests > 61 {
			t.Errorf("%d requests in 0.3 s at a rate of 200 a second", slow.Requests)
		}
		if n := l.n.Load(); n != 16 {
			t.Errorf("the server accepted %d connections, want 16", n)
		}
	}
}

// TestNotFound: a response other than 200 is an error.
func TestNotFound(t *testing.T) {
	if _, err := responseSize([]byte("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")); err == nil {
		t.Error("403 is taken for success")
	}
}

// TestIdle: the connections stay open until the end.
func TestIdle(t *testing.T) {
	l, to := serve(t, "tcp", "127.0.0.1:0")
	end, err := Idle(to, "/", 20)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	if n := l.n.Load(); n != 20 {
		t.Errorf("the server accepted %d connections, want 20", n)
	}
}
