package labtest

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"

	"myelin/api"
)

// TestHubble: each node reports the flows of its pods, which have no conntrack entries before a policy applies, and a
// relay those of all nodes.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐
//	│  a1 s1  │  │  a2 s2  │     default/web: s2; then only port 8080 of s2 is open
//	└────┬────┘  └────┬────┘
//	═════╧════════════╧═════
func TestHubble(t *testing.T) {
	t.Parallel()
	c := up(t, setup{pods: []string{"a"}, values: map[string]any{"kubeProxyReplacement": true,
		"hubble.listenAddress": ":4244", "hubble.tls.enabled": false}})
	c.apply("servers", serverYAML("s1", 1)+serverYAML("s2", 2))
	c.apply("web", serviceYAML("web", 10, "")+c.slicesYAML("web", "s2"))
	c.relay(t)
	for _, f := range c.stack.families {
		c.hubbleSeesForwarded(t, f)
	}
	c.apply("closed", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: closed, namespace: "+
		"default}\nspec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress], ingress: [{ports: "+
		"[{port: 8080}]}]}\n")
	for _, f := range c.stack.families {
		c.hubbleSeesVerdicts(t, f)
	}
	c.hubbleSeesAgent(t)
}

// hubbleSeesAgent: the agent reports what becomes of itself, of endpoints, addresses and policies.
func (c *cluster) hubbleSeesAgent(t *testing.T) {
	t.Helper()
	conn, err := api.Dial(c.hubbleSocket("node2"))
	check(t, err)
	defer conn.Close()
	eventually(t, "the agent's events have all types", patience(10*time.Second), func() error {
		stream, err := observerpb.NewObserverClient(conn).GetAgentEvents(t.Context(),
			&observerpb.GetAgentEventsRequest{Number: 1000})
		var seen []string
		for err == nil {
			var e *observerpb.GetAgentEventsResponse
			if e, err = stream.Recv(); err == nil {
				seen = append(seen, e.GetAgentEvent().GetType().String())
			}
		}
		for _, want := range []string{"AGENT_STARTED", "ENDPOINT_CREATED", "ENDPOINT_REGENERATE_SUCCESS",
			"IPCACHE_UPSERTED", "POLICY_UPDATED"} {
			if !slices.Contains(seen, want) {
				return fmt.Errorf("no %s among %v: %w", want, seen, err)
			}
		}
		return nil
	})
}

// relay runs a relay on node1 until the test ends, by default at 127.0.0.1:4245.
func (c *cluster) relay(t *testing.T, flags ...string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	relayed := make(chan error, 1)
	go func() {
		_, err := c.Node("node1").Exec(ctx, append([]string{"myelin", "relay", "--peer-service",
			"unix://" + c.hubbleSocket("node1"), "--listen", "127.0.0.1:4245"}, flags...)...)
		relayed <- err
	}()
	t.Cleanup(func() {
		stop()
		<-relayed
	})
}

func (c *cluster) hubbleSocket(node string) string {
	return filepath.Join(c.Node(node).RunDir(), "hubble.sock")
}

// hubbleSeesForwarded: a connection to a Service, and a ping, at the socket and at both nodes.
func (c *cluster) hubbleSeesForwarded(t *testing.T, f int) {
	t.Helper()
	eventually(t, "the Service answers", patience(10*time.Second), func() error {
		_, err := c.call("default/a1", url("http", serviceAddr(10, f), 80))
		return err
	})
	eventually(t, "s2 answers pings", patience(10*time.Second), func() error {
		place, err := c.Find("default/a1")
		if err == nil {
			_, err = place.Exec(t.Context(), "ping", "-c1", "-W1", c.end("default/s2").addr(f).String())
		}
		return err
	})
	for _, want := range []struct {
		server, filter string
		contains       []string
	}{
		{"node1", "--type trace-sock --from-pod default/a1", []string{`"TRANSLATED"`, `"pod_name":"s2"`}},
		{"node1", "--type trace --to-pod default/s2 --tcp-flags SYN", []string{`"TO_NETWORK"`, `"is_reply":false`,
			`"verdict":"FORWARDED"`, `"destination_port":8080`}},
		{"node1", "--type trace --from-pod default/s2 --tcp-flags SYN,ACK", []string{`"TO_ENDPOINT"`,
			`"is_reply":true`}},
		{"node2", "--type trace --to-pod default/s2 --tcp-flags SYN", []string{`"TO_ENDPOINT"`, `"is_reply":false`}},
		{"node2", fmt.Sprintf("--protocol icmpv%d --to-pod default/s2", f), []string{`"type":`, `"TO_ENDPOINT"`}},
		{"relay", "--to-pod default/s2 --tcp-flags FIN", []string{`"node_name":"default/node1"`,
			`"node_name":"default/node2"`}},
	} {
		c.hubbleSees(t, want.server, fmt.Sprintf("%s --ip-version v%d", want.filter, f), want.contains...)
	}
}

// hubbleSeesVerdicts: what is allowed names its policy, and what is denied the one that isolates.
func (c *cluster) hubbleSeesVerdicts(t *testing.T, f int) {
	t.Helper()
	eventually(t, "port 81 is closed", patience(20*time.Second), func() error {
		_, err := c.call("default/a1", url("http", c.end("default/s2").addr(f), 81))
		if err == nil || strings.Contains(err.Error(), "refused") { // by the pod: no policy yet
			return fmt.Errorf("port 81 is not dropped: %v", err)
		}
		_, err = c.call("default/a1", url("http", c.end("default/s2").addr(f), 8080))
		return err
	})
	version := fmt.Sprintf(" --ip-version v%d", f)
	c.hubbleSees(t, "relay", "--verdict DROPPED --to-port 81"+version, `"POLICY_DENIED"`, `"node_name":"default/node2"`,
		`isolated by NetworkPolicy default/closed`)
	c.hubbleSees(t, "node2", "--type policy-verdict --to-port 8080"+version, `"ingress_allowed_by"`,
		`"name":"closed"`)
}

// hubbleSees wants texts among the flows that pass the filter of `myelin observe`, from a node or the relay.
func (c *cluster) hubbleSees(t *testing.T, server, filter string, texts ...string) {
	t.Helper()
	node, from := "node1", "127.0.0.1:4245"
	if server != "relay" {
		node, from = server, "unix://"+c.hubbleSocket(server)
	}
	args := append([]string{"myelin", "observe", "--server", from, "-o", "jsonpb", "--last", "500"},
		strings.Fields(filter)...)
	eventually(t, server+" shows flows: "+filter, patience(10*time.Second), func() error {
		out, err := c.Node(node).Exec(t.Context(), args...)
		if err != nil {
			return err
		}
		compact := ""
		for line := range strings.Lines(out) {
			var flow any
			if err := json.Unmarshal([]byte(line), &flow); err != nil {
				return fmt.Errorf("%w: %s", err, line)
			}
			b, err := json.Marshal(flow) // without the spaces that protojson varies
			if err != nil {
				return err
			}
			compact += string(b) + "\n"
		}
		for _, text := range texts {
			if !strings.Contains(compact, text) {
				return fmt.Errorf("no %s in\n%s", text, compact)
			}
		}
		return nil
	})
}
