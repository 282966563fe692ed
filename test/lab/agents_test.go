package labtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTwoAgents starts a second agent, with a run directory of its own, on the BPF file system of the first one. It
// names the process that has it, fails, and has changed nothing. An agent that is killed leaves no lock behind.
//
//	┌─ node1 ───────────────────────────┐
//	│ a1 ⇄ b1   agent   another agent   │
//	└──────┬────────────────────────────┘
//	═══════╧═════════════════════════════
func TestTwoAgents(t *testing.T) {
	t.Parallel()
	c := up(t, setup{nodes: 1, pods: []string{"a", "b"}})
	node := c.Node("node1")
	before := c.podLinks("node1")
	data, err := os.ReadFile(filepath.Join(node.Dir(), "agent.yaml"))
	check(t, err)
	other := filepath.Join(t.TempDir(), "run")
	file := filepath.Join(t.TempDir(), "agent.yaml")
	check(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(data), node.RunDir(), other)), 0o600))

	out, err := c.cli("node1", "agent", "--config", file)
	want := fmt.Sprintf("another agent (process %d) has this BPF file system", node.AgentProcess().PID)
	if err == nil || !strings.Contains(out, want) {
		t.Errorf("the second agent: %v, want %q in\n%s", err, want, out)
	}
	if _, err := os.Stat(other); err == nil {
		t.Error("the second agent has made a run directory")
	}
	if after := c.podLinks("node1"); after != before || strings.Count(after, "state UP") != 2 {
		t.Errorf("pod links are now\n%s\nand were\n%s", after, before)
	}
	for _, f := range c.stack.families {
		c.try(way{"a1", "b1", "a1"}, f)
	}

	check(t, node.KillAgent(t.Context()))
	begin := time.Now()
	check(t, node.StartAgent(t.Context(), nil))
	if took := time.Since(begin); took > patience(5*time.Second) {
		t.Errorf("after kill -9 the agent was ready only after %v", took)
	}
}

// podLinks are the lines of ip-link(8) about the links of a node's pods.
func (c *cluster) podLinks(node string) (text string) {
	c.t.Helper()
	for line := range strings.Lines(c.ip(node, "-o", "link")) {
		if strings.Contains(line, ": mye") {
			text += line
		}
	}
	return text
}
