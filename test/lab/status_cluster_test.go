package labtest

import (
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"myelin/status"
)

// TestStatusCluster: `myelin status --cluster` asks the agents of all nodes, from one of them and from beside the
// lab, and says which one does not answer.
//
//	node1: a1, b1 ── eth0 ── node2: a2, b2
func TestStatusCluster(t *testing.T) {
	t.Parallel()
	c := up(t, setup{})
	out := c.mustCLI("node1", "status", "--cluster", "--wait", "--wait-duration", patience(20*time.Second).String())
	contains(t, "status --cluster", out, "Node ", "\nnode1 ", "\nnode2 ", "2 ready", "2 nodes: ", " 0 broken\n")
	var nodes []struct {
		Node, Error string
		State       status.State
		Report      *status.Report
	}
	ask := func() int {
		t.Helper()
		cmd := exec.CommandContext(
			t.Context(),
			filepath.Join(binDir(), "myelin"),
			"status",
			"--cluster",
			"--lab",
			c.Dir(),
			"-o",
			"json",
		)
		out, err := cmd.Output()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out, &nodes); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return cmd.ProcessState.ExitCode()
	}
	if code := ask(); code != 0 || len(nodes) != 2 || nodes[0].Node != "node1" || nodes[1].Report == nil ||
		nodes[1].Report.Node != "node2" {
		t.Errorf("exit status %d: %+v", code, nodes)
	}
	check(t, c.Node("node2").StopAgent(t.Context()))
	if code := ask(); code != 1 || nodes[0].State == status.Broken || nodes[1].State != status.Broken ||
		!strings.Contains(nodes[1].Error, "no agent answers") {
		t.Errorf("without an agent on node2: exit status %d: %+v", code, nodes)
	}
	out, err := c.cli("node1", "status", "--cluster")
	if err == nil {
		t.Error("a node without an agent is no failure")
	}
	contains(t, "status --cluster without an agent on node2", out, "no agent answers", " 1 broken\n")
}
