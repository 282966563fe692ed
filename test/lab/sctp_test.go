package labtest

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// sctpService is the number of TestSCTP's Service, whose backend is x/a1.
const sctpService = 30

// Upstream's ports, and a node port of the usual range.
const (
	sctpFrontPort = 95
	sctpPort      = 8082
	sctpNodePort  = 30950
	// sctpClosed is another port of x/a1's, which no policy opens.
	sctpClosed = 8083
)

// TestSCTP has the kernel's own SCTP do what upstream's specs do that need it in the nodes' kernels
// ([Feature:SCTPConnectivity]): pods and nodes ask a pod, and for its Service by ClusterIP and node port, the pod
// itself too; and policies.
//
//	┌─ node1 ──────┐  ┌─ node2 ──────┐
//	│ x/a1   x/b1  │  │ y/a2   y/b2  │     x/a1 is the server
//	└──────┬───────┘  └──────┬───────┘
//	═══════╧═════ world ═════╧════════
func TestSCTP(t *testing.T) {
	needSCTP(t)
	for _, m := range policyModes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			p := upSCTP(t, m)
			askAgain := p.sctpBegin("x/b1", "y/a2")
			for _, f := range p.stack.families {
				p.sctpPods(f)
				p.sctpServices(f)
				p.sctpNodePorts(f)
			}
			askAgain()
			p.sctpPolicies(t)
		})
	}
}

// upSCTP brings the cluster up, with servers on all pods, and waits until the Services answer.
func upSCTP(t *testing.T, m mode) *policed {
	t.Helper()
	s := setup{mode: m, values: map[string]any{"kubeProxyReplacement": true}}
	s.fill()
	yaml := s.nodeYAML(1) + "---\n" + s.nodeYAML(2)
	for _, ns := range []string{"x", "y"} {
		yaml += fmt.Sprintf("---\napiVersion: v1\nkind: Namespace\nmetadata: {name: %q, labels: {ns: %q}}\n", ns, ns)
	}
	for _, name := range sctpNames() {
		ns, pod, _ := strings.Cut(name, "/")
		yaml += "---\n" + strings.Replace(podYAML(pod, int(pod[1]-'0')), "metadata: {",
			fmt.Sprintf("metadata: {namespace: %q, labels: {pod: %c}, ", ns, pod[0]), 1)
	}
	s.yaml = yaml + barriers()
	p := &policed{cluster: up(t, s), probing: probing{associate: true}}
	for _, name := range sctpNames() {
		p.sctpServe(name, sctpPort)
	}
	p.sctpServe("x/a1", sctpClosed)
	p.apply("service", p.sctpYAML())
	for _, name := range []string{"x/b1", "y/a2"} {
		for _, f := range p.stack.families {
			eventually(t, name+" reaches the Service", 20*time.Second, func() error {
				_, _, err := p.end(name).sctp(t.Context(), p.end(name).addr(f),
					at(serviceAddr(sctpService, f), sctpFrontPort))
				return err
			})
		}
	}
	return p
}

// sctpNames are all pods, each on the node that its name ends in.
func sctpNames() []string { return []string{"x/a1", "x/b1", "y/a2", "y/b2"} }

// sctpServe has a pod answer until the test is over, at each of its addresses by itself: a server at all of them names
// them to its clients, which then also try the pod itself, at the Service's port, and get an abort.
func (p *policed) sctpServe(name string, port uint16) {
	p.t.Helper()
	for _, f := range p.stack.families {
		e := p.end(name)
		s, err := e.serveSCTP(at(e.addr(f), port))
		check(p.t, err)
		p.t.Cleanup(s.stop)
	}
}

func (c *cluster) sctpYAML() string {
	return strings.NewReplacer(
		"    - {name: http, port: 80, targetPort: 8080}\n",
		fmt.Sprintf("    - {name: sctp, port: %d, targetPort: %d, nodePort: %d, protocol: SCTP}\n", sctpFrontPort,
			sctpPort, sctpNodePort),
		"    - {name: dns, port: 53, targetPort: 7001, protocol: UDP}\n", "",
		"  - {name: http, port: 8080}\n", fmt.Sprintf("  - {name: sctp, port: %d, protocol: SCTP}\n", sctpPort),
		"  - {name: dns, port: 7001, protocol: UDP}\n", "",
	).Replace(serviceYAML("sctp", sctpService, "  type: NodePort\n") + c.slicesYAML("sctp", "x/a1"))
}

// sctpAsk has a client connect to x/a1 from an address, and x/a1 must see one of those that are wanted.
func (p *policed) sctpAsk(from string, to netip.AddrPort, want ...netip.Addr) {
	p.t.Helper()
	e := p.end(from)
	server, seen, err := e.sctp(p.t.Context(), e.addr(family(to.Addr())), to)
	if err != nil || server != "x/a1" || !slices.Contains(want, seen) {
		p.t.Errorf("%s asks %s: %s answers and sees %s, %v; want x/a1 and one of %s", from, to, server, seen, err, want)
	}
}

// sctpPods is upstream's intra-pod and node-pod communication.
func (p *policed) sctpPods(f int) {
	p.t.Helper()
	to := at(p.end("x/a1").addr(f), sctpPort)
	for _, from := range []string{"x/b1", "y/a2"} {
		p.sctpAsk(from, to, p.end(from).addr(f))
	}
	for node := range 2 {
		name := fmt.Sprintf("node%d", node+1)
		p.sctpAsk(name, to, p.end(name).addr(f), gateway(node+1, f))
	}
}

// sctpServices is upstream's pod-Service and endpoint-Service by ClusterIP: a pod that is its own backend sees its
// gateway.
func (p *policed) sctpServices(f int) {
	p.t.Helper()
	to := at(serviceAddr(sctpService, f), sctpFrontPort)
	for _, from := range []string{"x/b1", "y/a2"} {
		p.sctpAsk(from, to, p.end(from).addr(f))
	}
	p.sctpAsk("x/a1", to, gateway(1, f))
}

// sctpNodePorts is the same by node port, of either node; and the world asks, and each node the other one.
func (p *policed) sctpNodePorts(f int) {
	p.t.Helper()
	for node := 1; node <= 2; node++ {
		to := at(nodeAddr(node, f), sctpNodePort)
		for _, from := range []string{"x/b1", "y/a2"} {
			p.sctpAsk(from, to, p.end(from).addr(f))
		}
		p.sctpAsk("x/a1", to, gateway(1, f))
	}
	p.sctpAsk("world", at(nodeAddr(1, f), sctpNodePort), p.end("world").addr(f))
	p.sctpAsk("world", at(nodeAddr(2, f), sctpNodePort), p.behindNode(2, f))
	p.sctpAsk("node2", at(nodeAddr(1, f), sctpNodePort), nodeAddr(2, f))
	p.sctpAsk("node1", at(nodeAddr(2, f), sctpNodePort), p.behindNode(2, f))
}

// sctpBegin opens associations with the Service, which are asked again by the function that it returns.
func (p *policed) sctpBegin(clients ...string) (askAgain func()) {
	p.t.Helper()
	begun := map[string]*os.File{}
	for _, from := range clients {
		for _, f := range p.stack.families {
			to := at(serviceAddr(sctpService, f), sctpFrontPort)
			c, err := p.end(from).dialSCTP(p.t.Context(), p.end(from).addr(f), to)
			check(p.t, err)
			p.t.Cleanup(func() { c.Close() })
			begun[from+" and "+to.String()] = c
		}
	}
	return func() {
		p.t.Helper()
		for name, c := range begun {
			if server, _, err := askSCTP(c); err != nil || server != "x/a1" {
				p.t.Errorf("the association of %s, after others: %s answers, %v", name, server, err)
			}
		}
	}
}
