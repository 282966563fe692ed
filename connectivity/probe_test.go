package connectivity

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"myelin/lab/echo"
)

// serving runs a server on loopback, on free ports.
func serving(t *testing.T) ports {
	t.Helper()
	var free [3]uint16
	for i := range free {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		free[i] = l.Addr().(*net.TCPAddr).AddrPort().Port()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- echo.Serve(ctx, echo.Options{HTTP: []int{int(free[0])}, TCP: []int{int(free[1])},
			UDP: []int{int(free[2])}, Who: "me", Out: io.Discard})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return ports{free[0], free[1], free[2]}
}

func TestProbe(t *testing.T) {
	p := serving(t)
	until := time.Now().Add(5 * time.Second)
	for Run(t.Context(), []Probe{{URL: fmt.Sprintf("http://127.0.0.1:%d/", p.http),
		Timeout: time.Second}})[0].Error != "" {
		if time.Now().After(until) {
			t.Fatal("the server doesn't serve")
		}
	}
	for _, host := range []string{"127.0.0.1", "[::1]"} {
		probes := []Probe{
			{URL: fmt.Sprintf("http://%s:%d/", host, p.http), Count: 3, Timeout: time.Second},
			{URL: fmt.Sprintf("tcp://%s:%d", host, p.tcp), Size: 1 << 20, Timeout: 5 * time.Second},
			{URL: fmt.Sprintf("udp://%s:%d", host, p.udp), Size: 4000, Timeout: time.Second},
		}
		if os.Getuid() == 0 {
			probes = append(probes, Probe{URL: "icmp://" + host, Size: 1300, Timeout: time.Second})
		}
		for i, a := range Run(t.Context(), probes) {
			if a.Error != "" || a.Took <= 0 {
				t.Errorf("%s: %+v", probes[i].URL, a)
			}
		}
		seen := strings.Trim(host, "[]")
		if a := Run(t.Context(), probes[:1])[0]; len(a.By) != 1 || a.By[0] != "me" || a.Client != seen {
			t.Errorf("%s: %+v, want by me, and client %s", probes[0].URL, a, seen)
		}
	}
}

func TestProbeFails(t *testing.T) {
	p := serving(t)
	silent, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for url, want := range map[string]string{
		fmt.Sprintf("tcp://127.0.0.1:%d", p.udp): "connection refused", // no TCP socket has it
		"udp://" + silent.LocalAddr().String():   "no answer within 50ms",
		"gopher://127.0.0.1": "gopher://127.0.0.1: want a URL that begins with http, tcp, udp, " +
			"icmp, dns4 or dns6",
		fmt.Sprintf("http://127.0.0.1:%d", p.udp): "connection refused",
	} {
		if a := Run(t.Context(), []Probe{{URL: url, Timeout: 50 * time.Millisecond}})[0]; !strings.Contains(a.Error,
			want) {
			t.Errorf("%s: %q, want %q", url, a.Error, want)
		}
	}
}
