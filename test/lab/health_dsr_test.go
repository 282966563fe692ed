package labtest

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"myelin/lab"
)

// TestHealthByDSR: a load balancer sends clients' packets by IPIP to backends outside of its cluster, of which one
// takes them and one does not. Health checks that travel like clients' packets tell one from the other; direct ones
// don't. The frontends' addresses are also the load balancer's own, on its loopback device.
//
//	lb ══ IPIP ══► server :8080   decapsulates, has the frontends' addresses
//	   ══ IPIP ══► world  :8080   does not, at first
func TestHealthByDSR(t *testing.T) {
	if why := noTUN(); why != "" && (noType("type ipip external") != "" || noType("type ip6tnl external") != "") {
		t.Skip(why)
	}
	t.Parallel()
	g := upStandalone(t, map[string]any{"loadBalancer.mode": "dsr", "loadBalancer.dsrDispatch": "ipip"})
	g.plainLinks() // raw sockets see checksums as they are: they must be complete
	g.decapsulate("node2")
	g.ownVIPs("node1")
	upsert := []string{"service", "upsert", "web", "--health-check", "http", "--health-interval", "200ms",
		"--health-timeout", patience(time.Second).String(), "--health-fall", "2"}
	for _, vip := range dsrVIPs() {
		upsert = append(upsert, "--frontend", vip.String())
	}
	for _, of := range []string{"node2", "world"} {
		for _, f := range []int{4, 6} {
			upsert = append(upsert, "--backend", at(g.end(of).addr(f), 8080).String())
		}
	}
	g.must(upsert...)
	lost := func(f int) string {
		backend, vip := at(g.end("world").addr(f), 8080), dsrVIPs()[f/2-2]
		return fmt.Sprintf("%s (quarantined, health failing: no answer within %s by IPIP for %s, though %s accepts "+
			"direct connections: clients' packets, or replies from %s, are lost)", backend.String()+"/TCP",
			patience(time.Second), vip, backend, vip.Addr())
	}
	for _, f := range []int{4, 6} {
		g.has(lost(f), "service", "get", "web")
		g.has(at(g.end("node2").addr(f), 8080).String()+"/TCP (active, health passing by IPIP)",
			"service", "get", "web")
	}
	g.has("health checks of 4 backends, 4 by DSR, 2 failing", "status", "--verbose")
	g.clientsReach("node2")
	check(t, g.node.KillAgent(t.Context()))
	g.clientsReach("node2")
	check(t, g.node.StartAgent(t.Context(), nil))
	g.clientsReach("node2") // the first results of the new agent are by DSR, too
	g.must(append(upsert, "--health-via", "direct")...)
	for _, f := range []int{4, 6} {
		g.has(at(g.end("world").addr(f), 8080).String()+"/TCP (active, health passing)",
			"service", "get", "web")
	}
	g.allVia("direct")
	g.must(upsert...)
	for _, f := range []int{4, 6} {
		g.has(lost(f), "service", "get", "web")
	}
	g.decapsulate("world")
	for _, f := range []int{4, 6} {
		g.has(at(g.end("world").addr(f), 8080).String()+"/TCP (active, health passing by IPIP)",
			"service", "get", "web")
	}
	g.allVia("IPIP")
}

// allVia waits until the last checks of all backends took a way.
func (g *standaloneLab) allVia(want string) {
	g.t.Helper()
	eventually(g.t, "checks go by "+want, 10*time.Second, func() error {
		_, metrics := g.health(g.t, "node1", "/metrics")
		if want := fmt.Sprintf(`myelin_health_check_backends{via="%s"} 4`, want); !strings.Contains(metrics, want) {
			return fmt.Errorf("want %s", want)
		}
		return nil
	})
}

// dsrVIPs are frontends with the port of their backends, which get packets that are addressed to them.
func dsrVIPs() [2]netip.AddrPort {
	return [2]netip.AddrPort{at(lbAddr(1, 4), 8080), at(lbAddr(1, 6), 8080)}
}

// clientsReach has the world ask, and wants each answer from a server.
func (g *standaloneLab) clientsReach(want string) {
	g.t.Helper()
	g.routeOutside(1)
	for _, vip := range dsrVIPs() {
		for range 8 {
			server, client, err := g.asks("world", url("http", vip.Addr(), vip.Port()))
			if lb := g.end("node1"); err != nil || server != want || client == lb.addr(4) || client == lb.addr(6) {
				g.t.Errorf("%s: %s saw %s, %v, want %s and the client's address", vip, server, client, err, want)
			}
		}
	}
}

// ownVIPs gives a machine the frontends' addresses.
func (g *standaloneLab) ownVIPs(name string) {
	g.t.Helper()
	place, err := g.Find(name)
	check(g.t, err)
	for _, vip := range dsrVIPs() {
		own := netip.PrefixFrom(vip.Addr(), vip.Addr().BitLen())
		args := []string{"ip", "address", "replace", own.String(), "dev", "lo"}
		if vip.Addr().Is6() {
			args = append(args, "nodad")
		}
		_, err := place.Exec(g.t.Context(), args...)
		check(g.t, err)
	}
}

// decapsulate has a machine take IPIP packets for the frontends: by tunnel devices, or where the kernel has none, by
// decapsulateTUN.
func (g *standaloneLab) decapsulate(name string) {
	g.t.Helper()
	place, err := g.Find(name)
	check(g.t, err)
	g.ownVIPs(name)
	if noType("type ipip external") != "" || noType("type ip6tnl external") != "" {
		g.decapsulateTUN(place)
		return
	}
	_, err = place.Exec(g.t.Context(), "sh", "-c", "ip link add decap0 type ipip external && "+
		"ip link add decap6 type ip6tnl external && ip link set decap0 up && ip link set decap6 up && "+
		"echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter && echo 0 > /proc/sys/net/ipv4/conf/decap0/rp_filter")
	check(g.t, err)
}

// decapsulateTUN has raw sockets get the packets, and a TUN device give the inner ones to the stack.
func (g *standaloneLab) decapsulateTUN(place *lab.Place) {
	g.t.Helper()
	var err error
	var tun *os.File
	var raw [2]*os.File
	check(g.t, place.Do(func() (err error) {
		if tun, err = openTUN("decap0"); err != nil {
			return err
		}
		for i, of := range [2][2]int{{unix.AF_INET, unix.IPPROTO_IPIP}, {unix.AF_INET6, unix.IPPROTO_IPV6}} {
			fd, err := unix.Socket(of[0], unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, of[1])
			if err != nil {
				return fmt.Errorf("open raw socket: %w", err)
			}
			raw[i] = os.NewFile(uintptr(fd), "raw")
		}
		return nil
	}))
	_, err = place.Exec(g.t.Context(), "sh", "-c", "echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter; "+
		"echo 0 > /proc/sys/net/ipv4/conf/decap0/rp_filter; ip link set decap0 up")
	check(g.t, err)
	var all errgroup.Group
	for i := range raw {
		all.Go(func() error { return unwrap(tun, raw[i], i == 0) })
	}
	g.t.Cleanup(func() {
		for _, f := range []*os.File{raw[0], raw[1], tun} {
			f.Close()
		}
		_ = all.Wait() // of reads that Close ended
	})
}

// unwrap gives a TUN device the packets that are in those of a raw socket, which shows the outer header of IPv4 only.
func unwrap(tun, raw *os.File, header bool) error {
	packet := make([]byte, 1<<16)
	for {
		n, err := raw.Read(packet)
		if err != nil {
			return err
		}
		inner := packet[:n]
		if header {
			inner = inner[min(n, int(packet[0]&0xf)*4):]
		}
		_, _ = tun.Write(inner) // what a device refuses is lost, as on a wire
	}
}

// TestHealthOfPodsByDSR: on a node of a cluster, the health check of a pod of another node travels by DSR, and the
// pod's node accepts what it accepts from clients: packets for a Service that it knows too.
//
//	node1: checks ══ option, IPIP or Geneve ══► node2: s2
//	              ◄══════ from the frontend ═══
func TestHealthOfPodsByDSR(t *testing.T) {
	const loadBalancer = "loadBalancer."
	for name, c := range map[string]struct{ mode, dispatch, via string }{
		"option":              {"native", "opt", "option"},
		"option, in a tunnel": {"vxlan", "opt", "option"},
		"IPIP":                {"native", "ipip", "IPIP"},
		"Geneve":              {"native", "geneve", "Geneve"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			values := perPacket()
			values[loadBalancer+"mode"], values[loadBalancer+"dsrDispatch"] = "dsr", c.dispatch
			g := &standaloneLab{cluster: up(t, setup{mode: modeNamed(c.mode), pods: []string{}, values: values})}
			g.node = g.Node("node1")
			g.apply("servers", serverYAML("s2", 2))
			upsert := []string{"service", "upsert", "web", "--health-check", "http", "--health-interval", "200ms",
				"--health-timeout", patience(time.Second).String(), "--health-fall", "2"}
			for i, vip := range dsrVIPs() {
				upsert = append(upsert, "--frontend", vip.String(), "--backend",
					at(g.end("s2").addr(4+2*i), 8080).String())
			}
			g.must(upsert...)
			for _, f := range []int{4, 6} {
				g.has(fmt.Sprintf("failing: no answer within %s by %s for %s", patience(time.Second), c.via,
					dsrVIPs()[f/2-2]), "backend", "list")
			}
			if _, err := g.Node("node2").Exec(t.Context(), append([]string{"myelin"}, upsert...)...); err != nil {
				t.Fatal(err)
			}
			for _, f := range []int{4, 6} {
				g.has(at(g.end("s2").addr(f), 8080).String()+"/TCP (active, health passing by "+c.via+")",
					"service", "get", "web")
			}
		})
	}
}
