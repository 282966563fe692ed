package httpproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"myelin/l7/config"
	"myelin/policy"
)

// looped is a connection that a loop relays after requests for a path.
func (r *rig) looped(path string) (*net.TCPConn, *bufio.Reader) {
	r.t.Helper()
	conn := r.connect()
	in := bufio.NewReader(conn)
	before := r.proxy.Looped()
	for deadline := time.Now().Add(10 * time.Second); r.proxy.Looped() == before; {
		// It does not if the response came before the client's goroutine waited for the next request.
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path)
		response, err := http.ReadResponse(in, nil)
		if err != nil {
			r.t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			r.t.Fatal(err)
		}
		for range 10 {
			if time.Sleep(time.Millisecond); r.proxy.Looped() > before {
				break
			}
		}
		if time.Now().After(deadline) {
			r.t.Fatal("no loop relays the connection")
		}
	}
	return conn, in
}

func (r *rig) await(what string, happened func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !happened(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// pathServer answers with what the path says: a number of bytes, by length or, after "c", in chunks that are flushed.
// Bodies of requests are echoed.
func pathServer(t testing.TB) string {
	listener := listen(t)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "POST" {
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			w.Write(body)
			return
		}
		kind, size := "", 0
		fmt.Sscanf(strings.Replace(r.URL.Path, "/", "", 1), "%1s%d", &kind, &size)
		if kind == "l" {
			w.Header().Set("Content-Length", fmt.Sprint(size))
		}
		for left := size; left > 0; {
			n := min(left, 10_000)
			io.WriteString(w, strings.Repeat("x", n))
			if left -= n; kind == "c" {
				w.(http.Flusher).Flush()
			}
		}
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return listener.Addr().String()
}

// TestLoop sends requests on connections that loops relay, also such that they leave to goroutines, in any order, and
// compares responses with what the server was told to send.
func TestLoop(t *testing.T) {
	r := newRig(t, pathServer(t), config.HTTP{}, rules(t, []policy.HTTPRule{{Path: "/[lc].*"}}))
	var clients sync.WaitGroup
	for seed := range uint64(8) {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(seed, 0))
			conn := r.connect()
			in := bufio.NewReader(conn)
			for range 200 {
				if err := randomExchange(random, conn, in); err != nil {
					t.Errorf("seed %d: %v", seed, err)
					return
				}
			}
		})
	}
	clients.Wait()
}

// randomExchange sends one or two requests, in one piece or several, and reads the responses.
func randomExchange(random *rand.Rand, conn net.Conn, in *bufio.Reader) error {
	sizes := []int{0, 1, 100, 9_999, 40_000, 70_000, 300_000}
	text, want := "", []int{}
	requests := []*http.Request{}
	for range 1 + random.IntN(5)/4 {
		size := sizes[random.IntN(len(sizes))]
		method, path, body, expected := "GET", fmt.Sprintf("/%c%d", "lc"[random.IntN(2)], size), "", size
		switch random.IntN(6) {
		case 0:
			method, body = "POST", strings.Repeat("y", size)
		case 1:
			path, expected = "/denied", len("Access denied\r\n")
		case 2:
			method, path, expected = "HEAD", fmt.Sprintf("/l%d", size), 0
		}
		text += method + " " + path + " HTTP/1.1\r\nHost: a\r\n"
		if method == "POST" {
			text += fmt.Sprintf("Content-Length: %d\r\n", size)
		}
		text += "\r\n" + body
		want = append(want, expected)
		requests = append(requests, &http.Request{Method: method})
	}
	failed := make(chan error, 1)
	go func() {
		for _, piece := range pieces(random, text) {
			if _, err := io.WriteString(conn, piece); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	for i, size := range want {
		response, err := http.ReadResponse(in, requests[i])
		if err != nil {
			return fmt.Errorf("%.60q: %w", text, err)
		}
		if n, err := io.Copy(io.Discard, response.Body); err != nil || n != int64(size) {
			return fmt.Errorf("%.60q: %d bytes instead of %d: %w", text, n, size, err)
		}
	}
	return <-failed
}

// pieces cuts a text, sometimes.
func pieces(random *rand.Rand, text string) []string {
	if random.IntN(3) > 0 {
		return []string{text}
	}
	cut := random.IntN(len(text))
	return []string{text[:cut], text[cut:]}
}

// TestLoopEnds ends connections that a loop relays, from either side, by time and by the context; nothing stays.
func TestLoopEnds(t *testing.T) {
	closing := scripted(t, func(conn net.Conn, _ *bufio.Reader, r *http.Request) bool {
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		return r.URL.Path != "/last"
	})
	limits := config.HTTP{IdleTimeout: 300 * time.Millisecond}
	for name, end := range map[string]func(r *rig, conn *net.TCPConn){
		"client closes": func(_ *rig, conn *net.TCPConn) { conn.Close() },
		"client resets": func(_ *rig, conn *net.TCPConn) { conn.SetLinger(0); conn.Close() },
		"client ends":   func(_ *rig, conn *net.TCPConn) { conn.CloseWrite() },
		"server closes": func(_ *rig, conn *net.TCPConn) {
			io.WriteString(conn, "GET /last HTTP/1.1\r\nHost: a\r\n\r\n")
		},
		"idle":    func(*rig, *net.TCPConn) {},
		"context": func(r *rig, _ *net.TCPConn) { r.cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			limits := limits
			if name != "idle" {
				limits.IdleTimeout = 0
			}
			r := newRig(t, closing, limits, rules(t, []policy.HTTPRule{{}}))
			conn, _ := r.looped("/")
			end(r, conn)
			r.await("the connection has ended", func() bool { return r.proxy.Connections()+r.proxy.Looped() == 0 })
		})
	}
}

// TestLoopSlowClient reads a response only after the proxy has had no room for more of it.
func TestLoopSlowClient(t *testing.T) {
	const responses = 400
	body := strings.Repeat("z", 60_000)
	server := scripted(t, func(conn net.Conn, _ *bufio.Reader, r *http.Request) bool {
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for range responses {
			fmt.Fprintf(conn, "%x\r\n%s\r\n", len(body), body)
		}
		io.WriteString(conn, "0\r\n\r\n")
		return true
	})
	r := newRig(t, server, config.HTTP{}, rules(t, []policy.HTTPRule{{}}))
	conn, in := r.looped("/")
	io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	time.Sleep(100 * time.Millisecond)
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, response.Body); err != nil || n != responses*int64(len(body)) {
		t.Errorf("%d bytes: %v", n, err)
	}
}
