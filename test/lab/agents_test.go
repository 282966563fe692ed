package labtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTwoAgents starts a second agent, with a run directory of its own, on the BPF file system of the first one. It names the process that has it,
// fails, and has changed nothing. An agent that is killed leaves no lock behind.
//
//	┌─ node1 ───────────────────────────┐
//	│ a1 ⇄ b1   agent   another agent   │
//	└──────┬────────────────────────────┘
//	═══════╧═════════════════════════════
func TestTwoAgents(t *testing.T) {
	t.Parallel()
	c := up(t, setup{nodes: 1, pods: []string{"a", "b"}})
	node := c.Node("node1")
	before := c.ip("node1", "-o", "link")
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
	if after := c.ip("node1", "-o", "link"); after != before {
		t.Errorf("links are now\n%s\nand were\n%s", after, before)
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
