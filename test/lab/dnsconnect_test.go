package labtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sync/errgroup"

	"myelin/bpf"
	"myelin/bpf/hooks"
)

// TestDNSConnect has a pod resolve names that were never resolved before, and connect at once: no SYN may be lost. The
// agent is killed and started again meanwhile, or it is dead throughout.
//
//	┌─ node1 ──────────┐
//	│ backend ─► proxy │
//	└────┬────────┬────┘
//	═════╧════════╧═══ world: resolver, and a server at each address of a name
func TestDNSConnect(t *testing.T) {
	names := 1000
	if os.Getenv(envRecord) == "1" {
		names = 10_000
	}
	for _, test := range []struct {
		name, result string
		kill, start  int // when so many names have begun
	}{
		{"restart", "dns/first_connection_failed", names / 3, 2 * names / 3},
		{"dead", "dns/agent_dead_failed", 0, names},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := up(t, setup{yaml: namedPods()})
			c.serveNames(1)
			c.acceptAll(443)
			ctx, node, done := t.Context(), c.Node("node1"), make(chan error, 1)
			done <- nil
			links := c.proxyLinks()
			failed := c.resolveAndConnectAll(names, func(begun int) {
				switch begun {
				case test.kill:
					done <- errors.Join(<-done, node.KillAgent(ctx))
				case test.start:
					done <- errors.Join(<-done, node.StartAgent(ctx, nil))
				}
			})
			check(t, <-done)
			if now := c.proxyLinks(); !maps.Equal(now, links) {
				t.Errorf("programs of the proxy's devices hang by links %v, and by %v before the restart", now, links)
			}
			if evil := at(numbered(4, 2*names), 443); connects(ctx, c.end("backend"), evil) {
				t.Errorf("%s is reached, which no name has", evil)
			}
			if failed > 0 {
				t.Log(c.mustCLI("node1", "drops"))
			}
			record(t, result{test.result, float64(failed), "connections"})
		})
	}
}

// resolveAndConnectAll resolves n names, connects to each at once, and returns how many attempts failed. It calls
// progress with the number of those that have begun, from 0 on.
func (c *cluster) resolveAndConnectAll(n int, progress func(begun int)) (failed int) {
	c.t.Helper()
	const workers = 16
	var begun, bad atomic.Int64
	var g errgroup.Group
	progress(0)
	pod, before := c.end("backend"), c.sentAgain("backend")
	for w := range workers {
		g.Go(func() error {
			for i := w; i < n; i += workers {
				progress(int(begun.Add(1)))
				if err := c.resolveAndConnectOne(pod, i); err != nil {
					if bad.Add(1) <= 10 {
						c.t.Errorf("name %d: %v", i, err)
					}
				}
			}
			return nil
		})
	}
	check(c.t, g.Wait())
	lost := c.sentAgain("backend") - before
	if lost > 0 {
		c.t.Errorf("%d SYNs to fresh names were lost", lost)
	}
	return int(bad.Load()) + lost
}

// resolveAndConnectOne uses IPv4 and IPv6 in turn.
func (c *cluster) resolveAndConnectOne(pod end, n int) error {
	family := []int{4, 6}[n%2]
	a, err := resolveNumber(c.t.Context(), pod, c.end("world").addr(family), n)
	if err != nil {
		return fmt.Errorf("resolve: %w", err)
	}
	if a != numbered(family, n) {
		return fmt.Errorf("resolved to %s, want %s", a, numbered(family, n))
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), patience(5*time.Second))
	defer cancel()
	conn, err := pod.dialTCP(ctx, netip.AddrPort{}, at(a, 443))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return conn.Close()
}

func (c *cluster) sentAgain(pod string) int {
	c.t.Helper()
	n, err := synRetransmissions(c.end(pod))
	check(c.t, err)
	return n
}

// proxyLinks are the links of the programs on the proxy's devices, by pin: none where the kernel has no TCX.
func (c *cluster) proxyLinks() map[string]link.ID {
	c.t.Helper()
	found := map[string]link.ID{}
	for _, hook := range bpf.ProxyHooks() {
		pins, err := filepath.Glob(filepath.Join(c.Node("node1").BPFRoot(), "myelin", "links", "*-"+string(hook)))
		check(c.t, err)
		for _, pin := range pins {
			l, err := link.LoadPinnedLink(pin, nil)
			check(c.t, err)
			info, err := l.Info()
			l.Close()
			check(c.t, err)
			found[filepath.Base(pin)] = info.ID
		}
	}
	if hooks.TCX() == nil && len(found) != len(bpf.ProxyHooks()) {
		c.t.Errorf("programs hang by the links %v, want one for each of %v", found, bpf.ProxyHooks())
	}
	return found
}
