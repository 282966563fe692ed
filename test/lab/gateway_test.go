package labtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// gatewayLab is two load balancers, and two servers that take IPIP packets as any host with a tunnel device does, have
// the Service's addresses, and reply to the world directly:
//
//	world ═► node1: lb ═┐         ┌═► node3: server ═► world
//	     └ ═► node2: lb ═╧══ IPIP ═╧═► node4: server ═► world
type gatewayLab struct {
	*cluster
}

// The addresses of the Service are lbAddr(gatewayVIP, family):80.
const gatewayVIP = 7

// TestGateway moves real connections from one load balancer to the other while the Service has other backends than when
// they began. They go on, by addresses of each family between the load balancers; without peers they break.
func TestGateway(t *testing.T) {
	if reason := noTUN(); reason != "" {
		t.Skip(reason)
	}
	for name, family := range map[string]int{"IPv4": 4, "IPv6": 6, "none": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := upGateways(t, family)
			clients := g.connect("node3", 4)
			if family != 0 {
				g.awaitPeers(len(clients))
			}
			g.program("node3", "node4")
			g.maintain("node3")
			g.routeOutside(2)
			for _, c := range clients {
				server, err := c.ask()
				if family != 0 && (err != nil || server != "node3") {
					t.Errorf("%s moved: %q, %v; want node3", c, server, err)
				}
				if family == 0 && err == nil {
					t.Errorf("%s moved without peers: %s", c, server)
				}
			}
			for _, c := range g.connect("node4", 1) {
				check(t, c.Close())
			}
			if family != 0 {
				g.drain(clients)
			}
		})
	}
}

func upGateways(t *testing.T, peers int) *gatewayLab {
	t.Helper()
	values := map[string]any{"loadBalancer.standalone": true, "loadBalancer.mode": "dsr",
		"loadBalancer.dsrDispatch": "ipip", "loadBalancer.algorithm": "maglev"}
	if peers != 0 {
		// The same on all nodes: each leaves its own address out.
		values["myelin.gateway.peers"] = []string{
			at(nodeAddr(1, peers), 9882).String(), at(nodeAddr(2, peers), 9882).String(),
		}
		values["myelin.gateway.trustedNetwork"] = true
	}
	g := &gatewayLab{up(t, setup{nodes: 4, pods: []string{}, values: values})}
	g.ethtool("world", "eth0", "tx", "off") // a TUN device takes no packets whose checksum is still to be filled in
	for _, node := range []string{"node3", "node4"} {
		check(t, g.Node(node).KillAgent(t.Context())) // a server is no load balancer
		g.decapsulate(node)
		for _, f := range []int{4, 6} {
			vip := lbAddr(gatewayVIP, f)
			g.ip(node, "address", "add", netip.PrefixFrom(vip, vip.BitLen()).String(), "dev", "lo", "nodad")
			g.echo(node, at(vip, 80))
		}
	}
	g.program("node3")
	g.routeOutside(1)
	return g
}

// on runs a command on a node.
func (g *gatewayLab) on(node string, args ...string) string {
	g.t.Helper()
	out, err := g.Node(node).Exec(g.t.Context(), append([]string{"myelin"}, args...)...)
	check(g.t, err)
	return out
}

// program gives the Service backends, on both load balancers.
func (g *gatewayLab) program(servers ...string) {
	g.t.Helper()
	args := []string{"service", "upsert", "web"}
	for _, f := range []int{4, 6} {
		args = append(args, "--frontend", at(lbAddr(gatewayVIP, f), 80).String())
		for _, server := range servers {
			args = append(args, "--backend", at(g.end(server).addr(f), 80).String())
		}
	}
	for _, node := range []string{"node1", "node2"} {
		g.on(node, args...)
		eventually(g.t, "backends of "+node, 10*time.Second, func() error {
			if out := g.on(node, "backend", "list"); strings.Count(out, "active") != 2*len(servers) {
				return errors.New(out)
			}
			return nil
		})
	}
}

// maintain has both load balancers send no new flow to a server.
func (g *gatewayLab) maintain(server string) {
	g.t.Helper()
	for _, node := range []string{"node1", "node2"} {
		for _, f := range []int{4, 6} {
			g.on(node, "backend", "set", at(g.end(server).addr(f), 80).String(), "--state", "maintenance")
		}
		eventually(g.t, "maintenance", 10*time.Second, func() error {
			if out := g.on(node, "service", "list"); strings.Contains(out, g.end(server).addr(4).String()+":") {
				return errors.New(out)
			}
			return nil
		})
	}
}

// decapsulate has a node take IPIP packets: what they contain arrives by a TUN device.
func (g *gatewayLab) decapsulate(node string) {
	g.t.Helper()
	const rawSocket = unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	var tun *os.File
	var raw [2]int
	check(g.t, g.Node(node).Do(func() (err error) {
		if tun, err = openTUN("ipip"); err != nil {
			return err
		}
		if raw[0], err = unix.Socket(unix.AF_INET, rawSocket, unix.IPPROTO_IPIP); err != nil {
			return err
		}
		raw[1], err = unix.Socket(unix.AF_INET6, rawSocket, unix.IPPROTO_IPV6)
		return err
	}))
	g.ip(node, "link", "set", "ipip", "up")
	for _, device := range []string{"all", "ipip"} {
		_, err := g.Node(node).Exec(g.t.Context(), "sh", "-c", "echo 0 > /proc/sys/net/ipv4/conf/"+device+"/rp_filter")
		check(g.t, err)
	}
	var work errgroup.Group
	for i, outer := range []int{20, 0} { // an IPv6 raw socket has no header
		socket := os.NewFile(uintptr(raw[i]), "IPIP")
		work.Go(func() error {
			packet := make([]byte, 1<<16)
			for {
				n, err := socket.Read(packet)
				if err != nil {
					return err
				}
				if n > outer {
					_, _ = tun.Write(packet[outer:n])
				}
			}
		})
		g.t.Cleanup(func() { socket.Close() })
	}
	g.t.Cleanup(func() { tun.Close() })
}

// echo answers each line of a connection with the node's name.
func (g *gatewayLab) echo(node string, address netip.AddrPort) {
	g.t.Helper()
	l, err := g.end(node).listenTCP(g.t.Context(), address)
	check(g.t, err)
	g.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for s := bufio.NewScanner(c); s.Scan(); {
					fmt.Fprintln(c, node)
				}
			}()
		}
	}()
}

// gatewayClient is a connection of the world to the Service.
type gatewayClient struct {
	net.Conn
	in *bufio.Reader
}

func (c *gatewayClient) String() string {
	return c.LocalAddr().String() + " to " + c.RemoteAddr().String()
}

// ask returns the name of the server.
func (c *gatewayClient) ask() (string, error) {
	if err := c.SetDeadline(time.Now().Add(patience(5 * time.Second))); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(c, "who"); err != nil {
		return "", err
	}
	line, err := c.in.ReadString('\n')
	return strings.TrimSpace(line), err
}

// connect opens n connections by each family, all of which are to be answered by a server.
func (g *gatewayLab) connect(want string, n int) (list []*gatewayClient) {
	g.t.Helper()
	for _, f := range []int{4, 6} {
		for range n {
			var c *gatewayClient
			eventually(g.t, "a connection", 10*time.Second, func() error {
				conn, err := g.end("world").dialTCP(g.t.Context(), netip.AddrPort{}, at(lbAddr(gatewayVIP, f), 80))
				if err == nil {
					c = &gatewayClient{conn, bufio.NewReader(conn)}
				}
				return err
			})
			g.t.Cleanup(func() { c.Close() })
			if server, err := c.ask(); err != nil || server != want {
				g.t.Fatalf("%s: %q, %v; want %s", c, server, err, want)
			}
			list = append(list, c)
		}
	}
	return list
}

// awaitPeers waits until node2 knows the flows of node1.
func (g *gatewayLab) awaitPeers(flows int) {
	g.t.Helper()
	eventually(g.t, "flows of node1 at node2", 20*time.Second, func() error {
		if out := g.on("node2", "service", "flows"); strings.Count(out, "direct") != flows {
			return errors.New(out + g.on("node1", "gateway", "peers") + g.on("node2", "gateway", "peers"))
		}
		return nil
	})
	contains(g.t, "status", words(g.on("node1", "status", "--verbose")), "connected, 0 flows behind", "this node")
	contains(g.t, "table peers", words(g.on("node2", "table", "show", "peers")), "from "+"", "connected")
	_, metrics := g.health(g.t, "node1", "/metrics")
	contains(g.t, "/metrics", metrics, "myelin_gateway_peer_connected{peer=", "myelin_gateway_draining 0")
}

// drain takes node1 out of service, whose flows are all at node2 by now, and back.
func (g *gatewayLab) drain(clients []*gatewayClient) {
	g.t.Helper()
	health := func(code int, want string) {
		g.t.Helper()
		if got, body := g.health(g.t, "node1", "/healthz"); got != code || !strings.Contains(body, want) {
			g.t.Errorf("%d %s, want %d %s", got, body, code, want)
		}
	}
	health(http.StatusOK, "ok")
	out := g.on("node1", "gateway", "drain", "--timeout", patience(40*time.Second).String())
	contains(g.t, "drain", out, fmt.Sprintf("%d flows left, 0 active", len(clients)), "knows all", "\ndrained\n")
	health(http.StatusServiceUnavailable, "draining")
	contains(g.t, "status", g.on("node1", "status"), "draining since")
	check(g.t, g.Node("node1").KillAgent(context.Background()))
	check(g.t, g.Node("node1").StartAgent(context.Background(), nil))
	health(http.StatusServiceUnavailable, "draining")
	for _, c := range clients {
		if server, err := c.ask(); err != nil || server != "node3" {
			g.t.Errorf("%s after the drain: %q, %v; want node3", c, server, err)
		}
	}
	if out := g.on("node1", "gateway", "resume"); out != "in service\n" {
		g.t.Errorf("got %q", out)
	}
	health(http.StatusOK, "ok")
}
