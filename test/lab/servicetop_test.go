package labtest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"myelin/service/stats"
)

// TestServiceTop: what clients do with a Service is seen at the node that chooses the backend, by backend.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐
//	│  a1 s1  │  │  a2 s2  │     default/web: s1, s2
//	└────┬────┘  └────┬────┘
//	═════╧════════════╧═════ world ─► node port 30080 of node1
func TestServiceTop(t *testing.T) {
	t.Parallel()
	for name, sockets := range map[string]bool{"packets": false, "sockets": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{pods: []string{"a"}, values: map[string]any{"kubeProxyReplacement": true,
				"socketLB.hostNamespaceOnly": !sockets}})
			c.apply("servers", serverYAML("s1", 1)+serverYAML("s2", 2))
			c.apply("web", strings.Replace(serviceYAML("web", 10, "  type: NodePort\n")+c.slicesYAML("web", "s1", "s2"),
				"port: 80,", "port: 80, nodePort: 30080,", 1))
			for _, f := range c.stack.families {
				c.topSees(t, f, "default/a1", url("http", serviceAddr(10, f), 80), !sockets)
				node := netip.AddrPortFrom(c.end("node1").addr(f), 30080)
				c.topSees(t, f, "world", "http://"+node.String()+"/", true)
			}
		})
	}
}

// topSees has a client ask until both backends have answered, and wants their rates at node1: without packets, where
// the client's socket was translated.
func (c *cluster) topSees(t *testing.T, family int, from, url string, packets bool) {
	t.Helper()
	eventually(t, "node1 sees both backends answer "+from, patience(30*time.Second), func() error {
		var text string
		ended := make(chan error, 1)
		go func() {
			var err error
			text, err = c.Node("node1").Exec(t.Context(), "myelin", "service", "top", "default/web", "--count", "2",
				"--interval", "1s", "-o", "json")
			ended <- err
		}()
		for {
			select {
			case err := <-ended:
				if err != nil {
					return err
				}
				return c.topShows(text, family, packets)
			default:
			}
			if _, err := c.call(from, url); err != nil {
				<-ended
				return err
			}
		}
	})
}

// topShows wants rates of both backends in the views, added up.
func (c *cluster) topShows(text string, family int, packets bool) error {
	sums := map[string]stats.Rate{}
	views := 0
	for decoder := json.NewDecoder(strings.NewReader(text)); decoder.More(); views++ {
		var v stats.View
		if err := decoder.Decode(&v); err != nil {
			return err
		}
		for _, s := range v.Services {
			for _, b := range s.Backends {
				sum := sums[b.Backend]
				sum.NewFlows += b.NewFlows
				sum.Requests.Packets += b.Requests.Packets
				sum.Replies.Packets += b.Replies.Packets
				sum.Replies.Bytes += b.Replies.Bytes
				sums[b.Backend] = sum
			}
		}
	}
	if views != 2 {
		return fmt.Errorf("%d views, want 2: %s", views, text)
	}
	for _, pod := range []string{"s1", "s2"} {
		at := netip.AddrPortFrom(c.end(pod).addr(family), 8080).String() + "/TCP"
		sum, ok := sums[at]
		if !ok || sum.NewFlows == 0 {
			return fmt.Errorf("no new flows of %s: %s", at, text)
		}
		// A connection has at least SYN, request and FIN, and the answers to them.
		if enough := sum.Requests.Packets >= 3*sum.NewFlows && sum.Replies.Packets >= 2*sum.NewFlows &&
			sum.Replies.Bytes > 60*sum.Replies.Packets; enough != packets {
			return fmt.Errorf("%s has %+v, packets are wanted: %v", at, sum, packets)
		}
	}
	return nil
}
