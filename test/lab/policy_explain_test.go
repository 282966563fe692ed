package labtest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// labelled is a pod with a label app, and no process.
func labelled(app string, node int) string {
	return strings.Replace(podYAML(app, node), "metadata: {name: "+app+"}",
		"metadata: {name: "+app+", labels: {app: "+app+"}}", 1) + "---\n"
}

// webPolicy lets one app reach web at a port.
func webPolicy(app string, port int) string {
	return fmt.Sprintf(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
    - from: [{podSelector: {matchLabels: {app: %s}}}]
      ports: [{port: %d}]
`, app, port)
}

// dialFrom connects from a pod.
func dialFrom(from end, to netip.AddrPort) (conn net.Conn, err error) {
	err = from.Do(func() error {
		conn, err = net.DialTimeout("tcp", to.String(), patience(time.Second))
		return err
	})
	return conn, err
}

// TestPolicyExplained lets policies decide about real connections, and compares
// what the command line says of them.
//
//	┌─ node1 ─┐  ┌─ node2 ──────┐
//	│ client  │  │ web          │
//	└────┬────┘  └──────┬───────┘
//	═════╧══════════════╧════════
func TestPolicyExplained(t *testing.T) {
	t.Parallel()
	c := up(t, setup{mode: modeNamed("native"), pods: []string{"a"}})
	c.apply("pods", labelled("client", 1)+labelled("web", 2))
	c.apply("policy", webPolicy("client", 8080))
	client, web := c.end("client"), c.end("web")
	var listener net.Listener
	check(t, web.Do(func() (err error) {
		listener, err = net.Listen("tcp", ":8080")
		return err
	}))
	t.Cleanup(func() { listener.Close() })
	eventually(t, "the policy is in force", 10*time.Second, func() error {
		if out := c.mustCLI("node2", "policy", "get", "default/web"); !strings.Contains(out, "8080/TCP") {
			return errors.New(out)
		}
		return nil
	})
	drops := c.monitor("node2", "--drops")
	for _, f := range c.stack.families {
		to := netip.AddrPortFrom(web.addr(f), 8080)
		eventually(t, "the client connects", 10*time.Second, func() error {
			conn, err := dialFrom(client, to)
			if err == nil {
				t.Cleanup(func() { conn.Close() })
			}
			return err
		})
		if _, err := dialFrom(client, netip.AddrPortFrom(web.addr(f), 81)); err == nil {
			t.Errorf("IPv%d: the client reached another port", f)
		}
		dropped := drops.wait("the drop", func(e monitored) bool {
			return e.Destination.Address == web.addr(f).String() && e.Destination.Port == 81
		})
		if dropped.Denied != "ingress" ||
			dropped.Policy != "no rule allowed ingress: isolated by NetworkPolicy default/web" {
			t.Errorf("the drop: %+v", dropped)
		}
	}
	c.checkTraces(t)
	c.checkRules(t)
	c.checkDiff(t)
}

func (c *cluster) checkTraces(t *testing.T) {
	args := []string{"policy", "trace", "--from", "default/client", "--to", "default/web", "--port"}
	for _, node := range []string{"node1", "node2"} {
		contains(t, "trace", c.mustCLI(node, append(args, "8080/TCP")...), "ALLOWED",
			"allowed by NetworkPolicy default/web spec.ingress[0] (manifests:", ":7)")
		out, err := c.cli(node, append(args, "81/TCP")...)
		if err == nil {
			t.Errorf("%s: the exit status of what is denied is 0", node)
		}
		contains(t, "trace", out, "DENIED", "isolated by NetworkPolicy default/web",
			"add port 81/TCP to NetworkPolicy default/web spec.ingress[0]")
	}
	var flows []struct {
		ID    string
		Rules struct{ Ingress string }
	}
	c.jsonCLI(&flows, "node2", "flow", "list", "-f", "Destination~:8080")
	if len(flows) != len(c.stack.families) || !strings.HasPrefix(flows[0].Rules.Ingress,
		"NetworkPolicy default/web spec.ingress[0] (") {
		t.Fatalf("flows: %+v", flows)
	}
	for _, f := range flows {
		contains(t, "trace of a flow", c.mustCLI("node2", "policy", "trace", "--flow", f.ID), "ALLOWED",
			"note: flow "+f.ID+" has a row on this node, which lets it pass")
	}
	contains(t, "a list on another node", c.failing("node1", "policy", "get", "default/web"),
		"pod default/web is on node node2: ask there")
}

// failing is what a command says that fails.
func (c *cluster) failing(node string, args ...string) string {
	c.t.Helper()
	out, err := c.cli(node, args...)
	if err == nil {
		c.t.Fatalf("myelin %s succeeds: %s", strings.Join(args, " "), out)
	}
	return out + err.Error()
}

func (c *cluster) checkRules(t *testing.T) {
	var rows []struct {
		Direction, Action, Port, Place string
		Hits                           int
	}
	c.jsonCLI(&rows, "node2", "policy", "get", "default/web")
	hits := map[string]int{}
	for _, r := range rows {
		hits[r.Direction+" "+r.Action+" "+r.Port] += r.Hits
	}
	if hits["ingress allow 8080/TCP"] < len(c.stack.families) || hits["ingress no rule all"] < len(c.stack.families) {
		t.Errorf("hits %v in %+v", hits, rows)
	}
	var rules []struct {
		State string
		Hits  int
	}
	c.jsonCLI(&rules, "node2", "policy", "rules")
	if len(rules) != 1 || rules[0].State != "hit" || rules[0].Hits != hits["ingress allow 8080/TCP"] {
		t.Errorf("rules %+v, rows have %v", rules, hits)
	}
	contains(t, "drops", c.mustCLI("node2", "drops"), "policy no rule: ",
		"× ingress of default/web: no rule allowed it: isolated by NetworkPolicy default/web")
	contains(t, "status", c.mustCLI("node2", "status"), "Policies:", "1 of 2 endpoints with policies, 1 object, 1 rule")
}

func (c *cluster) checkDiff(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new.yaml")
	check(t, os.WriteFile(file, []byte(webPolicy("other", 8080)), 0o644))
	out := c.failing("node2", "policy", "diff", file)
	contains(t, "diff", out, "NetworkPolicy default/web changed", "default/web ingress from k8s:app=client",
		"8080/TCP: newly denied", fmt.Sprintf("flows: %d of", len(c.stack.families)))
	contains(t, "diff", c.mustCLI("node2", "policy", "diff", "--delete", "NetworkPolicy default/web"), "removed",
		"newly allowed", "flows: 0 of")
	contains(t, "diff", c.failing("node2", "policy", "diff", "--delete", "NetworkPolicy default/none"),
		"there is no such policy")
}
