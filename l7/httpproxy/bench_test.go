package httpproxy_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"myelin/l7/config"
	"myelin/policy"
)

const benchRequest = "GET /api/public/items?id=1 HTTP/1.1\r\nHost: server.example.org\r\nUser-Agent: bench/1.0\r\n" +
	"Accept: */*\r\n\r\n"

// BenchmarkKeepAlive compares direct requests with those through the proxy, which 64 connections send as fast as they
// are answered. Client, proxy and server share the machine. "cpu-µs/op" is that of all three.
func BenchmarkKeepAlive(b *testing.B) {
	for _, server := range []struct {
		name  string
		start func(testing.TB) string
	}{{"net-http", httpServer}, {"plain", plainServer}} {
		direct := server.start(b)
		r := newRig(b, direct, config.HTTP{}, rules(b, []policy.HTTPRule{{Method: "GET", Path: "/api/public.*"}}))
		r.quiet = true
		b.Run(server.name+"/direct", func(b *testing.B) { benchmarkRequests(b, direct) })
		b.Run(server.name+"/proxied", func(b *testing.B) { benchmarkRequests(b, r.address) })
	}
}

func httpServer(t testing.TB) string {
	listener := listen(t)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "hello\n")
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return listener.Addr().String()
}

// plainServer answers each read, which is one request, without parsing it.
func plainServer(t testing.TB) string {
	return rawServer(t, func(conn net.Conn) {
		b := make([]byte, 4096)
		answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nhello\n")
		for {
			if _, err := conn.Read(b); err != nil {
				return
			}
			if _, err := conn.Write(answer); err != nil {
				return
			}
		}
	})
}

func benchmarkRequests(b *testing.B, address string) {
	const connections = 64
	var left atomic.Int64
	left.Store(int64(b.N))
	var running sync.WaitGroup
	latencies := make([][]time.Duration, connections)
	before := cpu(b)
	b.ResetTimer()
	for i := range connections {
		running.Go(func() { latencies[i] = send(b, address, &left) })
	}
	running.Wait()
	b.StopTimer()
	all := slices.Concat(latencies...)
	slices.Sort(all)
	b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-µs/op")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
}

// send sends requests on one connection while some are left.
func send(b *testing.B, address string, left *atomic.Int64) (latencies []time.Duration) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		b.Error(err)
		return nil
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	for left.Add(-1) >= 0 {
		begin := time.Now()
		if _, err := io.WriteString(conn, benchRequest); err != nil {
			b.Error(err)
			return latencies
		}
		if err := skipResponse(in); err != nil {
			b.Error(err)
			return latencies
		}
		latencies = append(latencies, time.Since(begin))
	}
	return latencies
}

// skipResponse reads a response with a body of six bytes.
func skipResponse(in *bufio.Reader) error {
	for {
		text, err := in.ReadSlice('\n')
		if err != nil {
			return err
		}
		if len(text) == 2 {
			_, err = in.Discard(6)
			return err
		}
	}
}

func cpu(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
