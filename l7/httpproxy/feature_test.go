package httpproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"myelin/l7/config"
	"myelin/policy"
)

// scripted is a server that gives answer for each request that net/http reads; it reads the body first.
func scripted(t testing.TB, answer func(conn net.Conn, in *bufio.Reader, r *http.Request) (more bool)) string {
	return rawServer(t, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		for {
			r, err := http.ReadRequest(in)
			if err != nil || !answer(conn, in, r) {
				return
			}
		}
	})
}

// TestResponses forwards responses as they are; they end where they should if the next one is right.
func TestResponses(t *testing.T) {
	const next = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext"
	for _, test := range []struct{ name, method, response, want string }{
		{"length", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", ""},
		{"chunks with trailer", "GET",
			"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n", ""},
		{"no content", "GET", "HTTP/1.1 204 No Content\r\n\r\n", ""},
		{"not modified", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n", ""},
		{"HEAD", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n", ""},
		{"HEAD with chunks", "HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", ""},
		{"interim", "GET",
			"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""},
		{"no reason", "GET", "HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", ""},
		{"length and coding", "GET",
			"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "503"},
		{"bare LF", "GET", "HTTP/1.1 200 OK\nContent-Length: 0\n\n", "503"},
		{"unexpected upgrade", "GET", "HTTP/1.1 101 Switching Protocols\r\n\r\n", "503"},
		{"nothing", "GET", "", "503"},
	} {
		t.Run(test.name, func(t *testing.T) {
			count := 0
			server := scripted(t, func(conn net.Conn, _ *bufio.Reader, _ *http.Request) bool {
				if count++; count == 1 {
					io.WriteString(conn, test.response)
					return test.response != ""
				}
				io.WriteString(conn, next)
				return true
			})
			r := newRig(t, server, config.HTTP{}, rules(t, []policy.HTTPRule{{}}))
			request := test.method + " / HTTP/1.1\r\nHost: a\r\n\r\n"
			got := r.exchange(request + "GET /next HTTP/1.1\r\nHost: a\r\n\r\n")
			if test.want != "" {
				if statuses(got) != test.want {
					t.Errorf("got %q", got)
				}
			} else if got != test.response+next {
				t.Errorf("got %q", got)
			}
		})
	}
}

// TestBodies sends large bodies both ways, by length and in chunks, and compares them.
func TestBodies(t *testing.T) {
	r := newRig(t, echoServer(t), config.HTTP{}, rules(t, []policy.HTTPRule{{Path: "/a"}}))
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	body := strings.Repeat("0123456789abcdef", 1<<18)
	for range 3 {
		for _, chunked := range []bool{false, true} {
			for _, path := range []string{"/a", "/denied"} {
				var from io.Reader = strings.NewReader(body)
				if chunked {
					from = struct{ io.Reader }{from}
				}
				request, _ := http.NewRequest("POST", "http://"+r.address+path, from)
				response, err := client.Do(request)
				if path == "/denied" {
					// Too much to skip: the connection is closed, which the client may see first.
					if err == nil && response.StatusCode != 403 {
						t.Errorf("%s: %s", path, response.Status)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(response.Body)
				if err != nil || string(got) != body || response.Trailer.Get("X-Sum") != fmt.Sprint(len(body)) {
					t.Errorf("chunked %v: %d bytes, trailer %v: %v", chunked, len(got), response.Trailer, err)
				}
			}
		}
	}
}

func TestContinue(t *testing.T) {
	r := newRig(t, echoServer(t), config.HTTP{}, rules(t, []policy.HTTPRule{{Path: "/a"}}))
	conn := r.connect()
	in := bufio.NewReader(conn)
	for range 2 {
		io.WriteString(conn, "POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
		for _, want := range []string{"HTTP/1.1 100 Continue\r\n", "\r\n"} {
			if line, err := in.ReadString('\n'); line != want {
				t.Fatalf("got %q: %v", line, err)
			}
		}
		io.WriteString(conn, "abc")
		response, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(response.Body); string(body) != "abc" {
			t.Errorf("got %q", body)
		}
	}
	got := r.exchange("POST /b HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
	if statuses(got) != "403" || !strings.Contains(got, "connection: close") {
		t.Errorf("denied: %q", got)
	}
}

// TestUpgrade passes bytes after 101, which may come with it, and each direction ends on its own.
func TestUpgrade(t *testing.T) {
	server := scripted(t, func(conn net.Conn, in *bufio.Reader, r *http.Request) bool {
		if r.URL.Path == "/no" {
			io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			return true
		}
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n"+
			"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\nfirst ")
		got, _ := io.ReadAll(in)
		fmt.Fprintf(conn, "%s %s", r.Header.Get("Upgrade"), got)
		return false
	})
	r := newRig(t, server, config.HTTP{}, rules(t, []policy.HTTPRule{{Method: "GET|CONNECT"}}))
	const upgrade = " HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n"
	got := r.exchange("GET /no" + upgrade + "GET /yes" + upgrade + "GET /denied\x00 by no rule")
	want := "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n" +
		"Connection: Upgrade\r\n\r\nfirst websocket GET /denied\x00 by no rule"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHTTP10(t *testing.T) {
	server := scripted(t, func(conn net.Conn, _ *bufio.Reader, r *http.Request) bool {
		io.WriteString(conn, "HTTP/1.0 200 OK\r\n\r\n"+r.Proto)
		return false
	})
	r := newRig(t, server, config.HTTP{}, rules(t, []policy.HTTPRule{{Path: "/"}}))
	conn := r.connect()
	io.WriteString(conn, "GET /denied HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.0\r\n\r\n")
	got, err := io.ReadAll(conn) // the server ends the response by closing
	if err != nil || statuses(string(got)) != "403" || !strings.HasSuffix(string(got), "\r\n\r\nHTTP/1.0") {
		t.Errorf("got %q: %v", got, err)
	}
}

func TestLimits(t *testing.T) {
	server := newRecorder(t)
	limits := config.HTTP{MaxHeaderBytes: 20000, MaxConnections: 2, HeaderTimeout: time.Second}
	r := newRig(t, server.address, limits, rules(t, []policy.HTTPRule{{}}))
	long := "GET / HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("b", 19000) + "\r\n"
	if got := statuses(r.exchange(long + "\r\n")); got != "204" {
		t.Errorf("header of 19,000 bytes: %s", got)
	}
	if got := statuses(r.exchange(long + "C: " + strings.Repeat("b", 1000) + "\r\n\r\n")); got != "431" {
		t.Errorf("header of 20,000 bytes: %s", got)
	}
	slow := r.connect()
	io.WriteString(slow, "GET / HTTP/1.1\r\nHost")
	if got, err := io.ReadAll(slow); err != nil || statuses(string(got)) != "408" {
		t.Errorf("slow header: %q: %v", got, err)
	}
	slow.Close()
	for r.proxy.Connections() > 0 {
		time.Sleep(time.Millisecond)
	}
	open := []net.Conn{}
	for range limits.MaxConnections {
		conn := r.connect()
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		if _, err := conn.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
	}
	if got := statuses(r.exchange("")); got != "503" {
		t.Errorf("a connection too many: %s", got)
	}
	for _, conn := range open {
		conn.Close()
	}
}

func TestUnavailable(t *testing.T) {
	closed := listen(t)
	closed.Close()
	r := newRig(t, closed.Addr().String(), config.HTTP{}, rules(t, []policy.HTTPRule{{Method: "GET"}}))
	got := r.exchange("DELETE / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if statuses(got) != "403 503" {
		t.Errorf("got %q", got)
	}
	records := r.recorded()
	if len(records) != 2 || records[0].Denied != 0 || records[1].Status != 503 || !records[1].Local {
		t.Errorf("records %+v", records)
	}
}

// TestServerCloses ends the client's connection when the server ends the idle one.
func TestServerCloses(t *testing.T) {
	server := scripted(t, func(conn net.Conn, _ *bufio.Reader, _ *http.Request) bool {
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		return false
	})
	r := newRig(t, server, config.HTTP{}, rules(t, []policy.HTTPRule{{}}))
	conn := r.connect()
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	if got, err := io.ReadAll(conn); err != nil || statuses(string(got)) != "200" {
		t.Errorf("got %q: %v", got, err)
	}
}

// heap is what is in use after garbage collection.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
}

// TestIdleMemory bounds what a connection that waits for its next request costs.
func TestIdleMemory(t *testing.T) {
	const connections, limit = 500, 32 << 10
	r := newRig(t, newRecorder(t).address, config.HTTP{}, rules(t, []policy.HTTPRule{{}}))
	before := heap()
	for range connections {
		conn := r.connect()
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		if _, err := conn.Read(make([]byte, 100)); err != nil {
			t.Fatal(err)
		}
	}
	// The clients and the server of the test count too.
	each := (heap() - before) / connections
	t.Logf("%d bytes each", each)
	if each > limit {
		t.Errorf("%d bytes each, at most %d", each, limit)
	}
}

// TestIdleMemory2 does the same for HTTP/2, without what client and server cost.
func TestIdleMemory2(t *testing.T) {
	const connections, limit = 300, 40 << 10
	server := echoServer(t)
	r := newRig(t, server, config.HTTP{}, rules(t, []policy.HTTPRule{{}}))
	var each [2]int
	for i, address := range []string{server, r.address} {
		before := heap()
		var clients []*http.Client
		for range connections {
			client := client2(t, address)
			if _, err := get(client, "http://a/"); err != nil {
				t.Fatal(err)
			}
			clients = append(clients, client)
		}
		each[i] = (heap() - before) / connections
		runtime.KeepAlive(clients)
	}
	t.Logf("%d bytes each", each[1]-each[0])
	if each[1]-each[0] > limit {
		t.Errorf("%d bytes each, at most %d", each[1]-each[0], limit)
	}
}
