package httpproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"myelin/l7/config"
	"myelin/policy"
)

// post sends a request that clients do not repeat, and reads the response.
func post(client *http.Client, url string) (closes bool, _ error) {
	answer, err := client.Post(url, "text/plain", io.MultiReader(strings.NewReader("body"))) // without GetBody
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "body" {
		return answer.Close, fmt.Errorf("%s with %q, %w", answer.Status, body, err)
	}
	return answer.Close, nil
}

// underLoad has clients send requests, drains the proxy meanwhile, and waits until connections have ended.
func (r *rig) underLoad(url string, clients []*http.Client) {
	r.t.Helper()
	var requests, failed, closed atomic.Int64
	var all sync.WaitGroup
	stop := make(chan struct{})
	for _, client := range clients {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				requests.Add(1)
				closes, err := post(client, url)
				if closes {
					closed.Add(1)
				}
				if err != nil && failed.Add(1) < 4 {
					r.t.Error(err)
				}
			}
		})
	}
	time.Sleep(300 * time.Millisecond)
	before := requests.Load()
	r.proxy.Drain()
	time.Sleep(1500 * time.Millisecond) // more than HTTP/2 has for requests on their way
	close(stop)
	all.Wait()
	if before == 0 || requests.Load() == before || failed.Load() > 0 {
		r.t.Errorf("of %d requests, %d before, %d failed", requests.Load(), before, failed.Load())
	}
	if closed.Load() == 0 && !strings.HasPrefix(url, "http://server") { // HTTP/2 has no such header
		r.t.Error("no response announced the end of the connection")
	}
	r.awaitConnections(0, 5*time.Second)
}

// awaitConnections waits until the proxy serves as many.
func (r *rig) awaitConnections(want int, patience time.Duration) {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	for r.proxy.Connections() != want {
		if time.Now().After(deadline) {
			r.t.Fatalf("%d connections, want %d", r.proxy.Connections(), want)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestDrain: no request fails while connections end, in both versions of HTTP.
func TestDrain(t *testing.T) {
	set := rules(t, []policy.HTTPRule{{Path: "/a/.*"}})
	t.Run("HTTP/1.1", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, echoServer(t), config.HTTP{}, set)
		var clients []*http.Client
		for range 16 {
			// With one connection each: a transport that dials another one, because the last response is not read
			// quite yet, could leave it without a request, and the proxy would wait drainIdle for that.
			clients = append(clients, &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}})
		}
		r.underLoad("http://"+r.address+"/a/b", clients)
	})
	t.Run("HTTP/2", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, echoServer(t), config.HTTP{}, set)
		client := client2(t, r.address)
		body, send := io.Pipe()
		long, err := http.NewRequest("POST", "http://server:80/a/long", body)
		if err != nil {
			t.Fatal(err)
		}
		long.Header.Set("X-Added", "1")
		ended := make(chan error, 1)
		early := strings.Repeat("early", 2000) // more than the server keeps
		go func() {                            // a stream that is open before and after
			_, err := io.WriteString(send, early)
			time.Sleep(2 * time.Second)
			if err == nil {
				_, err = io.WriteString(send, "late")
			}
			send.Close()
			ended <- err
		}()
		answer, err := client.Do(long)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		all := []*http.Client{client, client, client, client, client2(t, r.address)}
		r.underLoad("http://server:80/a/b", all)
		text, err := io.ReadAll(answer.Body)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err != nil || string(text) != early+"late" {
			t.Errorf("the stream that was open: %d bytes, %v", len(text), err)
		}
	})
}

// dialReader opens a client's connection.
func (r *rig) dialReader() (net.Conn, *bufio.Reader) {
	r.t.Helper()
	conn, err := net.Dial("tcp", r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	return conn, bufio.NewReader(conn)
}

// ask sends a request and reads the response.
func ask(t *testing.T, conn net.Conn, in *bufio.Reader, path string) *http.Response {
	t.Helper()
	if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(answer.Body); err != nil {
		t.Fatal(err)
	}
	return answer
}

// TestDrainIdle: a connection without a request stays for a while, in which the next response is its last; then it
// ends.
func TestDrainIdle(t *testing.T) {
	r := newRig(t, echoServer(t), config.HTTP{}, rules(t, []policy.HTTPRule{{Path: "/a"}}))
	r.proxy.SetDrainIdle(500 * time.Millisecond)
	var conns []net.Conn
	var readers []*bufio.Reader
	for i := range 4 {
		conn, in := r.dialReader()
		conns, readers = append(conns, conn), append(readers, in)
		for range 1 + 3*i { // some are a loop's by then, and some are not
			if answer := ask(t, conn, in, "/a"); answer.Close {
				t.Fatal("before the proxy drains a response announces the end of the connection")
			}
		}
	}
	r.proxy.Drain()
	for i, path := range []string{"/a", "/denied"} {
		answer := ask(t, conns[i], readers[i], path)
		if !answer.Close || (answer.StatusCode == 403) != (i == 1) {
			t.Errorf("%s: status %d, announces the end of the connection: %t", path, answer.StatusCode, answer.Close)
		}
		if _, err := readers[i].ReadByte(); err != io.EOF {
			t.Errorf("%s: after the last response: %v", path, err)
		}
		conns[i].Close()
	}
	r.awaitConnections(2, 5*time.Second)
	for i := 2; i < 4; i++ {
		if _, err := readers[i].ReadByte(); err != io.EOF {
			t.Errorf("connection %d was idle, and not ended: %v", i, err)
		}
		conns[i].Close()
	}
	r.awaitConnections(0, 5*time.Second)
	other := r.proxy.WithLimits(config.HTTP{MaxHeaderBytes: 1 << 10})
	listener := listen(t)
	defer listener.Close()
	r.address = listener.Addr().String()
	conn, in := r.dialReader()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	r.serve.Go(func() { other.Serve(t.Context(), accepted, r.flow(accepted)) })
	if answer := ask(t, conn, in, "/a"); !answer.Close {
		t.Error("a proxy with other limits does not drain")
	}
}
