package labtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// networkPolicyYAML is a NetworkPolicy for all pods of the namespace, without rules.
func networkPolicyYAML(name, types, extra string) string {
	return fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s, namespace: "+
		"default}\n"+
		"spec: {podSelector: {}, policyTypes: [%s]%s}\n---\n", name, types, extra)
}

// badEgress has no meaning: there is no such prefix.
const badEgress = ", egress: [{to: [{ipBlock: {cidr: 10.0.0.0/99}}]}]"

// labCommand runs `myelin lab ARGS` for the cluster's lab, and returns what it printed and its exit status.
func (c *cluster) labCommand(stdin string, args ...string) (string, int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience(30*time.Second))
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(binDir(), "myelin"), append([]string{"lab", "-n", c.Name()},
		args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		c.t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// TestTools looks at a lab with the command line, as a new user does.
//
//	node1: a1 b1 ═══ node2: a2 b2
func TestTools(t *testing.T) {
	t.Parallel()
	c := up(t, setup{values: map[string]any{"socketLB.enabled": true}})
	t.Run("apply", func(t *testing.T) { c.testApply(t) })
	t.Run("endpoints", func(t *testing.T) { c.testEndpoints(t) })
	t.Run("services", func(t *testing.T) { c.testServices(t) })
	t.Run("a ClusterIP that is taken", func(t *testing.T) { c.testTaken(t) })
	t.Run("monitor", func(t *testing.T) { c.testMonitorNote(t) })
	t.Run("restart with a rejected object", func(t *testing.T) { c.testRestartRejected(t) })
}

// testApply: apply tells the agents' verdict of each object, when they have it.
func (c *cluster) testApply(t *testing.T) {
	good, bad := networkPolicyYAML("good", "Ingress", ""), networkPolicyYAML("bad", "Egress", badEgress)
	const reason = "networkpolicy/default/bad rejected: spec.egress[0].to[0].ipBlock.cidr: "
	for _, step := range []struct {
		stdin  string
		status int
		want   []string
	}{
		{good, 0, []string{"networkpolicy/default/good created\n"}},
		{good + bad, 1, []string{"networkpolicy/default/good unchanged\n", reason,
			"myelin: 1 of 2 objects are rejected\n"}},
		{bad, 1, []string{reason}},
		{networkPolicyYAML("bad", "Egress", ", egress: [{}]"), 0, []string{"networkpolicy/default/bad configured\n"}},
		{bad, 1, []string{reason}}, // stays so for what comes later
	} {
		out, status := c.labCommand(step.stdin, "apply", "-f", "-")
		if status != step.status {
			t.Errorf("exit status %d, want %d: %s", status, step.status, out)
		}
		contains(t, "apply", out, step.want...)
		for _, node := range []string{"node1", "node2"} { // they have read it when apply returns
			refused := strings.Contains(c.mustCLI(node, "policy", "list", "-f", "Policy=default/bad"), "refused")
			if want := strings.Contains(step.stdin, "/99"); refused != want {
				t.Errorf("%s has refused it: %t, want %t", node, refused, want)
			}
		}
	}
}

// testEndpoints: pods have identity, labels, and whether policies are enforced.
func (c *cluster) testEndpoints(t *testing.T) {
	eventually(t, "the policy is enforced", 10*time.Second, func() error {
		var list []struct {
			Pod, PolicyIngress, PolicyEgress string
			Identity                         uint32
			Labels                           []string
			ID                               int
		}
		c.jsonCLI(&list, "node1", "endpoint", "list")
		for _, e := range list {
			if e.PolicyIngress != "Enabled" || e.Identity < 1<<16 || e.ID == 0 ||
				!strings.Contains(strings.Join(e.Labels, " "), "k8s:io.kubernetes.pod.namespace=default") {
				return fmt.Errorf("endpoint %+v", e)
			}
		}
		return nil
	})
	out := c.mustCLI("node1", "endpoint", "list")
	contains(t, "endpoint list", out,
		"Policy (ingress)", "Policy (egress)", "Identity", "Labels", "k8s:io.kubernetes.pod.namespace=default\n")
	out = c.mustCLI("node1", "endpoint", "list", "-f", "Policy (ingress)=Enabled")
	contains(t, "endpoint list, filtered", out, "default/a1")
}

// testServices: names are in lists, all of a Service is shown with it, and no row is pending that no reconciler works
// on.
func (c *cluster) testServices(t *testing.T) {
	out, status := c.labCommand(serviceYAML("web", 10, "")+c.slicesYAML("web", "a1", "a2"), "apply", "-f", "-")
	if status != 0 {
		t.Fatalf("apply: exit status %d: %s", status, out)
	}
	eventually(t, "the Service is in the kernel", 10*time.Second, func() error {
		out := words(c.mustCLI("node1", "service", "get", "default/web"))
		for _, want := range []string{
			"Frontends 10.96.0.10:53/UDP (ClusterIP, port dns): 2 backends ",
			" 10.96.0.10:80/TCP (ClusterIP, port http): 2 backends ",
			c.end("a1").addr(4).String() + ":8080/TCP (active, node1)",
			c.end("a2").addr(6).String() + "]:7001/UDP (active, node2)",
		} {
			if !strings.Contains(out, want) {
				return fmt.Errorf("no %q in %s", want, out)
			}
		}
		return nil
	})
	contains(t, "service list", words(c.mustCLI("node1", "service", "list")),
		"ID Frontend Service Type Service Port Backend", "10.96.0.10:80/TCP ClusterIP default/web http 1 => ")
	out = c.mustCLI("node1", "table", "show", "services", "-o", "json")
	if strings.Contains(strings.ToLower(out), "pending") {
		t.Errorf("services:\n%s", out)
	}
}

// testTaken: a Service that comes later doesn't get the address of another one, nor when the agent starts again.
func (c *cluster) testTaken(t *testing.T) {
	service := func(name string) string {
		return "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + "}\n" +
			"spec: {clusterIP: 10.96.0.99, ports: [{port: 80}]}\n"
	}
	holds := func() {
		t.Helper()
		eventually(t, "later holds the address, and earlier doesn't", 10*time.Second, func() error {
			out := words(c.mustCLI("node1", "service", "list"))
			if !strings.Contains(out, "10.96.0.99:80/TCP ClusterIP default/later ") ||
				strings.Contains(out, "default/earlier") {
				return fmt.Errorf("Services: %s", out)
			}
			const taken = "ClusterIP 10.96.0.99:80/TCP is default/later's already"
			for _, args := range [][]string{{"service", "get", "default/earlier"}, {"status"}} {
				out, _ := c.cli("node1", args...) // status exits with 1: a policy is refused
				if !strings.Contains(words(out), taken) {
					return fmt.Errorf("%v: %s", args, out)
				}
			}
			return nil
		})
	}
	for _, name := range []string{"later", "earlier"} { // by name, the other one would be first
		// apply refuses the second one; an agent may find both in its directory all the same.
		check(t, replaceFile(filepath.Join(c.Manifests(), "service_default_"+name+".yaml"), service(name)))
		if name == "later" {
			eventually(t, "the first Service has the address", 10*time.Second, func() error {
				if out := c.mustCLI("node1", "service", "list"); !strings.Contains(out, "default/later") {
					return fmt.Errorf("Services: %s", out)
				}
				return nil
			})
		}
	}
	holds()
	out, status := c.labCommand(service("third"), "apply", "-f", "-")
	if status != 1 || !strings.Contains(out,
		"Service default/third: spec.clusterIP: 10.96.0.99 is allocated to Service default/") {
		t.Errorf("apply: exit status %d: %s", status, out)
	}
	if out, status := c.labCommand("", "agent", "restart", "node1"); status != 0 {
		t.Fatalf("restart: exit status %d: %s", status, out)
	}
	holds()
}

// testMonitorNote: with flows it says which ones are not shown, with drops alone it does not.
func (c *cluster) testMonitorNote(t *testing.T) {
	const note = "note: flows of pods without policies are not shown"
	for args, want := range map[string]bool{"monitor": true, "monitor -t flow-end": true, "monitor --drops": false} {
		ctx, cancel := context.WithCancel(t.Context())
		cmd := c.Node("node1").Command(ctx, append([]string{"myelin"}, strings.Fields(args)...)...)
		errs, err := cmd.StderrPipe()
		check(t, err)
		check(t, c.Node("node1").Start(cmd))
		stop := time.AfterFunc(patience(time.Second), cancel) // it says so at once, and then goes on
		said, err := io.ReadAll(errs)
		check(t, err)
		stop.Stop()
		_ = cmd.Wait() // it was killed
		cancel()
		if !strings.Contains(string(said), "listening\n") || strings.Contains(string(said), note) != want {
			t.Errorf("%s: it said %q; the note: %t", args, said, want)
		}
	}
}

// testRestartRejected: an agent that finds an object that it rejects starts as any other.
func (c *cluster) testRestartRejected(t *testing.T) {
	var many strings.Builder
	for i := range 200 {
		many.WriteString(networkPolicyYAML(fmt.Sprintf("bad%d", i), "Egress", badEgress))
	}
	check(t, os.WriteFile(filepath.Join(c.Manifests(), "many.yaml"), []byte(many.String()), 0o644))
	node := c.Node("node1")
	before, err := os.Stat(node.AgentLog())
	check(t, err)
	for range fewer(5) {
		if out, status := c.labCommand("", "agent", "restart", "node1"); status != 0 {
			t.Fatalf("restart: exit status %d: %s", status, out)
		}
		var report struct{ ReadyMs float64 }
		out, _ := c.cli("node1", "status", "-o", "json") // whose exit status is 1: a policy is refused
		if err := json.Unmarshal([]byte(out), &report); err != nil || report.ReadyMs == 0 {
			t.Errorf("restart returned before the agent was ready: %s", out)
		}
	}
	log, err := os.ReadFile(node.AgentLog())
	check(t, err)
	if text := string(log[before.Size():]); strings.Contains(text, "waiting for this node's object") {
		t.Errorf("the agent waited for its own node:\n%s", text)
	}
}

// TestUpTroubles: up says what doesn't work in the lab that it made, and fails.
func TestUpTroubles(t *testing.T) {
	t.Parallel()
	c := up(t, setup{nodes: 1, values: map[string]any{"devices": []string{"eth0", "eth9"}}})
	troubles, err := c.Troubles(t.Context())
	const want = "node1: Devices is broken: eth9 is in devices, and the node has no such device"
	if err != nil || len(troubles) != 1 || troubles[0] != want {
		t.Errorf("%q, %v", troubles, err)
	}
}
