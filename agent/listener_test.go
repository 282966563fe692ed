package agent

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func okHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") })
}

func portOf(t *testing.T, l net.Listener) uint16 {
	t.Helper()
	a, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return a.Port()
}

// TestListenerTaken: a port that another process has is reported, by address, and taken as soon as it is free.
func TestListenerTaken(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	h := &health{log: slog.New(slog.DiscardHandler)}
	h.serve("health", []string{"127.0.0.1", "127.0.0.2"}, portOf(t, other), okHandler())
	defer h.stop()
	list := h.listening()
	if len(list) != 2 || !strings.Contains(list[0].Error, "address already in use") || list[0].Absent ||
		list[1].Error != "" {
		t.Fatalf("got %+v", list)
	}
	if err := get(list[1].Address); err != nil {
		t.Error(err)
	}
	other.Close()
	for end := time.Now().Add(10 * time.Second); get(list[0].Address) != nil; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("10 s after the port was free: %v, %+v", get(list[0].Address), h.listening())
		}
	}
	if list := h.listening(); list[0].Error != "" {
		t.Errorf("got %+v", list)
	}
}

// TestListenerStops: nothing listens after a stop, now or later.
func TestListenerStops(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &health{log: slog.New(slog.DiscardHandler)}
	h.serve("health", []string{"127.0.0.1", "127.0.0.2"}, portOf(t, other), okHandler())
	list := h.listening()
	h.stop()
	other.Close()
	time.Sleep(listenRetryMin + 200*time.Millisecond)
	for _, l := range list {
		if err := get(l.Address); err == nil {
			t.Errorf("%s is served after the stop", l.Address)
		}
	}
}

// TestListenerAll: without an address, all of the node's are served.
func TestListenerAll(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := portOf(t, free)
	free.Close()
	h := &health{log: slog.New(slog.DiscardHandler)}
	h.serve("prometheus", []string{""}, port, okHandler())
	defer h.stop()
	for _, addr := range []string{"127.0.0.1", "127.1.2.3"} {
		if err := get(netip.AddrPortFrom(netip.MustParseAddr(addr), port).String()); err != nil {
			t.Error(err)
		}
	}
	if list := h.listening(); len(list) != 1 || list[0].Error != "" {
		t.Errorf("got %+v", list)
	}
}

// TestListenerAbsent: an address that the node has not is told apart from one that is taken.
func TestListenerAbsent(t *testing.T) {
	h := &health{log: slog.New(slog.DiscardHandler)}
	h.serve("health", []string{"192.0.2.77"}, 9, okHandler())
	defer h.stop()
	if list := h.listening(); len(list) != 1 || !list[0].Absent || list[0].Error == "" {
		t.Errorf("got %+v", list)
	}
}

func get(address string) error {
	c := &http.Client{Timeout: time.Second}
	r, err := c.Get("http://" + address + "/")
	if err != nil {
		return err
	}
	return r.Body.Close()
}
