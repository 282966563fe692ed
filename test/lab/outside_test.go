package labtest

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/bpf"
)

// perPacket is all that kube-proxy does; pods' sockets are left alone, so that their packets are translated.
func perPacket() map[string]any {
	return map[string]any{"kubeProxyReplacement": true, "socketLB.hostNamespaceOnly": true}
}

// lbAddr is an address that the world routes to a node, and that no node has.
func lbAddr(n, family int) netip.Addr {
	if family == 4 {
		return netip.AddrFrom4([4]byte{192, 0, 2, byte(n)})
	}
	return netip.MustParseAddr(fmt.Sprintf("2001:db8:50::%d", n))
}

// outsideYAML is a Service with node ports 30000 + n for TCP and 30500 + n for UDP, and lbAddr(n).
func (c *cluster) outsideYAML(name string, n int, spec string, pods ...string) string {
	spec += fmt.Sprintf("  type: LoadBalancer\nstatus: {loadBalancer: {ingress: [{ip: \"%s\"}, {ip: \"%s\"}]}}\n",
		lbAddr(n, 4), lbAddr(n, 6))
	text := serviceYAML(name, n, spec)
	text = strings.Replace(text, "port: 80,", fmt.Sprintf("port: 80, nodePort: %d,", 30000+n), 1)
	text = strings.Replace(text, "port: 53,", fmt.Sprintf("port: 53, nodePort: %d,", 30500+n), 1)
	if len(pods) > 0 {
		text += c.slicesYAML(name, pods...)
	}
	return text
}

// The Services of TestOutside.
const (
	outNear   = 20 // s1
	outLocal  = 21 // s1, for clients of node1
	outEmpty  = 22 // no backend
	outSticky = 23 // s1 and s2, the same for a client
	outRanges = 24 // s1, for the world's address off the nodes' subnets
	outBulk   = 25 // a1, which runs no server: tests listen there
	// outLeaving has the backend a2, and then none.
	outLeaving = 26
)

// TestOutside has the world ask: at node ports of both nodes, and at addresses that are routed to one of them.
//
//	┌─ node1 ──────┐  ┌─ node2 ──────┐
//	│ s1           │  │ s2           │
//	└──────┬───────┘  └──────┬───────┘
//	═══════╧═════════════════╧══════╤═ world: 192.0.2.0/24 via node1, or via node2
func TestOutside(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c := outside(t, m, nil)
			for _, f := range c.stack.families {
				c.keptAndHidden(f)
				c.localPolicy(f)
				c.emptyOutside(f)
				c.stickyOutside(f)
				c.ranges(f)
				c.bulk(f)
			}
			c.backendGoes()
			far := c.addFar(1400)
			for _, f := range c.stack.families {
				c.narrowClient(far, f)
				c.narrowTunnel(f)
			}
		})
	}
}

// outside brings a cluster up with a server on each node and the Services above, and waits until they answer; prepare
// is done before there are any.
func outside(t *testing.T, m mode, more map[string]any, prepare ...func(*cluster)) *cluster {
	values := perPacket()
	maps.Copy(values, more)
	c := up(t, setup{mode: m, pods: []string{"a"}, values: values})
	for _, do := range prepare {
		do(c)
	}
	c.apply("servers", serverYAML("s1", 1)+serverYAML("s2", 2))
	if more["loadBalancer.acceleration"] != nil {
		c.plainLinks("default/a1", "default/s1", "default/s2")
	}
	c.apply("services", strings.Join([]string{
		c.outsideYAML("near", outNear, "", "s1"),
		c.outsideYAML("local", outLocal, "  externalTrafficPolicy: Local\n", "s1"),
		c.outsideYAML("empty", outEmpty, ""),
		c.outsideYAML("ranges", outRanges, "  loadBalancerSourceRanges: [198.51.100.0/24, \"2001:db8:64::/64\"]\n",
			"s1"),
		c.outsideYAML("bulk", outBulk, "", "a1"),
		c.outsideYAML("sticky", outSticky, "  sessionAffinity: ClientIP\n", "s1", "s2"),
	}, ""))
	c.routeOutside(1)
	for _, f := range c.stack.families {
		for node := range 2 {
			eventually(t, "the last Service answers", 10*time.Second, func() error {
				_, err := c.call("world", url("http", nodeAddr(node+1, f), 30000+outSticky))
				return err
			})
		}
	}
	return c
}

// routeOutside has the world send the Services' addresses to a node.
func (c *cluster) routeOutside(node int) {
	c.t.Helper()
	world, err := c.Find("world")
	if err != nil {
		c.t.Fatal(err)
	}
	for _, f := range c.stack.families {
		prefix := map[int]string{4: "192.0.2.0/24", 6: "2001:db8:50::/64"}[f]
		if _, err := world.Exec(c.t.Context(), "ip", "route", "replace", prefix, "via",
			nodeAddr(node, f).String()); err != nil {
			c.t.Fatal(err)
		}
	}
}

// behindNode is the client that a backend on another node sees instead of the world.
func (c *cluster) behindNode(node, family int) netip.Addr {
	if c.mode.tunnel != 0 {
		return gateway(node, family)
	}
	return nodeAddr(node, family)
}

// keptAndHidden asks for s1 by each way: node1 keeps the client's address, node2 puts its own in the place.
func (c *cluster) keptAndHidden(f int) {
	c.t.Helper()
	for node, want := range map[int]netip.Addr{1: worldAddr(f), 2: c.behindNode(2, f)} {
		c.routeOutside(node)
		for what, at := range map[string]netip.AddrPort{
			"node port": at(nodeAddr(node, f), 30000+outNear), "load balancer": at(lbAddr(outNear, f), 80),
		} {
			server, client, err := c.asks("world", url("http", at.Addr(), at.Port()))
			if err != nil || server != "default/s1" || client != want {
				c.t.Errorf("IPv%d %s by node%d: %s saw %s, %v; want default/s1 and %s", f, what, node, server, client,
					err, want)
			}
		}
		for _, at := range []netip.AddrPort{at(nodeAddr(node, f), 30500+outNear), at(lbAddr(outNear, f), 53)} {
			if _, err := c.call("world", url("udp", at.Addr(), at.Port())); err != nil {
				c.t.Errorf("IPv%d UDP by node%d: %v", f, node, err)
			}
		}
	}
	c.routeOutside(1)
}

// TestDirect has backends answer the world themselves, with each way to tell them what the client asked for.
//
//	world ══► node2 ══► node1: s1 ══► world
func TestDirect(t *testing.T) {
	const loadBalancer = "loadBalancer."
	for name, c := range map[string]struct {
		mode   string
		values map[string]any
	}{
		"option":              {"native", map[string]any{loadBalancer + "mode": "dsr"}},
		"option, in a tunnel": {"vxlan", map[string]any{loadBalancer + "mode": "dsr"}},
		"IPIP": {"native", map[string]any{loadBalancer + "mode": "dsr",
			loadBalancer + "dsrDispatch": "ipip"}},
		"Geneve": {"native", map[string]any{loadBalancer + "mode": "dsr",
			loadBalancer + "dsrDispatch": "geneve"}},
		"hybrid": {"native", map[string]any{loadBalancer + "mode": "hybrid"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outside(t, modeNamed(c.mode), c.values).answersDirectly()
		})
	}
}

// answersDirectly asks node2 for a Service of node1: the backend sees the world, and answers it.
func (c *cluster) answersDirectly() {
	c.t.Helper()
	for _, f := range c.stack.families {
		server, client, err := c.asks("world", url("http", nodeAddr(2, f), 30000+outNear))
		if err != nil || server != "default/s1" || client != worldAddr(f) {
			c.t.Errorf("IPv%d: %s saw %s, %v; want default/s1 and %s", f, server, client, err, worldAddr(f))
		}
		if _, err := c.call("world", url("udp", nodeAddr(2, f), 30500+outNear)); err != nil {
			c.t.Errorf("IPv%d UDP: %v", f, err)
		}
		c.bulk(f)
	}
}

// localPolicy asks a node with a backend and one without.
func (c *cluster) localPolicy(f int) {
	c.t.Helper()
	server, client, err := c.asks("world", url("http", nodeAddr(1, f), 30000+outLocal))
	if err != nil || server != "default/s1" || client != worldAddr(f) {
		c.t.Errorf("IPv%d: %s saw %s, %v; want default/s1 and %s", f, server, client, err, worldAddr(f))
	}
	before := c.outcome("node2", bpf.DatapathOutcomeDROP_NO_LOCAL_BACKEND)
	if server, err := c.call("world", url("http", nodeAddr(2, f), 30000+outLocal)); err == nil {
		c.t.Errorf("IPv%d: %s answers by node2", f, server)
	}
	if c.outcome("node2", bpf.DatapathOutcomeDROP_NO_LOCAL_BACKEND) == before {
		c.t.Errorf("IPv%d: node2 did not count what it dropped", f)
	}
}

// refusedAtOnce wants a connection to be refused at once: its SYN is not sent again a second later.
func (c *cluster) refusedAtOnce(name string, connect func() error) error {
	c.t.Helper()
	before := c.sentAgain(name)
	err := connect()
	if err == nil {
		return errors.New("it is accepted, want a refusal")
	}
	if n := c.sentAgain(name) - before; n > 0 {
		return fmt.Errorf("%d SYNs are sent again, want a refusal at once: %w", n, err)
	}
	return nil
}

// emptyOutside wants a refusal at once, also by UDP.
func (c *cluster) emptyOutside(f int) {
	c.t.Helper()
	world := c.end("world")
	for _, to := range []netip.AddrPort{at(nodeAddr(1, f), 30000+outEmpty), at(lbAddr(outEmpty, f), 80)} {
		var refusal error
		err := c.refusedAtOnce("world", func() error {
			conn, err := world.dialTCP(c.t.Context(), netip.AddrPort{}, to)
			if refusal = err; err == nil {
				conn.Close()
			}
			return err
		})
		if err != nil || !errors.Is(refusal, unix.ECONNREFUSED) {
			c.t.Errorf("IPv%d TCP to %s, which has no backend: %v, %v, want %v", f, to, refusal, err, unix.ECONNREFUSED)
		}
	}
	asker, err := world.dialUDP(c.t.Context(), netip.AddrPort{}, at(nodeAddr(1, f), 30500+outEmpty))
	if err != nil {
		c.t.Fatal(err)
	}
	defer asker.Close()
	_ = asker.SetDeadline(time.Now().Add(patience(2 * time.Second)))
	if _, err := asker.Write([]byte("anybody?")); err != nil {
		c.errorf(f, "UDP without a backend", err)
	}
	if _, err := asker.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
		c.t.Errorf("IPv%d UDP without a backend: %v, want %v", f, err, unix.ECONNREFUSED)
	}
}

func (c *cluster) stickyOutside(f int) {
	c.t.Helper()
	if got := c.answerers("world", url("http", nodeAddr(1, f), 30000+outSticky)); len(got) != 1 {
		c.t.Errorf("IPv%d: answers of %v with affinity, want one server", f, got)
	}
	if got := c.answerers("world", url("http", lbAddr(outSticky, f), 80)); len(got) != 1 {
		c.t.Errorf("IPv%d: answers of %v with affinity, want one server", f, got)
	}
}

// ranges asks from an address that may and from one that may not; node ports are for everybody.
func (c *cluster) ranges(f int) {
	c.t.Helper()
	world := c.end("world")
	conn, err := world.dialTCP(c.t.Context(), at(world.addr(f), 0), at(lbAddr(outRanges, f), 80))
	if err != nil {
		c.errorf(f, "a client in the Service's source ranges", err)
	} else {
		conn.Close()
	}
	before := c.outcome("node1", bpf.DatapathOutcomeDROP_SOURCE_RANGE)
	asker, err := world.dialUDP(c.t.Context(), at(worldAddr(f), 0), at(lbAddr(outRanges, f), 53))
	if err != nil {
		c.t.Fatal(err)
	}
	defer asker.Close()
	_, err = asker.Write([]byte("let me in"))
	c.errorf(f, "a client that is not in the Service's source ranges", err)
	eventually(c.t, "the client is refused", 5*time.Second, func() error {
		if c.outcome("node1", bpf.DatapathOutcomeDROP_SOURCE_RANGE) == before {
			return errors.New("nothing was dropped")
		}
		return nil
	})
	if _, err := c.call("world", url("http", nodeAddr(1, f), 30000+outRanges)); err != nil {
		c.t.Errorf("IPv%d: node port of a Service with source ranges: %v", f, err)
	}
}

// backendGoes takes the only backend of a Service away: a client that is connected to it by TCP gets a reset with the
// next packet.
func (c *cluster) backendGoes() {
	c.t.Helper()
	for _, f := range c.stack.families {
		a2 := c.end("a2")
		l, err := a2.listenTCP(c.t.Context(), at(a2.addr(f), 8080))
		if err != nil {
			c.t.Fatal(err)
		}
		defer l.Close()
	}
	c.apply("leaving", c.outsideYAML("leaving", outLeaving, "", "a2"))
	var clients []net.Conn
	for _, f := range c.stack.families {
		for _, by := range []struct {
			from string
			at   netip.AddrPort
		}{{"world", at(nodeAddr(1, f), 30000+outLeaving)}, {"world", at(nodeAddr(2, f), 30000+outLeaving)},
			{"a1", at(serviceAddr(outLeaving, f), 80)}} {
			eventually(c.t, by.from+" connects", 10*time.Second, func() error {
				client, err := c.end(by.from).dialTCP(c.t.Context(), netip.AddrPort{}, by.at)
				if err == nil {
					clients = append(clients, client)
				}
				return err
			})
		}
	}
	out, err := c.Node("node1").Exec(c.t.Context(), "myelin", "service", "flows")
	if err != nil || strings.Count(out, "default/leaving") < 2*len(c.stack.families) {
		c.t.Errorf("flows of the Service: %v in\n%s", err, out)
	}
	c.apply("left", c.slicesYAML("leaving"))
	for i, client := range clients {
		eventually(c.t, fmt.Sprintf("client %d is reset", i), 10*time.Second, func() error {
			if _, err := client.Write([]byte("still there?")); !errors.Is(err, unix.ECONNRESET) && !errors.Is(err,
				unix.EPIPE) {
				return fmt.Errorf("write: %v", err)
			}
			return nil
		})
		client.Close()
	}
}

// TestServicesByPacket asks for the Services of TestServices from pods whose sockets are left alone, and from a node.
func TestServicesByPacket(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c := services(t, m, perPacket())
			c.apply("self", serviceYAML("self", 16, "")+c.slicesYAML("self", "s1"))
			for _, f := range c.stack.families {
				for _, from := range callers() {
					c.serviceKinds(from, f)
				}
				c.nodePorts(f)
				c.toItself(f)
			}
		})
	}
}

// toItself has a backend ask for the Service that it is the only backend of: the pod sees its gateway.
func (c *cluster) toItself(f int) {
	c.t.Helper()
	eventually(c.t, "s1 answers itself", 10*time.Second, func() error {
		_, client, err := c.asks("default/s1", url("http", serviceAddr(16, f), 80))
		if err == nil && client != gateway(1, f) {
			return fmt.Errorf("s1 saw %s, want %s", client, gateway(1, f))
		}
		return err
	})
	if _, err := c.call("default/s1", url("udp", serviceAddr(16, f), 53)); err != nil {
		c.t.Errorf("IPv%d: s1 by UDP: %v", f, err)
	}
}
