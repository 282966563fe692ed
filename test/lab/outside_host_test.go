package labtest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// hostSlicesYAML are EndpointSlices whose only endpoint is a node.
func hostSlicesYAML(service string, node int) (text string) {
	for _, f := range []int{4, 6} {
		text += sliceYAML(service, f) + endpointYAML(nodeAddr(node, f), fmt.Sprintf("node%d", node)) + "---\n"
	}
	return text
}

// TestOutsideHost has a node itself serve, as pods in the host's network do: clients outside, and pods.
//
//	world ══► node1: server      world ══► node2 ══► node1: server      a1, a2 ──► ClusterIP ══► node1: server
func TestOutsideHost(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c := outside(t, m, nil)
			const n = outBulk + 2
			node, err := c.Find("node1")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			server := node.Command(ctx, "myelin", "lab", "serve")
			if err := node.Start(server); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { cancel(); server.Wait() })
			c.apply("host", c.outsideYAML("host", n, "")+hostSlicesYAML("host", 1))
			for _, f := range c.stack.families {
				for via, want := range map[int]netip.Addr{1: worldAddr(f), 2: c.behindNode(2, f)} {
					c.hostAnswers(f, nodeAddr(via, f), n, want)
				}
				for _, from := range []string{"default/a1", "default/a2"} {
					eventually(t, from+" reaches the host", 10*time.Second, func() error {
						_, err := c.call(from, url("http", serviceAddr(n, f), 80))
						return err
					})
				}
			}
		})
	}
}

// hostAnswers asks a node for the Service, by TCP and UDP.
func (c *cluster) hostAnswers(f int, node netip.Addr, n uint16, want netip.Addr) {
	c.t.Helper()
	eventually(c.t, "the host serves by "+node.String(), 10*time.Second, func() error {
		_, client, err := c.asks("world", url("http", node, 30000+n))
		if err == nil && client != want {
			err = fmt.Errorf("it saw %s, want %s", client, want)
		}
		return err
	})
	if _, err := c.call("world", url("udp", node, 30500+n)); err != nil {
		c.t.Errorf("IPv%d UDP by %s: %v", f, node, err)
	}
}
