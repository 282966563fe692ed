package httpproxy_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"myelin/l7/config"
	"myelin/l7/httpproxy"
	"myelin/policy"
)

// rig is a proxy between a listener for clients and a server.
type rig struct {
	t       testing.TB
	address string // where clients connect to
	server  string
	proxy   *httpproxy.Proxy
	cancel  func() // ends all connections

	mu      sync.Mutex
	sets    []*httpproxy.RuleSet
	records []httpproxy.Record
	dials   int
	quiet   bool // records are not kept
	serve   sync.WaitGroup
}

// newRig starts a proxy for a server's address.
func newRig(t testing.TB, server string, limits config.HTTP, sets ...*httpproxy.RuleSet) *rig {
	t.Helper()
	r := &rig{t: t, server: server, sets: sets}
	r.proxy = httpproxy.New(limits, []string{"X-Wanted"}, time.Now)
	listener := listen(t)
	r.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.serve.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			r.serve.Go(func() { r.proxy.Serve(ctx, conn, r.flow(conn)) })
		}
	})
	t.Cleanup(func() {
		cancel()
		listener.Close()
		r.serve.Wait()
	})
	return r
}

func (r *rig) flow(conn net.Conn) *httpproxy.Flow {
	return &httpproxy.Flow{
		Source:      netip.MustParseAddrPort(conn.RemoteAddr().String()),
		Destination: netip.MustParseAddrPort(r.server),
		Sets: func() []*httpproxy.RuleSet {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.sets
		},
		Dial: func(ctx context.Context) (net.Conn, error) {
			r.mu.Lock()
			r.dials++
			r.mu.Unlock()
			return (&net.Dialer{}).DialContext(ctx, "tcp", r.server)
		},
		Record: func(record *httpproxy.Record) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if !r.quiet {
				r.records = append(r.records, *record)
			}
		},
	}
}

func (r *rig) recorded() []httpproxy.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]httpproxy.Record(nil), r.records...)
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

// rules is a rule set of one part for each list of HTTP rules.
func rules(t testing.TB, parts ...[]policy.HTTPRule) *httpproxy.RuleSet {
	t.Helper()
	var rule config.Rule
	for _, part := range parts {
		rule.Parts = append(rule.Parts, config.Part{L7: policy.L7{HTTP: part}})
	}
	return compile(t, rule, nil)
}

func compile(t testing.TB, rule config.Rule, secrets httpproxy.Secrets) *httpproxy.RuleSet {
	t.Helper()
	set, err := httpproxy.Compile(rule, secrets)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// rawServer accepts connections and gives each to handle.
func rawServer(t testing.TB, handle func(net.Conn)) string {
	t.Helper()
	listener := listen(t)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.SetDeadline(time.Now().Add(time.Minute))
			served.Go(func() {
				defer conn.Close()
				handle(conn)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		served.Wait()
	})
	return listener.Addr().String()
}

// recorder is a server that answers each request with 204, after its body, and keeps all bytes that it got.
type recorder struct {
	address string
	mu      sync.Mutex
	ended   sync.Cond
	serving int
	got     bytes.Buffer
}

func newRecorder(t testing.TB) *recorder {
	r := &recorder{}
	r.ended.L = &r.mu
	count := func(n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.serving += n
		r.ended.Broadcast()
	}
	r.address = rawServer(t, func(conn net.Conn) {
		count(1)
		defer count(-1)
		in := bufio.NewReader(io.TeeReader(conn, r))
		for readRequest(in) == nil {
			io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
		}
		io.Copy(io.Discard, in)
	})
	return r
}

// Write records bytes that arrived.
func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got.Write(b)
}

// readRequest reads a request with its body. An answer to a line of the body would be one that no request asks for.
func readRequest(in *bufio.Reader) error {
	length, chunked, err := readFields(in)
	if err != nil {
		return err
	}
	if !chunked {
		_, err = io.CopyN(io.Discard, in, length)
		return err
	}
	if _, err := io.Copy(io.Discard, httputil.NewChunkedReader(in)); err != nil {
		return err
	}
	_, _, err = readFields(in)
	return err
}

// readFields reads lines up to an empty one, and what they say about a body.
func readFields(in *bufio.Reader) (length int64, chunked bool, err error) {
	for {
		line, err := in.ReadString('\n')
		if err != nil || line == "\r\n" {
			return length, chunked, err
		}
		name, value, _ := strings.Cut(strings.ToLower(strings.TrimSpace(line)), ":")
		switch name {
		case "content-length":
			if length, err = strconv.ParseInt(strings.TrimSpace(value), 10, 64); err != nil {
				return 0, false, err
			}
		case "transfer-encoding":
			chunked = true
		}
	}
}

// bytes waits until the connections that were accepted have ended.
func (r *recorder) bytes() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.serving > 0 {
		r.ended.Wait()
	}
	return r.got.String()
}

func (r *rig) connect() *net.TCPConn {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(30 * time.Second))
	r.t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

// exchange sends bytes, ends the direction and returns all that comes back.
func (r *rig) exchange(send string) string {
	r.t.Helper()
	conn := r.connect()
	if _, err := io.WriteString(conn, send); err != nil {
		r.t.Fatal(err)
	}
	conn.CloseWrite()
	got, err := io.ReadAll(conn)
	if err != nil {
		r.t.Errorf("read response: %v", err)
	}
	return string(got)
}

// statuses are those of all responses in some bytes.
func statuses(text string) string {
	var all []string
	for _, line := range strings.Split(text, "\r\n") {
		if rest, ok := strings.CutPrefix(line, "HTTP/1.1 "); ok {
			all = append(all, rest[:3])
		}
	}
	return strings.Join(all, " ")
}
