package labtest

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"myelin/bpf"
)

// The ports that TestMasqueradePorts leaves for masquerade, the fewest that are accepted.
const (
	firstPort = 29000
	portCount = 256
)

// TestMasqueradePorts has the host's own sockets hold ports out of those for masquerade: pods get others, both work on,
// and where the host holds them all, pods are refused for that reason.
//
//	┌─ node1 ───────────────────────────────────┐
//	│ a1  b1      its own sockets, from 29000 on │
//	└──────┬────────────────────────────────────┘
//	═══════╧═ world: one server, and another one
func TestMasqueradePorts(t *testing.T) {
	for _, m := range masqueradeModes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			values := map[string]any{"myelin.nat.portRange": fmt.Sprintf("%d-%d", firstPort, firstPort+portCount-1)}
			c := up(t, setup{mode: m, nodes: 1, values: values})
			for _, f := range c.stack.families {
				c.sharePorts(f)
				c.noPortLeft(f)
				c.hostServes(f)
			}
		})
	}
}

// worldServer echoes TCP in the world until the test ends.
func (c *cluster) worldServer(family int) netip.AddrPort {
	c.t.Helper()
	world := c.end("world")
	l, err := world.listenTCP(c.t.Context(), at(world.addr(family), 0))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { l.Close() })
	go echoTCP(l)
	return addrPort(l.Addr())
}

// fromHost connects from n of the ports, the first ones, by sockets of the host's own.
func (c *cluster) fromHost(n int, to netip.AddrPort) (all []net.Conn) {
	c.t.Helper()
	node := c.end("node1")
	for i := range n {
		conn, err := node.dialTCP(c.t.Context(), at(node.addr(family(to.Addr())), uint16(firstPort+i)),
			to, intOption(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
		if err != nil {
			c.t.Fatalf("connection of the host to %s: %v", to, err)
		}
		c.t.Cleanup(func() { conn.Close() })
		all = append(all, conn)
	}
	return all
}

// sharePorts fills a quarter of the ports from each side: 16 attempts then find a free one but for once in 10^4.
func (c *cluster) sharePorts(family int) {
	c.t.Helper()
	to := c.worldServer(family)
	all := c.fromHost(portCount/4, to)
	for i := range portCount / 4 {
		conn, err := c.end([]string{"a1", "b1"}[i%2]).dialTCP(c.t.Context(), netip.AddrPort{}, to)
		if err != nil {
			c.t.Errorf("IPv%d connection %d of a pod, with ports left: %v", family, i, err)
			return
		}
		defer conn.Close()
		all = append(all, conn)
	}
	for i, conn := range all {
		c.errorf(family, fmt.Sprintf("connection %d of %d", i, len(all)), askTCP(conn, uint64(i)))
	}
}

// noPortLeft has the host hold all ports.
func (c *cluster) noPortLeft(family int) {
	c.t.Helper()
	to := c.worldServer(family)
	all := c.fromHost(portCount, to)
	before := c.outcome("node1", bpf.DatapathOutcomeDROP_NAT_NO_PORT)
	giveUp := intOption(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 500) // milliseconds, tcp(7)
	if conn, err := c.end("a1").dialTCP(c.t.Context(), netip.AddrPort{}, to, giveUp); err == nil {
		c.t.Errorf("IPv%d: a pod connects from %s where the host holds every port", family, conn.LocalAddr())
		conn.Close()
	}
	if c.outcome("node1", bpf.DatapathOutcomeDROP_NAT_NO_PORT) == before {
		c.t.Errorf("IPv%d: no packet is counted as dropped for want of a port", family)
	}
	for i, conn := range all {
		c.errorf(family, fmt.Sprintf("connection %d of the host", i), askTCP(conn, uint64(i)))
	}
}

// hostServes has the host serve at a port out of those for masquerade: clients from outside find it.
func (c *cluster) hostServes(family int) {
	c.t.Helper()
	node, world := c.end("node1"), c.end("world")
	server, err := node.listenUDP(c.t.Context(), at(node.addr(family), firstPort+portCount-1))
	if err != nil {
		c.t.Fatal(err)
	}
	defer server.Close()
	client, err := world.dialUDP(c.t.Context(), netip.AddrPort{}, addrPort(server.LocalAddr()))
	if err != nil {
		c.t.Fatal(err)
	}
	defer client.Close()
	_, err = askUDP(client, server, 500)
	c.errorf(family, "from the world to a server of the host", err)
}
