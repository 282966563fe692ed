package labtest

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"myelin/lab"
)

// checkOutput reads the formats of -o from a real agent's answers, and what version and config view say.
func (c *cluster) checkOutput(t *testing.T, a1 *lab.Pod) {
	t.Helper()
	addr := a1.IPv4().String()
	var endpoints []struct{ IPv4 string }
	text := c.mustCLI("node1", "endpoint", "list", "-o", "yaml")
	if err := yaml.Unmarshal([]byte(text), &endpoints); err != nil || len(endpoints) != 2 {
		t.Errorf("endpoint list -o yaml: %v:\n%s", err, text)
	}
	contains(t, "endpoint list -o jsonpath", c.mustCLI("node1", "endpoint", "list", "-o", "jsonpath={[*].ipv4}"), addr)
	contains(
		t,
		"endpoint list -o wide",
		c.mustCLI("node1", "endpoint", "list", "-o", "wide"),
		"Network namespace",
		"Container",
		addr,
	)
	contains(t, "pod list -o wide", c.mustCLI("node1", "pod", "list", "-o", "wide"), "Service account", addr)
	for _, table := range strings.Fields(c.mustCLI("node1", "table", "list", "-o",
		"jsonpath={[*].name}")) { // each has both formats
		c.mustCLI("node1", "table", "show", table, "-o", "wide", "--limit", "0")
		c.mustCLI("node1", "table", "show", table, "-o", "yaml", "--limit", "0")
	}
	contains(t, "log", c.mustCLI("node1", "table", "show", "log"), "level=INFO msg=ready node=node1")
	contains(
		t,
		"metrics",
		c.mustCLI("node1", "metrics", "list", "-f", "Metric~myelin"),
		"myelin_version",
		"count 2, sum ",
	)
	var version struct {
		Client, Agent struct{ Version string }
		Kernel        struct{ Release string }
		Features      []struct{ Name, State string }
	}
	if err := json.Unmarshal([]byte(c.mustCLI("node1", "version", "-o", "json")), &version); err != nil {
		t.Fatal(err)
	}
	if version.Client.Version == "" || version.Client != version.Agent || version.Kernel.Release == "" ||
		len(version.Features) < 10 {
		t.Errorf("version: %+v", version)
	}
	contains(t, "status -o wide", c.mustCLI("node1", "status", "-o", "wide"), "Devices")
	// The lab gives each agent a file of its own, which says what differs between nodes.
	view := c.mustCLI(
		"node1",
		"config",
		"view",
		"--changed",
		"-o",
		`jsonpath={range [*]}{.key}={.value} {.source}{"\n"}{end}`,
	)
	contains(t, "config view", view, "myelin.nodeName=node1 "+c.Node("node1").Dir()+"/")
}

// TestLogFormat: an agent with myelin.logFormat json writes an object a line, and nothing else.
func TestLogFormat(t *testing.T) {
	t.Parallel()
	c := up(t, setup{nodes: 1, values: map[string]any{"myelin.logFormat": "json"}})
	file, err := os.ReadFile(c.Node("node1").AgentLog())
	check(t, err)
	ready := false
	for line := range strings.Lines(string(file)) {
		var entry struct{ Time, Level, Msg, Node string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Time == "" || entry.Level == "" {
			t.Errorf("%v: %s", err, line)
		}
		ready = ready || entry.Msg == "ready" && entry.Node == "node1"
	}
	if !ready {
		t.Errorf("the agent does not say that it is ready:\n%s", file)
	}
	contains(t, "log", c.mustCLI("node1", "table", "show", "log", "-o", "jsonpath={[*].line}"), `"msg":"ready"`)
}

// documented: each metric of ours stands in docs/metrics.md.
func documented(t *testing.T, metrics string) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/metrics.md")
	check(t, err)
	names := regexp.MustCompile(`(?m)^# TYPE (myelin_\w+)`).FindAllStringSubmatch(metrics, -1)
	if len(names) < 20 {
		t.Errorf("%d metrics are ours:\n%s", len(names), metrics)
	}
	for _, name := range names {
		if !strings.Contains(string(doc), "`"+name[1]+"`") {
			t.Errorf("docs/metrics.md has no %s", name[1])
		}
	}
}
