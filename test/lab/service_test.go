package labtest

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// serverYAML is a pod that answers, on a node.
func serverYAML(name string, node int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, labels: {app: web}}
spec:
  nodeName: node%d
  containers: [{name: server, image: none, command: [myelin, lab, serve]}]
---
`, name, node)
}

// serviceAddr is a Service's ClusterIP.
func serviceAddr(n, family int) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte{10, 96, 0, byte(n)})
	}
	return netip.MustParseAddr(fmt.Sprintf("fd00:96::%d", n))
}

// serviceYAML is a Service on ClusterIP number n, port 80 by HTTP and port 53 by UDP.
func serviceYAML(name string, n int, spec string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s}
spec:
  clusterIP: %s
  clusterIPs: [%s, "%s"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  ports:
    - {name: http, port: 80, targetPort: 8080}
    - {name: dns, port: 53, targetPort: 7001, protocol: UDP}
%s---
`, name, serviceAddr(n, 4), serviceAddr(n, 4), serviceAddr(n, 6), spec)
}

// slicesYAML are the EndpointSlices of a Service whose backends are pods.
func (c *cluster) slicesYAML(service string, pods ...string) string {
	var text strings.Builder
	for _, f := range []int{4, 6} {
		text.WriteString(sliceYAML(service, f))
		for _, p := range pods {
			text.WriteString(endpointYAML(c.end(p).addr(f), "node"+p[len(p)-1:]))
		}
		text.WriteString("---\n")
	}
	return text.String()
}

// sliceYAML is an EndpointSlice of a family, up to its endpoints.
func sliceYAML(service string, family int) string {
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-%d, labels: {kubernetes.io/service-name: %s}}
addressType: IPv%d
ports:
  - {name: http, port: 8080}
  - {name: dns, port: 7001, protocol: UDP}
endpoints:
`, service, family, service, family)
}

func endpointYAML(a netip.Addr, node string) string {
	return fmt.Sprintf("  - {addresses: [\"%s\"], nodeName: %s, conditions: {ready: true}}\n", a, node)
}

func (c *cluster) apply(name, yaml string) {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), name+".yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o644); err != nil {
		c.t.Fatal(err)
	}
	if err := c.Apply(c.t.Context(), file, false); err != nil {
		c.t.Fatal(err)
	}
}

// call asks a server from a pod, a node or the world, and returns the server's name.
func (c *cluster) call(from, url string) (server string, err error) {
	c.t.Helper()
	server, _, err = c.asks(from, url)
	return server, err
}

// asks is call, and the client's address at the server.
func (c *cluster) asks(from, url string) (server string, client netip.Addr, err error) {
	c.t.Helper()
	place, err := c.Find(from)
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := place.Exec(c.t.Context(), "myelin", "lab", "call", "--timeout", patience(2*time.Second).String(), url)
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(line, " ")
		switch value = strings.TrimSpace(value); key {
		case "server":
			server = value
		case "client":
			if a, err := netip.ParseAddrPort(value); err == nil {
				client = a.Addr().Unmap()
			}
		}
	}
	return server, client, err
}

// callers are the clients: a pod of each node, and a node.
func callers() []string { return []string{"default/a1", "default/a2", "node1"} }

// services brings a cluster up with a server on each node and these Services, and waits until they answer.
func services(t *testing.T, m mode, values map[string]any) *cluster {
	c := up(t, setup{mode: m, pods: []string{"a"}, values: values})
	c.apply("servers", serverYAML("s1", 1)+serverYAML("s2", 2))
	affinity := "  sessionAffinity: ClientIP\n"
	c.apply("services", strings.Join([]string{
		serviceYAML("web", 10, "") + c.slicesYAML("web", "s1", "s2"),
		serviceYAML("sticky", 11, affinity) + c.slicesYAML("sticky", "s1", "s2"),
		serviceYAML("local", 12, "  internalTrafficPolicy: Local\n") + c.slicesYAML("local", "s1", "s2"),
		serviceYAML("empty", 13, ""),
		serviceYAML("remote", 14, "  internalTrafficPolicy: Local\n") + c.slicesYAML("remote", "s2"),
		strings.Replace(serviceYAML("ports", 15, "  type: NodePort\n")+c.slicesYAML("ports", "s1", "s2"), "port: 80,",
			"port: 80, nodePort: 30080,", 1),
	}, ""))
	for _, from := range callers() {
		for _, f := range c.stack.families {
			eventually(t, from+" reaches the last Service", 10*time.Second, func() error {
				_, err := c.call(from, url("http", serviceAddr(15, f), 80))
				return err
			})
		}
	}
	return c
}

// atSockets leaves to kube-proxy what passes no socket hook.
func atSockets() map[string]any { return map[string]any{"socketLB.enabled": true} }

func url(scheme string, a netip.Addr, port uint16) string {
	return scheme + "://" + netip.AddrPortFrom(a, port).String() + "/"
}

// answerers calls often and returns the server's name.
func (c *cluster) answerers(from, url string) map[string]bool {
	c.t.Helper()
	seen, err := c.tryAnswerers(from, url)
	if err != nil {
		c.t.Error(err)
	}
	return seen
}

// tryAnswerers is for times at which a call may fail.
func (c *cluster) tryAnswerers(from, url string) (map[string]bool, error) {
	c.t.Helper()
	seen := map[string]bool{}
	for range 16 { // both of two, but once in 32,000 runs
		server, err := c.call(from, url)
		if err != nil {
			return seen, fmt.Errorf("%s calls %s: %w", from, url, err)
		}
		seen[server] = true
	}
	return seen, nil
}

// eventuallyAnswer waits until these answer a1 and no others, by each family; none: until it is refused.
func (c *cluster) eventuallyAnswer(when string, service int, want ...string) {
	c.t.Helper()
	for _, f := range c.stack.families {
		eventually(c.t, when, 10*time.Second, func() error {
			seen, err := c.tryAnswerers("default/a1", url("http", serviceAddr(service, f), 80))
			refused := err != nil && (strings.Contains(err.Error(), "refused") ||
				strings.Contains(err.Error(), "not permitted"))
			if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, want) || (err != nil) != (want == nil) ||
				err != nil && !refused {
				return fmt.Errorf("IPv%d: answers of %v, want %v: %v", f, got, want, err)
			}
			return nil
		})
	}
}

// TestServices asks for Services from pods and from a node.
//
//	┌─ node1 ──────┐  ┌─ node2 ──────┐
//	│ a1        s1 │  │ a2        s2 │
//	└──────┬───────┘  └──────┬───────┘
//	═══════╧═════════════════╧════════
func TestServices(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c := services(t, m, atSockets())
			for _, f := range c.stack.families {
				for _, from := range callers() {
					c.serviceKinds(from, f)
				}
				c.nodePorts(f)
			}
		})
	}
}

func (c *cluster) serviceKinds(from string, f int) {
	c.t.Helper()
	own := map[string]string{"default/a1": "default/s1", "default/a2": "default/s2", "node1": "default/s1"}[from]
	if got := c.answerers(from, url("http", serviceAddr(10, f), 80)); len(got) != 2 {
		c.t.Errorf("IPv%d: %s gets answers of %v, want both servers", f, from, got)
	}
	if _, err := c.call(from, url("udp", serviceAddr(10, f), 53)); err != nil {
		c.t.Errorf("IPv%d: %s by UDP: %v", f, from, err)
	}
	if got := c.answerers(from, url("http", serviceAddr(11, f), 80)); len(got) != 1 {
		c.t.Errorf("IPv%d: %s gets answers of %v with affinity, want one server", f, from, got)
	}
	if got := c.answerers(from, url("http", serviceAddr(12, f), 80)); len(got) != 1 || !got[own] {
		c.t.Errorf("IPv%d: %s gets answers of %v, want %s, its node's own", f, from, got, own)
	}
	err := c.refusedAtOnce(from, func() error {
		_, err := c.call(from, url("http", serviceAddr(13, f), 80))
		return err
	})
	if err != nil {
		c.t.Errorf("IPv%d: %s: a Service without backends: %v", f, from, err)
	}
	_, err = c.call(from, url("http", serviceAddr(14, f), 80))
	if here := own == "default/s2"; (err == nil) != here {
		c.t.Errorf("IPv%d: %s: a Service with no backend but on node2: %v", f, from, err)
	}
}

// nodePorts asks on every address that a node port is on.
func (c *cluster) nodePorts(f int) {
	c.t.Helper()
	loopback := netip.MustParseAddr(map[int]string{4: "127.0.0.1", 6: "::1"}[f])
	for _, at := range []struct {
		from string
		addr netip.Addr
	}{
		{"default/a1", nodeAddr(1, f)}, {"default/a1", nodeAddr(2, f)}, {"default/a1", gateway(1, f)},
		{"node1", nodeAddr(1, f)}, {"node1", nodeAddr(2, f)}, {"node1", loopback},
	} {
		if _, err := c.call(at.from, url("http", at.addr, 30080)); err != nil {
			c.t.Errorf("IPv%d: node port on %s from %s: %v", f, at.addr, at.from, err)
		}
	}
}

// TestServicesChange takes a backend away and brings it back, kills the agent, and changes a Service while none runs.
func TestServicesChange(t *testing.T) {
	t.Parallel()
	c := services(t, modeNamed("native"), atSockets())
	web := url("http", serviceAddr(10, 4), 80)
	goes := func(what string, want ...string) {
		t.Helper()
		eventually(t, what, 10*time.Second, func() error {
			if got := c.answerers("default/a1", web); len(got) != len(want) {
				return fmt.Errorf("answers of %v, want %v", got, want)
			}
			return nil
		})
	}
	c.apply("one", c.slicesYAML("web", "s2"))
	goes("one backend is left", "s2")
	if err := c.Node("node1").KillAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := c.answerers("default/a1", web); len(got) != 1 {
		t.Errorf("without an agent: answers of %v", got)
	}
	c.apply("both", c.slicesYAML("web", "s1", "s2"))
	if err := c.Node("node1").RestartAgent(t.Context()); err != nil {
		t.Fatal(err)
	}
	goes("both are back", "s1", "s2")
}
