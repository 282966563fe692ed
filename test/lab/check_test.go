package labtest

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// checkPort is the health check node port of the Service under test.
const checkPort = 32100

// asked asks a node's health check port from the world, and returns answer and error.
func (c *cluster) asked(node, f int) (string, error) {
	c.t.Helper()
	place, err := c.Find("world")
	if err != nil {
		c.t.Fatal(err)
	}
	to := url("http", nodeAddr(node, f), checkPort) + "healthz"
	return place.Exec(c.t.Context(), "myelin", "lab", "call", "--timeout", patience(2*time.Second).String(), to)
}

// healthy reports what is wrong with the answers of both nodes, of which one has the backend.
func (c *cluster) healthy(has, f int) error {
	for node := 1; node <= 2; node++ {
		out, err := c.asked(node, f)
		want := 0
		if node == has {
			want = 1
		}
		body := fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": "+
			"\"lb\"\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": true\n}\n", want)
		if !strings.Contains(out, body) || (err == nil) != (want == 1) ||
			err != nil && !strings.Contains(err.Error(), "503 Service Unavailable") {
			return fmt.Errorf("IPv%d: node%d: %v\n%s", f, node, err, out)
		}
	}
	return nil
}

// TestHealthCheckNodePort asks as a load balancer outside does, which node has backends; the backend moves, the agent
// is killed and comes back, the Service goes.
//
//	┌─ node1 ─────┐  ┌─ node2 ─────┐  ┌─ world ─┐
//	│ s1  :32100  │  │ s2  :32100  │  │ client  │
//	└──────┬──────┘  └──────┬──────┘  └────┬────┘
//	═══════╧════════════════╧══════════════╧═════
func TestHealthCheckNodePort(t *testing.T) {
	t.Parallel()
	c := up(t, setup{mode: modeNamed("native"), pods: []string{"a"}, values: map[string]any{"socketLB.enabled": true}})
	c.apply("servers", serverYAML("s1", 1)+serverYAML("s2", 2))
	spec := fmt.Sprintf("  type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: %d\n", checkPort)
	c.apply("service", strings.Replace(serviceYAML("lb", 10, spec), "port: 80,", "port: 80, nodePort: 30080,",
		1)+c.slicesYAML("lb", "s1"))
	answers := func(what string, has int) {
		t.Helper()
		for _, f := range c.stack.families {
			eventually(t, what, 10*time.Second, func() error { return c.healthy(has, f) })
		}
	}
	answers("node1 has the backend", 1)
	c.apply("moved", c.slicesYAML("lb", "s2"))
	answers("node2 has the backend", 2)
	node := c.Node("node2")
	out, err := node.Exec(t.Context(), "myelin", "status")
	if err != nil || !strings.Contains(out, "1 of 1 served") {
		t.Errorf("status: %v\n%s", err, out)
	}
	if err := node.KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.asked(2, 4); err == nil {
		t.Error("node2 answers without an agent")
	}
	if err := node.RestartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	answers("the agent is back", 2)
	c.apply("cluster", serviceYAML("lb", 10, "  type: LoadBalancer\n"))
	for _, f := range c.stack.families {
		eventually(t, "requests have ended", 10*time.Second, func() error {
			if out, err := c.asked(1, f); err == nil || !strings.Contains(err.Error(), "refused") {
				return fmt.Errorf("IPv%d: %v\n%s", f, err, out)
			}
			return nil
		})
	}
}
