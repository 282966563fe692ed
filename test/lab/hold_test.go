package labtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// holdEnv makes a process of the test's own program hold a connected socket, to what it says: "udp://ADDRESS" or
// "tcp://ADDRESS".
const holdEnv = "MYELIN_TEST_HOLD"

// hold sends and hears until it is killed, and writes a line for each answer: "answer SOCKET TIME", the time in
// nanoseconds. Where its socket is ended for it, it writes "aborted", and connects another one, as applications do.
func hold(to string, out io.Writer) error {
	network, addr, _ := strings.Cut(to, "://")
	for socket := 1; ; socket++ {
		c, err := net.Dial(network, addr)
		if err != nil {
			return err
		}
		err = holdOne(c, socket, out)
		// as it reads, or as it writes
		if !errors.Is(err, syscall.ECONNABORTED) && !errors.Is(err, syscall.EDESTADDRREQ) {
			return err
		}
		c.Close()
		fmt.Fprintln(out, "aborted")
	}
}

func holdOne(c net.Conn, socket int, out io.Writer) error {
	for buf := make([]byte, 64); ; time.Sleep(20 * time.Millisecond) {
		c.SetDeadline(time.Now().Add(time.Second))
		if _, err := c.Write([]byte("still there?")); err != nil {
			return err
		}
		switch _, err := c.Read(buf); {
		case err == nil:
			fmt.Fprintln(out, "answer", socket, time.Now().UnixNano())
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		}
	}
}

// holder is a process that holds a socket.
type holder struct {
	t     *testing.T
	name  string
	lines chan string
}

// hold starts a process in a pod or on a node.
func (c *cluster) hold(from, to string) *holder {
	c.t.Helper()
	place, err := c.Find(from)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := place.Command(ctx, os.Args[0])
	cmd.Env = append(cmd.Env, holdEnv+"="+to)
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := place.Start(cmd); err != nil {
		c.t.Fatal(err)
	}
	h := &holder{t: c.t, name: from + " to " + to, lines: make(chan string, 1000)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(h.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			h.lines <- s.Text()
		}
	}()
	c.t.Cleanup(func() {
		cancel()
		for range h.lines { // until the process has gone
		}
		<-read
		cmd.Wait()
	})
	return h
}

// answered waits for an answer to the socket of that number that came after a time, and returns whether a socket was
// ended before.
func (h *holder) answered(socket int, after time.Time) (aborted bool) {
	h.t.Helper()
	late := time.After(patience(10 * time.Second))
	for {
		select {
		case line, ok := <-h.lines:
			if !ok {
				h.t.Fatalf("%s: the process has ended", h.name)
			}
			var n int
			var at int64
			if _, err := fmt.Sscanf(line, "answer %d %d", &n, &at); err == nil && n == socket && at > after.UnixNano() {
				return aborted
			}
			aborted = aborted || strings.HasPrefix(line, "aborted")
		case <-late:
			h.t.Fatalf("%s: no answer by socket %d", h.name, socket)
		}
	}
}

// TestSocketsEndWithTheirBackend takes a backend away, whose pod lives on: sockets that asked for the Service are ended
// and find the other one; one that asked for the pod itself goes on.
//
//	┌─ node1 ──────────┐  ┌─ node2 ─┐
//	│ holders in a1 s1 │  │ s2      │
//	│ and on the node  │  │         │
//	└────────┬─────────┘  └────┬────┘
//	═════════╧═════════════════╧═════
func TestSocketsEndWithTheirBackend(t *testing.T) {
	t.Parallel()
	c := up(t, setup{mode: modeNamed("native"), pods: []string{"a"}, values: map[string]any{"socketLB.enabled": true}})
	c.apply("servers", serverYAML("s1", 1)+serverYAML("s2", 2))
	c.apply("service", serviceYAML("web", 10, "")+c.slicesYAML("web", "s1"))
	var through, direct []*holder
	for _, f := range c.stack.families {
		service := "udp://" + netip.AddrPortFrom(serviceAddr(10, f), 53).String()
		for _, from := range []string{"default/a1", "node1"} {
			eventually(t, from+" reaches the Service", 10*time.Second, func() error {
				_, err := c.call(from, service)
				return err
			})
			through = append(through, c.hold(from, service))
		}
		direct = append(direct, c.hold("default/a1", "udp://"+netip.AddrPortFrom(c.end("s1").addr(f), 7001).String()))
	}
	for _, h := range append(through, direct...) {
		h.answered(1, time.Time{})
	}
	c.apply("other", c.slicesYAML("web", "s2"))
	for _, h := range through {
		if !h.answered(2, time.Time{}) {
			t.Errorf("%s: a second socket, and the first was not ended", h.name)
		}
	}
	now := time.Now()
	for _, h := range direct {
		if h.answered(1, now) {
			t.Errorf("%s: was ended, and asked for no Service", h.name)
		}
	}
	if out, err := c.Node("node1").Exec(t.Context(), "myelin", "status", "--verbose"); err != nil ||
		!strings.Contains(out, fmt.Sprintf("UDP sockets of pods and host, %d ended", len(through))) {
		t.Errorf("status, %v:\n%s", err, out)
	}
}
