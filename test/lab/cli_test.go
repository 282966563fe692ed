package labtest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"myelin/lab"
)

// cli runs `myelin ARGS` on a node, where the lab points it to the node's agent.
func (c *cluster) cli(node string, args ...string) (string, error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience(20*time.Second))
	defer cancel()
	return c.Node(node).Exec(ctx, append([]string{"myelin"}, args...)...)
}

func (c *cluster) mustCLI(node string, args ...string) string {
	c.t.Helper()
	out, err := c.cli(node, args...)
	if err != nil {
		c.t.Fatalf("myelin %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// jsonCLI reads what `myelin ARGS -o json` prints.
func (c *cluster) jsonCLI(into any, node string, args ...string) {
	c.t.Helper()
	out := c.mustCLI(node, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		c.t.Fatalf("myelin %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func contains(t *testing.T, what, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("%s has no %q:\n%s", what, w, got)
		}
	}
}

// monitoring is `myelin monitor -o json` on a node.
type monitoring struct {
	t     *testing.T
	lines chan string
}

func (c *cluster) monitor(node string, args ...string) *monitoring {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := c.Node(node).Command(ctx, append([]string{"myelin", "monitor", "-o", "json"}, args...)...)
	out, err := cmd.StdoutPipe()
	check(c.t, err)
	errs, err := cmd.StderrPipe()
	check(c.t, err)
	check(c.t, c.Node(node).Start(cmd))
	m := &monitoring{c.t, make(chan string, 4096)}
	c.t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	if line, err := bufio.NewReader(errs).ReadString('\n'); err != nil || line != "listening\n" {
		c.t.Fatalf("monitor says %q, %v", line, err)
	}
	go func() {
		defer close(m.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			m.lines <- lines.Text()
		}
	}()
	return m
}

// monitored is what monitor prints as JSON.
type monitored struct {
	Type, Hook, Reason, Interface, Denied, Policy string
	Source, Destination                           struct {
		Address, Pod string
		Port         int
	}
}

// wait returns the first event that fits.
func (m *monitoring) wait(what string, fits func(monitored) bool) monitored {
	m.t.Helper()
	var seen []string
	for end := time.After(patience(10 * time.Second)); ; {
		select {
		case line, ok := <-m.lines:
			var e monitored
			if !ok {
				m.t.Fatalf("monitor ended, without %s; it showed\n%s", what, strings.Join(seen, "\n"))
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				m.t.Fatalf("%s: %v", line, err)
			}
			if fits(e) {
				return e
			}
			seen = append(seen, line)
		case <-end:
			m.t.Fatalf("monitor did not show %s, but\n%s", what, strings.Join(seen, "\n"))
		}
	}
}

// TestCLI asks a node's agent about what happens on it.
//
//	node1: a1, b1 ── eth0 ── world
func TestCLI(t *testing.T) {
	t.Parallel()
	c := up(t, setup{nodes: 1})
	a1 := c.Pod("a1")
	t.Run("lists", func(t *testing.T) { c.checkLists(t, a1) })
	t.Run("output", func(t *testing.T) { c.checkOutput(t, a1) })
	t.Run("events and counters", func(t *testing.T) { c.checkEvents(t, a1) })
	t.Run("metrics", func(t *testing.T) { c.checkMetrics(t) })
	t.Run("without an agent", func(t *testing.T) { c.checkNoAgent(t) })
}

func (c *cluster) checkLists(t *testing.T, a1 *lab.Pod) {
	var endpoints []struct {
		ID        int
		Pod, IPv4 string
	}
	c.jsonCLI(&endpoints, "node1", "endpoint", "list")
	id := 0
	for _, e := range endpoints {
		if e.IPv4 == a1.IPv4().String() {
			id = e.ID
		}
	}
	if len(endpoints) != 2 || id == 0 {
		t.Fatalf("endpoints: %+v", endpoints)
	}
	contains(t, "endpoint get", c.mustCLI("node1", "endpoint", "get", fmt.Sprint(id)), a1.IPv4().String(),
		a1.IPv6().String(), a1.Name())
	contains(t, "endpoint list", c.mustCLI("node1", "endpoint", "list", "-f", "Pod="+a1.Name()), "ID ",
		a1.IPv4().String())
	contains(t, "route list", c.mustCLI("node1", "route", "list"), a1.IPv4().String()+"/32")
	contains(t, "route neighbours", c.mustCLI("node1", "route", "neighbours"), a1.IPv6().String())
	contains(t, "node list", c.mustCLI("node1", "node", "list"), "node1")
	contains(t, "map list", c.mustCLI("node1", "map", "list"), "endpoints", "flows", "events")
	contains(t, "map dump", c.mustCLI("node1", "map", "dump", "endpoints"), a1.IPv4().String(), "slot="+fmt.Sprint(id))
	for _, args := range [][]string{{"endpoint", "get", "60000"}, {"map", "dump", "nothing"},
		{"table", "show", "nothing"}, {"endpoint", "list", "-f", "Bad=1"}} {
		if out, err := c.cli("node1", args...); err == nil {
			t.Errorf("%v succeeded: %s", args, out)
		}
	}
	var tables []struct {
		Name string
		Rows int
	}
	c.jsonCLI(&tables, "node1", "table", "list")
	for _, table := range tables { // every table can be shown
		if lines := strings.Count(c.mustCLI("node1", "table", "show", table.Name, "--limit", "0"),
			"\n"); lines < table.Rows {
			t.Errorf("table %s has %d rows and %d lines", table.Name, table.Rows, lines-1)
		}
	}
}

func (c *cluster) checkEvents(t *testing.T, a1 *lab.Pod) {
	m, drops := c.monitor("node1"), c.monitor("node1", "--drops", "--pod", a1.Name())
	ctx, cancel := context.WithTimeout(t.Context(), patience(20*time.Second))
	defer cancel()
	world := c.end("world")
	outside := world.addr(4).String()
	if _, err := tcp(ctx, c.end("a1"), world, world.addr(4), 10000); err != nil {
		t.Fatalf("talk to the world: %v", err)
	}
	begin := m.wait("the flow's begin", func(e monitored) bool {
		return e.Type == "flow-begin" && e.Destination.Address == outside
	})
	if begin.Hook != "from_pod" || begin.Source.Pod != a1.Name() || begin.Source.Address != a1.IPv4().String() ||
		begin.Destination.Port == 0 || begin.Interface == "" {
		t.Errorf("begin: %+v", begin)
	}
	m.wait("the flow's end", func(e monitored) bool {
		return e.Type == "flow-end" && (e.Source.Pod == a1.Name() || e.Destination.Pod == a1.Name())
	})
	var flows []struct {
		Source         struct{ Pod string }
		Destination    struct{ Address string }
		Sent, Received struct{ Packets int }
		Translated     string
	}
	c.jsonCLI(&flows, "node1", "flow", "list", "-f", "Source~"+a1.Name())
	if len(flows) == 0 || flows[0].Sent.Packets < 4 || flows[0].Received.Packets < 3 || flows[0].Translated == "" {
		t.Errorf("flows: %+v", flows)
	}
	contains(t, "route paths", c.mustCLI("node1", "route", "paths"), outside)

	check(t, a1.Do(func() error {
		conn, err := net.Dial("udp4", "255.255.255.255:9")
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("anybody?"))
		return err
	}))
	drop := drops.wait("the broadcast", func(e monitored) bool { return e.Destination.Address == "255.255.255.255" })
	if drop.Type != "drop" || drop.Reason != "multicast" || drop.Source.Pod != a1.Name() {
		t.Errorf("drop: %+v", drop)
	}
	contains(t, "drops", c.mustCLI("node1", "drops"), "from_pod", "multicast: To a multicast or broadcast address.")
	var counters []struct {
		Name    string
		Packets uint64
	}
	c.jsonCLI(&counters, "node1", "drops")
	for _, n := range counters {
		if n.Name == "DROP_MULTICAST" && n.Packets > 0 {
			return
		}
	}
	t.Errorf("counters: %+v", counters)
}

// health asks a node's agent for what it serves by HTTP.
func (c *cluster) health(t *testing.T, node, path string) (code int, text string) {
	t.Helper()
	code, text, err := c.nodeGet(node, path)
	check(t, err)
	return code, text
}

func (c *cluster) nodeGet(node, path string) (code int, text string, err error) {
	err = c.Node(node).Do(func() error {
		conn, err := net.Dial("tcp", "127.0.0.1:9879") // on this thread, which is in the namespace
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
			path); err != nil {
			return err
		}
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		code, text = r.StatusCode, string(body)
		return err
	})
	return code, text, err
}

func (c *cluster) checkMetrics(t *testing.T) {
	if code, body := c.health(t, "node1", "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
	code, body := c.health(t, "node1", "/metrics")
	if code != http.StatusOK {
		t.Fatalf("/metrics: %d %s", code, body)
	}
	contains(t, "/metrics", body, `myelin_drop_count_total{direction="EGRESS",hook="from_pod",reason="multicast"}`,
		`myelin_forward_bytes_total{direction="EGRESS",hook="from_pod",way=`,
		`myelin_endpoint_state{endpoint_state="ready"} 2`, "myelin_endpoint 2\n",
		`myelin_reconcile_errors{table="routes"} 0`,
		`myelin_bpf_map_pressure{map_name="flows"}`, `myelin_bpf_map_bytes{map_name="flows"}`,
		`myelin_bpf_map_capacity{map_group="flows"}`,
		"myelin_bpf_maps_virtual_memory_max_bytes ", "myelin_nodes_all_num 1\n", `myelin_identity{type="node_local"} `,
		"myelin_policy 0\n",
		`myelin_policy_endpoint_enforcement_status{enforcement="none"} 2`,
		`myelin_events_lost_total{where="kernel"}`, `myelin_cni_duration_seconds_count{command="ADD",result="ok"} 2`,
		`myelin_version{arch=`,
		`myelin_agent_bootstrap_seconds{outcome="success",scope="overall"} `,
		`myelin_ip_addresses{family="ipv4",prefix=`,
		`myelin_ipam_capacity{family="ipv6",prefix=`)
	documented(t, body)
}

func (c *cluster) checkNoAgent(t *testing.T) {
	m := c.monitor("node1")
	check(t, c.Node("node1").StopAgent(t.Context()))
	for range m.lines { // ends with the agent
	}
	for _, args := range [][]string{{"endpoint", "list"}, {"drops"}, {"monitor"}} {
		out, err := c.cli("node1", args...)
		if err == nil || !strings.Contains(out, "no agent answers at "+c.Node("node1").Socket()) {
			t.Errorf("myelin %v without an agent: %v: %s", args, err, out)
		}
	}
	check(t, c.Node("node1").StartAgent(t.Context(), nil))
	contains(t, "endpoint list after a restart", c.mustCLI("node1", "endpoint", "list"), "ready")
	contains(t, "map list after a restart", c.mustCLI("node1", "map", "list"), "adopted")
}
