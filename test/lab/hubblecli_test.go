package labtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// envHubble is the real Hubble CLI; scripts/hubble.sh has it if it is not set.
const envHubble = "MYELIN_HUBBLE"

// TestHubbleCLI has the real Hubble CLI show traffic of each kind, from agents and a relay, and checks what it prints.
//
//	┌─ node1 ───────────────┐  ┌─ node2 ─┐  ┌─ node3: policyAuditMode ─┐
//	│ a1 jailed shop/cart   │  │ a2 s2   │  │ a3 s3                    │
//	└──────────┬────────────┘  └────┬────┘  └────────────┬─────────────┘
//	═══════════╧════════════════════╧════════════════════╧═══ world
func TestHubbleCLI(t *testing.T) {
	t.Parallel()
	cli := hubbleCLI(t)
	h := upHubbleCLI(t, cli)
	h.traffic(t)
	h.learn(t)
	invocations := 0
	for _, r := range append(h.rows(), h.timeRows(t)...) {
		h.run(t, r)
		invocations++
	}
	invocations += h.follows(t) + h.offline(t)
	if flags := h.unused(t); len(flags) > 0 {
		t.Errorf("no invocation has %v", flags)
	}
	if invocations < 60 {
		t.Errorf("%d invocations of the CLI, want 60 or more", invocations)
	}
	t.Logf("hubble_cli_checks %d", invocations)
	record(t, result{"flow/hubble_cli_checks", float64(invocations), "invocations"})
}

// hubbleCLI is the path of the CLI, which is built if it is not there.
func hubbleCLI(t *testing.T) string {
	t.Helper()
	if path := os.Getenv(envHubble); path != "" {
		return path
	}
	script := filepath.Join(root, "scripts/hubble.sh")
	if _, err := os.Stat(script); err != nil {
		t.Skip("the tree is not here")
	}
	cmd := exec.CommandContext(t.Context(), script)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("build the Hubble CLI: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// hubbleLab is a lab with traffic, and what the rows of the table say of it.
type hubbleLab struct {
	*cluster
	cli  string
	vars map[string]string // what $NAME stands for in arguments and wants
	used map[string]bool   // flags that invocations had
}

// hubbleInterval is how often the datapath reports a flow that goes on.
const hubbleInterval = 2 * time.Second

// hubblePods are pods beside those of the setup; shop's belongs to a Deployment.
const hubblePods = `apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: jailed, labels: {app: jailed}}
spec:
  nodeName: node1
  containers: [{name: none, image: none}]
---
apiVersion: v1
kind: Pod
metadata: {name: cart-5d4f8c7b9-x2x4z, namespace: shop, labels: {app: cart, pod-template-hash: 5d4f8c7b9}}
spec:
  nodeName: node1
  containers: [{name: none, image: none}]
---
`

// hubblePolicies let ports 8080 and 7001 of the servers be reached, but not from shop, and of jailed only port 8080 of
// others.
const hubblePolicies = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Ingress]
  ingress: [{ports: [{port: 8080}, {port: 7001, protocol: UDP}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: jail}
spec:
  podSelector: {matchLabels: {app: jailed}}
  policyTypes: [Egress]
  egress: [{ports: [{port: 8080}]}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: no-shop}
spec:
  endpointSelector: {matchLabels: {app: web}}
  ingressDeny: [{fromEndpoints: [{matchLabels: {"k8s:io.kubernetes.pod.namespace": shop}}]}]
---
`

func upHubbleCLI(t *testing.T, cli string) *hubbleLab {
	t.Helper()
	s := setup{nodes: 3, pods: []string{"a"}, outside: worldAddrs(2), values: map[string]any{
		"kubeProxyReplacement": true, "hubble.listenAddress": ":4244", "hubble.tls.enabled": false,
		"bpf.monitorInterval": hubbleInterval.String(), "hubble.eventBufferCapacity": 4095,
	}}
	s.fill()
	s.yaml = strings.Replace(s.manifests(), "{name: node1}", "{name: node1, labels: {zone: east}}", 1)
	h := &hubbleLab{cluster: up(t, s), cli: cli, vars: map[string]string{}, used: map[string]bool{"--server": true}}
	node3 := h.Node("node3")
	check(t, node3.KillAgent(t.Context()))
	check(t, node3.StartAgent(t.Context(), map[string]any{"policyAuditMode": true}))
	h.apply("servers", serverYAML("s2", 2)+serverYAML("s3", 3)+hubblePods+hubbleL7)
	nodePort := strings.Replace(serviceYAML("web", 10, "  type: NodePort\n"), "port: 80,", "port: 80, nodePort: 30010,",
		1)
	h.apply("web", nodePort+h.slicesYAML("web", "s2"))
	h.apply("policies", hubblePolicies)
	h.relay(t)
	h.secureRelays(t)
	return h
}

// traffic makes flows of each kind.
func (h *hubbleLab) traffic(t *testing.T) {
	t.Helper()
	s2 := h.end("default/s2")
	for _, from := range []string{"default/jailed", "shop/cart-5d4f8c7b9-x2x4z"} {
		eventually(t, "policies apply to "+from, 20*time.Second, func() error {
			return h.isDenied(from, at(s2.addr(4), map[bool]uint16{true: 81, false: 8080}[from == "default/jailed"]))
		})
	}
	// Flows of UDP begin with their first packet only where none can have been reported before it.
	time.Sleep(hubbleInterval)
	h.vars["BEGIN"] = time.Now().UTC().Format(time.RFC3339Nano)
	for _, f := range h.stack.families {
		h.served(t, f)
		h.denied(t, f)
		h.answered(t, f)
	}
	h.proxied(t)
	h.vars["END"] = time.Now().UTC().Format(time.RFC3339Nano)
}

// isDenied wants a connection to time out.
func (c *cluster) isDenied(from string, to netip.AddrPort) error {
	conn, err := net.Conn(nil), error(nil)
	if err := c.end(from).Do(func() error {
		conn, err = net.DialTimeout("tcp", to.String(), patience(300*time.Millisecond))
		return nil
	}); err != nil {
		return err
	}
	if err == nil {
		conn.Close()
		return fmt.Errorf("%s reached %s", from, to)
	}
	if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
		return fmt.Errorf("%s to %s: %w, want a timeout", from, to, err)
	}
	return nil
}

// served: what is allowed, by address, by a Service at the socket, and by a node port from outside; and audited.
func (h *hubbleLab) served(t *testing.T, f int) {
	t.Helper()
	s2, s3 := h.end("default/s2").addr(f), h.end("default/s3").addr(f)
	for _, call := range []struct{ from, url string }{
		{"default/a1", url("http", s2, 8080)},
		{"default/a1", url("http", serviceAddr(10, f), 80)},
		{"default/a1", url("udp", serviceAddr(10, f), 53)},
		{"world", url("http", nodeAddr(1, f), 30010)},
		{"default/a1", url("tcp", s3, 7000)},
	} {
		eventually(t, call.from+" reaches "+call.url, 10*time.Second, func() error {
			_, err := h.call(call.from, call.url)
			return err
		})
	}
}

// denied: by isolation in both directions, and by a rule.
func (h *hubbleLab) denied(t *testing.T, f int) {
	t.Helper()
	s2, a2 := h.end("default/s2").addr(f), h.end("default/a2").addr(f)
	for _, d := range []struct {
		from string
		to   netip.AddrPort
	}{{"default/a1", at(s2, 81)}, {"default/jailed", at(a2, 81)}, {"shop/cart-5d4f8c7b9-x2x4z", at(s2, 8080)}} {
		check(t, h.isDenied(d.from, d.to))
	}
}

// answered: an echo, and a query of a name.
func (h *hubbleLab) answered(t *testing.T, f int) {
	t.Helper()
	a1, a2 := h.end("default/a1"), h.end("default/a2")
	place, err := h.Find("default/a1")
	check(t, err)
	_, err = place.Exec(t.Context(), "ping", "-c2", "-i0.2", "-W2", a2.addr(f).String())
	check(t, err)
	server, err := a2.listenUDP(t.Context(), at(a2.addr(f), 53))
	check(t, err)
	done := make(chan error, 1)
	go func() { done <- answerNames(server, a1.addr(f)) }()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return a1.dialUDP(ctx, netip.AddrPort{}, at(a2.addr(f), 53))
	}
	resolver := &net.Resolver{PreferGo: true, StrictErrors: true, Dial: dial}
	network := fmt.Sprintf("ip%d", f)
	eventually(t, "a2 answers queries", 10*time.Second, func() error {
		got, err := resolver.LookupNetIP(t.Context(), network, "server.myelin.test.")
		if err == nil && (len(got) != 1 || got[0].Unmap() != a1.addr(f)) {
			return fmt.Errorf("got %v", got)
		}
		return err
	})
	server.Close()
	check(t, <-done)
}

// answerNames answers all queries with an address until the socket is closed.
func answerNames(conn *net.UDPConn, addr netip.Addr) error {
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		var m dnsmessage.Message
		if err = errors.Join(err, m.Unpack(buf[:max(n, 0)])); err != nil || len(m.Questions) != 1 {
			return fmt.Errorf("a query of %d questions: %w", len(m.Questions), errOr(err, "want one"))
		}
		q := m.Questions[0]
		m.Response, m.Additionals = true, nil
		header := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}
		if addr.Is4() {
			m.Answers = []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}}}
		} else {
			m.Answers = []dnsmessage.Resource{{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}}}
		}
		out, err := m.Pack()
		if err == nil {
			_, err = conn.WriteToUDPAddrPort(out, from)
		}
		if err != nil && !errors.Is(err, io.ErrClosedPipe) {
			return err
		}
	}
}
