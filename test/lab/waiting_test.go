package labtest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"myelin/status"
)

// nodeFile is the file of the manifests that a node's object is in.
func (c *cluster) nodeFile(node string) (path, yaml string) {
	c.t.Helper()
	files, err := filepath.Glob(filepath.Join(c.Manifests(), "node_*.yaml"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			c.t.Fatal(err)
		}
		if strings.Contains(string(data), "name: "+node+"\n") || strings.Contains(string(data), "{name: "+node+"}") {
			return path, string(data)
		}
	}
	c.t.Fatalf("no manifest of %s among %v", node, files)
	return "", ""
}

// withPodCIDRs is the object of a node with other podCIDRs, or with none.
func withPodCIDRs(yaml string, podCIDRs ...string) string {
	quoted := make([]string, len(podCIDRs))
	for i, p := range podCIDRs {
		quoted[i] = fmt.Sprintf("%q", p)
	}
	return regexp.MustCompile(`(?m)^spec: .*$`).ReplaceAllLiteralString(yaml,
		"spec: {podCIDRs: ["+strings.Join(quoted, ", ")+"]}")
}

// rewrite replaces the object of a node.
func (c *cluster) rewrite(path, yaml string) {
	c.t.Helper()
	if err := replaceFile(path, yaml); err != nil {
		c.t.Fatal(err)
	}
}

// wantCNI fails the test unless err is a CNI error of this code with this in it.
func wantCNI(t *testing.T, what string, err error, code uint, details string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code != code || !strings.Contains(e.Details, details) {
		t.Errorf("%s: %v, want CNI error %d with %q", what, err, code, details)
	}
}

// TestWaiting starts the agent of a node whose object is missing, refused, or without podCIDRs. It says so to whoever
// asks; pods that run go on, and no DEL is lost. When the object comes, the agent is ready.
//
//	┌─ node1, no object ──┐  ┌─ node2 ─┐
//	│ a1  b1  gone  agent │  │ a2      │
//	└────┬────────────────┘  └────┬────┘
//	═════╧═ world ════════════════╧═════
func TestWaiting(t *testing.T) {
	t.Parallel()
	c := up(t, setup{})
	node, r := c.Node("node1"), c.runtime("node1")
	gone, err := r.create(1)
	check(t, err)
	check(t, r.add(t.Context(), gone))
	path, yaml := c.nodeFile("node1")

	check(t, node.StopAgent(t.Context()))
	check(t, os.Remove(path))
	const noNode = "it waits: no Node object named node1 in "
	err = node.StartAgent(t.Context(), nil) // its socket opens, though it is not ready
	if err == nil || !strings.Contains(err.Error(), noNode) {
		t.Errorf("start without a Node: %v, want %q", err, noNode)
	}
	c.waits("no Node object named node1 in " + c.Manifests() + "; seen: node2")
	var s status.Report
	if code := c.answers(&s, "status"); code != 1 || s.Waiting == nil || s.ReadyMs != 0 ||
		time.Since(s.Waiting.Since) > time.Hour ||
		!strings.Contains(s.Waiting.Help, "add a Node node1") {
		t.Errorf("exit status %d, waiting %+v", code, s.Waiting)
	}
	c.refuses(r, "no Node object named node1")
	check(t, r.del(t.Context(), gone))
	for _, f := range c.stack.families {
		c.try(way{"a1", "b1", "a1"}, f)
		c.try(way{"a1", "world", "node1"}, f)
	}

	c.rewrite(path, strings.Replace(yaml, "10.0.1.0/24", "10.0.1.0/99", 1))
	c.waits("the Node object was refused: " + filepath.Base(path) + ": Node node1: spec.podCIDRs[0]: ")
	c.rewrite(path, withPodCIDRs(yaml))
	c.waits("Node node1 (manifests:" + filepath.Base(path) + ") has no podCIDRs")

	c.rewrite(path, yaml)
	eventually(t, "the agent is ready", 10*time.Second, func() error {
		if out, err := c.cli("node1", "status"); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if out := c.mustCLI("node1", "endpoint", "list"); strings.Contains(out, gone.name) ||
		!strings.Contains(out, "default/a1") {
		t.Errorf("the DEL was lost, or the pod that stays:\n%s", out)
	}
	check(t, gone.remove())
	c.newPodWorks("c1", way{"c1", "a1", "c1"}, way{"a2", "c1", "a2"})
}

// waits until the agent of node1 says in its status that it waits for this, and exits with 1.
func (c *cluster) waits(reason string) {
	c.t.Helper()
	eventually(c.t, "status says: "+reason, 10*time.Second, func() error {
		var r status.Report
		if code := c.answers(&r, "status"); code != 1 || r.Waiting == nil ||
			!strings.HasPrefix(r.Waiting.Reason, reason) {
			return fmt.Errorf("exit status %d, waiting %+v", code, r.Waiting)
		}
		return nil
	})
}

// refuses: whoever asks an agent that waits is told why.
func (c *cluster) refuses(r *runtimeOf, reason string) {
	c.t.Helper()
	t := c.t
	early, err := r.create(2)
	check(t, err)
	defer func() { check(t, early.remove()) }()
	begin := time.Now()
	wantCNI(t, "ADD", errors.Unwrap(r.add(t.Context(), early)), types.ErrTryAgainLater, reason)
	wantCNI(t, "STATUS", r.cni.GetStatusNetworkList(t.Context(), r.list), types.ErrPluginNotAvailable, reason)
	for _, args := range [][]string{{"endpoint", "list"}, {"drops"}, {"map", "list"}, {"map", "dump", "wires"},
		{"route", "wires"}, {"monitor"}} {
		out, err := c.cli("node1", args...)
		if err == nil || !strings.Contains(out, "the agent is starting: "+reason) {
			t.Errorf("myelin %v: %v: %s", args, err, out)
		}
	}
	if took := time.Since(begin); took > patience(8*time.Second) {
		t.Errorf("it took %v to be refused", took)
	}
	contains(t, "node list", c.mustCLI("node1", "node", "list"), "node2")
	contains(t, "table list", c.mustCLI("node1", "table", "list"), "podcidrs")
	if code, body := c.health(t, "node1", "/healthz"); code != 503 || !strings.Contains(body, reason) {
		t.Errorf("/healthz: %d %s", code, body)
	}
}
