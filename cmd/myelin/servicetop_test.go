package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	apiv1 "myelin/api/v1"
	"myelin/service/stats"
)

// counting has backends that count 10 packets and a flow between any two readings.
type counting struct {
	apiv1.UnimplementedAgentServer
	readings atomic.Uint64
}

func (c *counting) List(r *apiv1.ListRequest, stream apiv1.Agent_ListServer) error {
	n := c.readings.Add(1)
	var list []*stats.Entry
	for i, name := range []string{"demo/web", "demo/dns"} {
		at := uint64(i) + 1
		list = append(list, &stats.Entry{ID: uint32(at), Service: name, Backend: "10.0.1.2:8080/TCP", State: "active",
			Requests: stats.Traffic{Packets: 1000 + 10*n*at, Bytes: 1000 * n * at}, NewFlows: n})
	}
	data, err := json.Marshal(append(list, &stats.Entry{NewFlows: 5}))
	if err != nil {
		return err
	}
	return stream.Send(&apiv1.ListResponse{Json: data})
}

// TestServiceTop: views as text, and as objects.
func TestServiceTop(t *testing.T) {
	socket := serveAgent(t, &counting{})
	top := func(args ...string) string {
		t.Helper()
		args = append([]string{"service", "top", "--socket", socket, "--interval", "100ms"}, args...)
		out, _, err := runNoun(args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	out := top("-n", "2")
	if strings.Count(out, "\ntotal ") != 2 || strings.Count(out, "\ndemo/dns ") != 2 ||
		strings.Contains(out, "others") ||
		strings.Contains(out, "\x1b") || strings.Index(out, "demo/dns") > strings.Index(out, "demo/web") {
		t.Errorf("got\n%s", out)
	}
	if out := top("--once"); strings.Count(out, "\ntotal ") != 1 {
		t.Errorf("--once: got\n%s", out)
	}
	if out := top("-n", "1", "web"); strings.Contains(out, "demo/dns") || !strings.Contains(out, "\ndemo/web ") {
		t.Errorf("only web: got\n%s", out)
	}
	var got []stats.View
	decoder := json.NewDecoder(strings.NewReader(top("-n", "2", "-o", "json", "--by", "flows")))
	for decoder.More() {
		var v stats.View
		if err := decoder.Decode(&v); err != nil {
			t.Fatal(err)
		}
		got = append(got, v)
	}
	if len(got) != 2 || len(got[1].Services) != 3 {
		t.Fatalf("%+v", got)
	}
	v := got[1]
	first := v.Services[0]
	if n := first.Requests.Packets * v.Seconds; first.Service != "demo/dns" || n < 19 || n > 21 {
		t.Errorf("the first Service has counted %f in %fs: %+v", n, v.Seconds, first)
	}
	for args, want := range map[string]string{
		"--by names":     "--by names: want packets, bytes or flows",
		"--interval 1ms": "--interval 1ms: want 100ms or more",
		"--count -1":     "--count -1: want 0 or more",
		"eb":             "no backend of a Service eb has counters: see myelin service list and myelin service stats",
	} {
		_, _, err := runNoun(append([]string{"service", "top", "--socket", socket}, strings.Fields(args)...)...)
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// TestTopText compares with testdata; "go test ./cmd/myelin -args update" writes it.
func TestTopText(t *testing.T) {
	entry := func(id uint32, name, backend, state string, n uint64, flows int) *stats.Entry {
		return &stats.Entry{ID: id, Service: name, Backend: backend, State: state, Node: "node1",
			Requests: stats.Traffic{Packets: n, Bytes: 70 * n}, Replies: stats.Traffic{Packets: n / 2, Bytes: 1400 * n},
			NewFlows: n / 100, Flows: &flows}
	}
	view := stats.Rates(nil, []*stats.Entry{
		{NewFlows: 1},
		entry(1, "demo/web", "10.0.1.2:8080/TCP", "active", 2_468_000, 1234),
		entry(1, "demo/web", "[fd00:10:0:2::2]:8080/TCP", "terminating", 3, 1),
		entry(1, "demo/web", "10.0.2.2:8080/TCP", "active", 0, 0),
		entry(2, "demo/\x1b[2Jdns", "10.0.1.3:53/UDP", "active", 500, 0),
		entry(3, "demo/idle", "10.0.1.4:80/TCP", "active", 0, 0),
	}, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), 2*time.Second, stats.ByPackets)
	golden(t, "service-top", topText(view, "packets", false, false))
	golden(t, "service-top-wide", topText(view, "packets", true, true))
	for v, want := range map[float64]string{0: "0", 0.5: "0.5", 9.96: "10.0", 10.4: "10", 999.4: "999", 999.6: "1.0k",
		1_250_000: "1.2M", 3e12: "3.0T"} {
		if got := rateText(v); got != want {
			t.Errorf("%f is %s, want %s", v, got, want)
		}
	}
}

func TestFrame(t *testing.T) {
	for _, c := range []struct {
		columns, rows int
		want          string
	}{
		{80, 24, "abcdef\x1b[K\r\nb\x1b[K\r\nc"},
		{80, 2, "abcdef\x1b[K\r\n… 2 more lines"},
		{5, 24, "abcd\x1b[K\r\nb\x1b[K\r\nc"},
		{0, 0, "abcdef\x1b[K\r\nb\x1b[K\r\nc"},
		{80, 1, "… 3 more lines"},
	} {
		if got := frame("abcdef\nb\nc\n", c.columns, c.rows); got != screenHome+c.want+screenRest {
			t.Errorf("%d×%d: got %q, want %q", c.columns, c.rows, got, c.want)
		}
	}
}

// terminal opens a pseudoterminal: the side that a terminal has, and the one that a command writes to.
func terminal(t *testing.T) (seen, out *os.File) {
	t.Helper()
	seen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudoterminal: ", err)
	}
	t.Cleanup(func() { seen.Close() })
	raw, err := seen.SyscallConn() // Fd would make reads block beyond their deadline
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if bad := raw.Control(func(fd uintptr) {
		if n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); err == nil {
			err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		}
	}); bad != nil {
		t.Fatal(bad)
	}
	if err = errors.Join(err, seen.SetReadDeadline(time.Now().Add(20*time.Second))); err == nil {
		out, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	return seen, out
}

// TestTopScreen: on a terminal the view is drawn in place, anew when the size changes, and the screen comes back.
func TestTopScreen(t *testing.T) {
	seen, out := terminal(t)
	resize := func(rows uint16) {
		t.Helper()
		size := &unix.Winsize{Row: rows, Col: 40}
		if err := unix.IoctlSetWinsize(int(out.Fd()), unix.TIOCSWINSZ, size); err != nil {
			t.Fatal(err)
		}
	}
	resize(24)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := topCommand(&listFlags{socket: serveAgent(t, &counting{})})
	cmd.SetArgs([]string{"--interval", "200ms"})
	cmd.SetOut(out)
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	var text strings.Builder
	until := func(want string) {
		t.Helper()
		buf := make([]byte, 4096)
		for !strings.Contains(text.String(), want) {
			n, err := seen.Read(buf)
			if err != nil {
				t.Fatalf("%v after %q, want %q", err, text.String(), want)
			}
			text.Write(buf[:n])
		}
	}
	until(screenOpen + screenHome)
	until("demo/web")
	resize(3)
	if err := unix.Kill(os.Getpid(), unix.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	until("… 5 more lines" + screenRest)
	if err := unix.Kill(os.Getpid(), unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	until(screenClose)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
