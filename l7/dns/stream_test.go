package dns

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"myelin/l7/config"
	"myelin/l7/dns/dnstest"
)

// session is a stream between a client and a server.
type session struct {
	client, server net.Conn
	done           chan error
}

// pair is a TCP connection.
func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func (w *world) stream(t *testing.T, ctx context.Context, idle time.Duration) *session {
	t.Helper()
	client1, proxyClient := pair(t)
	proxyServer, server := pair(t)
	s := &session{client1, server, make(chan error, 1)}
	go func() { s.done <- w.Stream(ctx, client(podSlot), resolver(), proxyClient, proxyServer, idle) }()
	return s
}

func send(t *testing.T, to net.Conn, messages ...string) {
	t.Helper()
	var b []byte
	for _, text := range messages {
		b = append(b, dnstest.Framed(message1(t, text))...)
	}
	if _, err := to.Write(b); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, from net.Conn, messages ...string) {
	t.Helper()
	for _, text := range messages {
		want := dnstest.Framed(message1(t, text))
		got := make([]byte, len(want))
		if _, err := io.ReadFull(from, got); err != nil || !slices.Equal(got, want) {
			t.Fatalf("got %x, error %v, want %x", got, err, want)
		}
	}
}

func TestStream(t *testing.T) {
	w := newWorld(t, "*.io")
	w.config.Rules = []config.Rule{rule(1, "*.io")}
	w.configure()
	w.rules = [2]uint32{1}
	s := w.stream(t, t.Context(), time.Minute)
	var large []string
	for i := range 1000 {
		large = append(large, fmt.Sprintf("b.io 60 A 198.51.%d.%d", i/250, i%250))
	}
	send(t, s.client, "query 1 | a.io A", "query 2 | a.net A", "query 3 | b.io A")
	expect(t, s.server, "query 1 | a.io A", "query 3 | b.io A")
	expect(t, s.client, "response 2 code 5 | a.net A")
	answers := []string{
		"response 3 | b.io A | " + strings.Join(large, " | "), "response 1 | a.io A | a.io 60 A 192.0.2.1",
	}
	send(t, s.server, answers...)
	expect(t, s.client, answers...)
	if got := w.names.Len(); got != 1001 {
		t.Errorf("%d addresses were learnt, want 1001", got)
	}
	if err := s.client.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if n, err := s.server.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("server read %d bytes, error %v, want the end", n, err)
	}
	send(t, s.server, "response 9 | c.io A") // the other direction is still open
	expect(t, s.client, "response 9 | c.io A")
	s.server.Close()
	if err := <-s.done; err != nil {
		t.Error(err)
	}
}

// TestStreamEnds has all reasons for which a connection ends early.
func TestStreamEnds(t *testing.T) {
	for _, test := range []struct {
		name, want string
		idle       time.Duration
		do         func(t *testing.T, s *session, cancel func())
	}{
		{"not understood", "a query is not understood", time.Minute,
			func(t *testing.T, s *session, _ func()) { s.client.Write([]byte{0, 3, 1, 2, 3}) }},
		{"cut off", "read a DNS message: unexpected EOF", time.Minute,
			func(t *testing.T, s *session, _ func()) { s.client.Write([]byte{0, 3, 1}); s.client.Close() }},
		{"idle", "no message has arrived", time.Millisecond, func(t *testing.T, s *session, _ func()) {}},
		{"context", "context canceled", time.Minute, func(t *testing.T, s *session, cancel func()) { cancel() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.config.Rules = []config.Rule{rule(1, "*")}
			w.configure()
			w.rules = [2]uint32{1}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := w.stream(t, ctx, test.idle)
			test.do(t, s, cancel)
			if err := <-s.done; err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if n, err := s.server.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("the server read %d bytes, error %v", n, err)
			}
		})
	}
}
