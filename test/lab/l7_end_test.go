package labtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// serveTunnels upgrades connections at all addresses of an end, and answers then with what it gets.
func (c *cluster) serveTunnels(e end, port uint16) {
	c.t.Helper()
	for _, a := range e.addrs {
		l, err := e.listenTCP(c.t.Context(), at(a, port))
		check(c.t, err)
		server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter,
			r *http.Request) {
			if r.Header.Get("Upgrade") == "" {
				return
			}
			conn, buffered, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return // the client has gone
			}
			defer conn.Close()
			fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
			for {
				line, err := buffered.ReadString('\n')
				if err != nil {
					return
				}
				fmt.Fprint(conn, line)
			}
		})}
		go func() { _ = server.Serve(l) }() // ends with the listener
		c.t.Cleanup(func() { server.Close() })
	}
}

// tunnel is a connection that has been upgraded.
type tunnel struct {
	net.Conn
	read *bufio.Reader
}

func (c *cluster) tunnel(from string, to netip.AddrPort) (*tunnel, error) {
	conn, err := c.end(from).dialTCP(c.t.Context(), netip.AddrPort{}, to)
	if err != nil {
		return nil, err
	}
	c.t.Cleanup(func() { conn.Close() })
	t := &tunnel{conn, bufio.NewReader(conn)}
	check(c.t, conn.SetDeadline(time.Now().Add(patience(5*time.Second))))
	fmt.Fprintf(conn, "GET /api/public HTTP/1.1\r\nHost: %s\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n", to)
	answer, err := http.ReadResponse(t.read, nil)
	if err == nil && answer.StatusCode != http.StatusSwitchingProtocols {
		err = errors.New(answer.Status)
	}
	return t, err
}

// echo sends a line through the tunnel and back.
func (t *tunnel) echo() error {
	if err := t.SetDeadline(time.Now().Add(patience(2 * time.Second))); err != nil {
		return err
	}
	fmt.Fprintln(t.Conn, "hello")
	_, err := t.read.ReadString('\n')
	return err
}

// TestProxyEnd: a proxy that has handed over serves a connection that lasts, though it was told to end; it ends when it
// is told so again. Clean-up of the node finds and ends it, too.
//
//	┌─ node1 ─────────────────┐  ┌─ node2 ─────────────────┐
//	│ far (frontend)          │  │ near (frontend)  api:80 │
//	└───────────┬─────────────┘  └────────────┬────────────┘
//	════════════╧═════════════════════════════╧═════════════
func TestProxyEnd(t *testing.T) {
	t.Parallel()
	c := up(t, setup{mode: modeNamed("native"), yaml: l7Pods(),
		values: map[string]any{"myelin.proxy.supervise": false}})
	program := filepath.Join(binDir(), "myelin")
	old, oldEnded := c.proxyCommand(program)
	c.apply("policy", getOnly)
	c.serveTunnels(c.end("api"), 80)
	client := c.client(c.end("far"))
	client.Transport.(*http.Transport).DisableKeepAlives = true
	eventually(t, "the policy", 20*time.Second, func() error { return c.wantStatus(client, "DELETE", 403) })
	tunnels := c.tunnels()
	next, nextEnded := c.proxyCommand(program)

	check(t, old.Process.Signal(syscall.SIGTERM))
	for range 4 {
		time.Sleep(time.Second)
		for _, one := range tunnels {
			check(t, one.echo())
		}
	}
	check(t, old.Process.Signal(syscall.SIGTERM))
	c.wantEnd(old, oldEnded)
	for _, one := range tunnels {
		if err := one.echo(); err == nil {
			t.Error("a tunnel goes on without its proxy")
		}
	}

	tunnels = c.tunnels()
	last, lastEnded := c.proxyCommand(program)
	check(t, tunnels[0].echo())
	node := c.Node("node2")
	check(t, node.StopAgent(t.Context()))
	out, err := c.cleanUp(node, "--force")
	check(t, err)
	for _, cmd := range []*exec.Cmd{next, last} {
		if text := fmt.Sprintf("ended the proxy, process %d\n", cmd.Process.Pid); !strings.Contains(out, text) {
			t.Errorf("clean-up did not say %q:\n%s", text, out)
		}
	}
	c.wantEnd(next, nextEnded)
	c.wantEnd(last, lastEnded)
}

// tunnels are one of each family.
func (c *cluster) tunnels() (list []*tunnel) {
	c.t.Helper()
	for _, f := range []int{4, 6} {
		one, err := c.tunnel("far", at(c.end("api").addr(f), 80))
		check(c.t, err)
		list = append(list, one)
	}
	return list
}

func (c *cluster) wantEnd(cmd *exec.Cmd, ended <-chan error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience(5*time.Second))
	defer cancel()
	select {
	case err := <-ended:
		check(c.t, err)
	case <-ctx.Done():
		c.t.Errorf("process %d has not ended", cmd.Process.Pid)
	}
}
