package labtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"myelin/status"
)

// TestListeners has another process on one of the addresses of the health port when the agent starts: the other one
// is served, the status names the process' address, and the port is taken when it is free. Metrics are there for
// the world where prometheus.enabled asks for them.
//
//	┌─ node1 ────────────────────────┐
//	│ agent   127.0.0.1:9879 taken   │
//	└──────┬─────────────────────────┘
//	═══════╧═ world ══════════════════
func TestListeners(t *testing.T) {
	t.Parallel()
	c := up(t, setup{nodes: 1, pods: []string{}})
	node := c.Node("node1")
	check(t, node.StopAgent(t.Context()))
	var other net.Listener
	check(t, node.Do(func() (err error) {
		other, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:9879")
		return err
	}))
	defer other.Close()
	check(t, node.StartAgent(t.Context(), map[string]any{"prometheus.enabled": true}))
	c.says("Health and metrics", status.Broken,
		"health is not served on 127.0.0.1:9879, and tried again: listen tcp 127.0.0.1:9879: bind: address already "+
			"in use")
	if err := c.serves(node, "[::1]:9879", "/healthz", "ok"); err != nil {
		t.Error(err)
	}
	for _, a := range node.Addrs() {
		if err := c.serves(c.World(), netip.AddrPortFrom(a, 9962).String(), "/metrics", "myelin_version{"); err != nil {
			t.Error(err)
		}
		if err := c.serves(c.World(), netip.AddrPortFrom(a, 9879).String(), "/healthz", "ok"); err == nil {
			t.Errorf("the world is told of the agent's health at %s", a)
		}
	}
	check(t, other.Close())
	c.says("Health and metrics", status.OK, "health on 127.0.0.1:9879, health on [::1]:9879, prometheus on :9962")
	if err := c.serves(node, "127.0.0.1:9879", "/healthz", "ok"); err != nil {
		t.Error(err)
	}
}

// serves asks for a path over HTTP, from a place, and wants this in the answer.
func (c *cluster) serves(from place, address, path, want string) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience(3*time.Second))
	defer cancel()
	return from.Do(func() error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer conn.Close()
		end, _ := ctx.Deadline()
		if err := conn.SetDeadline(end); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.0\r\n\r\n", path); err != nil {
			return err
		}
		body, err := io.ReadAll(conn)
		if err == nil && !strings.Contains(string(body), want) {
			err = errors.New("no " + want)
		}
		if err != nil {
			return fmt.Errorf("http://%s%s: %w: %.200s", address, path, err, body)
		}
		return nil
	})
}
