package labtest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestRestartServices ends the agents of both nodes under flows from outside: none is lost, and new ones begin while no
// agent runs.
//
//	world ══► node2 ══► node1: s1      world ══► node1: s1
func TestRestartServices(t *testing.T) {
	for name, more := range map[string]map[string]any{"snat": nil, "dsr": {"loadBalancer.mode": "dsr"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := outside(t, modeNamed("native"), more)
			const echo = outBulk + 1
			c.apply("echo", strings.ReplaceAll(c.outsideYAML("echo", echo, "", "s1"), "8080", "7000"))
			var held []*holder
			for _, f := range c.stack.families {
				for node := 1; node <= 2; node++ {
					eventually(t, "the echo answers", 10*time.Second, func() error {
						_, err := c.call("world", url("tcp", nodeAddr(node, f), 30000+echo))
						return err
					})
					held = append(held, c.hold("world", "tcp://"+at(nodeAddr(node, f), 30000+echo).String()),
						c.hold("world", "udp://"+at(nodeAddr(node, f), 30500+outNear).String()))
				}
			}
			all := func(what string) {
				t.Helper()
				now := time.Now()
				for _, h := range held {
					if h.answered(1, now) {
						t.Errorf("%s: %s was ended", what, h.name)
					}
				}
			}
			all("before")
			for round := range fewer(3) {
				for _, node := range []string{"node1", "node2"} {
					if err := c.Node(node).KillAgent(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				all(fmt.Sprintf("round %d, without agents", round))
				for _, f := range c.stack.families {
					for node := 1; node <= 2; node++ {
						if _, err := c.call("world", url("http", nodeAddr(node, f), 30000+outNear)); err != nil {
							t.Errorf("round %d, without agents: %v", round, err)
						}
					}
				}
				for _, node := range []string{"node1", "node2"} {
					if err := c.Node(node).StartAgent(t.Context(), nil); err != nil {
						t.Fatal(err)
					}
				}
				all(fmt.Sprintf("round %d, agents again", round))
			}
		})
	}
}
