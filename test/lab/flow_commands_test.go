package labtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/hubble/top"
)

// TestFlowCommands: top, flows record, drops --explain and policy diff --flows in use: traffic that is
// allowed and denied, and a recording that goes on while the agent restarts and ends with Ctrl-C.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐
//	│  a1     │  │  s2     │     default/closed: only port 8080 of s2 is open
//	└────┬────┘  └────┬────┘
//	═════╧════════════╧═════
func TestFlowCommands(t *testing.T) {
	t.Parallel()
	c := up(t, setup{pods: []string{"a"}, values: map[string]any{"kubeProxyReplacement": true}})
	c.apply("server", serverYAML("s2", 2))
	c.apply("closed", closedYAML(8080))
	file := filepath.Join(t.TempDir(), "flows.json")
	recording, stderr := c.record(t, "node2", file)
	for _, f := range c.stack.families {
		c.allowedAndDenied(t, f)
	}
	check(t, c.Node("node2").RestartAgent(t.Context()))
	for _, f := range c.stack.families {
		c.allowedAndDenied(t, f)
	}
	eventually(t, "the recording has the flows of both agents", patience(15*time.Second), func() error {
		text, err := os.ReadFile(file)
		before, after, gap := strings.Cut(string(text), "NODE_UNAVAILABLE")
		if n, m := strings.Count(before, "POLICY_DENIED"), strings.Count(after, "POLICY_DENIED"); err == nil &&
			(!gap || n == 0 || m == 0) {
			err = fmt.Errorf("%d drops, gap %v, %d drops", n, gap, m)
		}
		return err
	})
	check(t, recording.Process.Signal(unix.SIGINT))
	if err := recording.Wait(); err != nil || !strings.Contains(stderr.String(), " recorded to "+file+"; 1 gap, ") {
		t.Errorf("the recording ends with %v: %s", err, stderr)
	}
	for _, f := range c.stack.families {
		c.explained(t, f)
	}
	c.replayed(t, file)
	c.busiest(t)
}

// closedYAML opens one port of the pods web.
func closedYAML(port int) string {
	return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: closed, namespace: "+
		"default}\nspec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{ports: "+
		"[{port: %d}]}]}\n", port)
}

// record begins a recording that grows.
func (c *cluster) record(t *testing.T, node, file string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := c.Node(node).Command(ctx, "myelin", "flows", "record", file, "--append", "--socket", c.Node(node).Socket())
	out := &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	check(t, c.Node(node).Start(cmd))
	t.Cleanup(cancel)
	return cmd, out
}

// allowedAndDenied connects to both ports.
func (c *cluster) allowedAndDenied(t *testing.T, f int) {
	t.Helper()
	eventually(t, "port 81 is closed, and 8080 open", patience(20*time.Second), func() error {
		_, err := c.call("default/a1", url("http", c.end("default/s2").addr(f), 81))
		if err == nil || strings.Contains(err.Error(), "refused") { // by the pod: no policy yet
			return fmt.Errorf("port 81 is not dropped: %v", err)
		}
		_, err = c.call("default/a1", url("http", c.end("default/s2").addr(f), 8080))
		return err
	})
}

// explained: a drop has its reason, policy, labels, and what would allow it; then come counters of other reasons.
func (c *cluster) explained(t *testing.T, f int) {
	t.Helper()
	to := c.end("default/s2").addr(f).String()
	out := c.mustCLI("node2", "drops", "--explain", "--ip", to, "--to-port", "81")
	contains(t, "drops --explain", out, "-> default/s2 ", "policy no rule: A policy isolates the pod",
		"ingress denied: no rule allowed ingress: isolated by NetworkPolicy default/closed", "k8s:app=web",
		"would allow: ", "add port 81/TCP to NetworkPolicy default/closed spec.ingress[0]")
	if strings.Contains(out, ":8080") || strings.Contains(out, "Counted") {
		t.Errorf("drops --explain with filters shows more:\n%s", out)
	}
	if n := strings.Count(out, " -> default/s2 "); n != 1 {
		t.Errorf("drops --explain has %d entries of one connection:\n%s", n, out)
	}
	out = c.mustCLI("node2", "drops", "--explain", "--ip", to, "--to-port", "81", "--type", "policy-verdict")
	contains(t, "drops --explain of verdicts", out, "policy no rule: ", "isolated by NetworkPolicy default/closed")
}

// replayed: the exit status says whether verdicts change, and the text what decides.
func (c *cluster) replayed(t *testing.T, file string) {
	t.Helper()
	same, other := filepath.Join(t.TempDir(), "same.yaml"), filepath.Join(t.TempDir(), "other.yaml")
	check(t, os.WriteFile(same, []byte(closedYAML(8080)), 0o644))
	check(t, os.WriteFile(other, []byte(closedYAML(81)), 0o644))
	for _, run := range []struct {
		status   int
		args     []string
		contains []string
	}{
		{0, []string{same}, []string{"NetworkPolicy default/closed as it is", "flows: 0 of 4 change",
			"missing in the recording"}},
		{1, []string{other}, []string{"flows: 4 of 4 change", "Pod default/s2: ", "newly denied", "newly allowed",
			"default/a1 -> default/s2 8080/TCP IPv6: allowed -> denied",
			"default/a1 -> default/s2 81/TCP IPv4: denied -> allowed",
			"after: ingress, NetworkPolicy default/closed spec.ingress[0] (manifests:other.yaml:4)"}},
		{1, []string{"--delete", "NetworkPolicy/default/closed"}, []string{"flows: 2 of 4 change",
			"after: no policy isolates or denies"}},
		{2, []string{"--delete", "NetworkPolicy/default/none"}, []string{"there is no such policy"}},
		{2, []string{"/nonexistent"}, []string{"no such file"}},
	} {
		// node1 has neither the endpoint nor the recorded agent: any agent knows the policies and the labels.
		out, err := c.cli("node1", append([]string{"policy", "diff", "--flows", file}, run.args...)...)
		var exit *exec.ExitError
		status := 0
		if errors.As(err, &exit) {
			status = exit.ExitCode()
		}
		if status != run.status {
			t.Errorf("policy diff --flows %v: %v, want status %d: %s", run.args, err, run.status, out)
		}
		contains(t, fmt.Sprint("policy diff --flows ", run.args), out+fmt.Sprint(err), run.contains...)
	}
}

// busiest: a view of top has the connections and the drops that are going on.
func (c *cluster) busiest(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for f := 0; ctx.Err() == nil; f++ {
			to := c.end("default/s2").addr(c.stack.families[f%len(c.stack.families)])
			_, _ = c.call("default/a1", url("http", to, 8080)) // what fails is seen below
			_, _ = c.call("default/a1", url("http", to, 81))
		}
	}()
	defer func() {
		cancel()
		<-ended
	}()
	eventually(t, "top shows the traffic", patience(20*time.Second), func() error {
		var v top.View
		c.jsonCLI(&v, "node2", "top", "--once", "--interval", "3s", "--sort", "drops", "--to-pod", "default/s2")
		open, closed := false, false
		for _, f := range v.Flows {
			open = open || f.Pair == top.Pair{Source: "default/a1", Destination: "default/s2", Port: 8080,
				Protocol: "TCP"} && f.NewFlows > 0 && f.Packets > f.NewFlows
		}
		for _, d := range v.Drops {
			closed = closed || d.Port == 81 && d.Packets > 0 && strings.Contains(d.Rule, "NetworkPolicy default/closed")
		}
		if !open || !closed || v.Flows[0].Port != 81 {
			return fmt.Errorf("%+v", v)
		}
		return nil
	})
	contains(t, "top", c.mustCLI("node2", "top", "--once", "--interval", "3s"), "Flow ", "New flows/s",
		"default/a1 -> default/s2:8080", "Dropped ", "isolated by NetworkPolicy default/closed")
}
