package labtest

import (
	"net/netip"
	"testing"
	"time"

	"myelin/bpf"
)

// TestStandaloneOutside has the world ask a load balancer without a cluster for addresses of each family, whose backend
// on another machine is of the same and of the other one; by tc, and by XDP, which must then have most of each flow's
// packets.
//
//	world ══ 192.0.2.x, 2001:db8:50::x ══► lb ══► server :8080, :7001
func TestStandaloneOutside(t *testing.T) {
	for _, acceleration := range []string{"disabled", "native"} {
		t.Run(acceleration, func(t *testing.T) {
			t.Parallel()
			g := upStandalone(t, map[string]any{"loadBalancer.acceleration": acceleration})
			if acceleration == "disabled" {
				g.outsideByFamily(0)
				return
			}
			if kernelBefore(6, 3) {
				t.Skip("whether a veth's other end takes frames is not known")
			}
			g.plainLinks()
			g.accelerated("node1", "native on eth0")
			g.outsideByFamily(5)
		})
	}
}

// outsideByFamily asks by each way, of whose packets XDP must send on so many at least.
func (g *standaloneLab) outsideByFamily(byXDP uint64) {
	t := g.t
	t.Helper()
	names := map[[2]int]string{{4, 4}: "four", {6, 6}: "six", {4, 6}: "four-six", {6, 4}: "six-four"}
	n := 0
	for way, name := range names {
		n++
		vip, backend := lbAddr(n, way[0]), nodeAddr(2, way[1])
		g.must("service", "upsert", name, "--frontend", netip.AddrPortFrom(vip, 80).String()+"/TCP", "--backend",
			netip.AddrPortFrom(backend, 8080).String())
		g.must("service", "upsert", name+"-udp", "--frontend", netip.AddrPortFrom(vip, 53).String()+"/UDP", "--backend",
			netip.AddrPortFrom(backend, 7001).String())
		g.routeOutside(1)
		want := nodeAddr(1, way[1])
		eventually(t, name, 10*time.Second, func() error {
			server, client, err := g.asks("world", url("http", vip, 80))
			if err == nil && (server != "node2" || client != want) {
				t.Errorf("%s: %s saw %s, want node2 and %s", name, server, client, want)
			}
			return err
		})
		before := g.outcomeAt("node1", bpf.DatapathHookHOOK_FROM_WIRE_XDP, bpf.DatapathOutcomeFORWARD_WIRE)
		for range 3 {
			if _, err := g.call("world", url("http", vip, 80)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := g.outcomeAt("node1", bpf.DatapathHookHOOK_FROM_WIRE_XDP,
			bpf.DatapathOutcomeFORWARD_WIRE) - before; n < byXDP {
			t.Errorf("%s: XDP sent %d packets on, want at least %d", name, n, byXDP)
		}
		if _, err := g.call("world", url("udp", vip, 53)); err != nil {
			t.Errorf("%s, UDP: %v", name, err)
		}
		g.must("service", "delete", name)
		eventually(t, name+" is no more", 10*time.Second, func() error {
			if server, err := g.call("world", url("http", vip, 80)); err == nil {
				return &answeredError{server}
			}
			return nil
		})
	}
}

type answeredError struct{ server string }

func (e *answeredError) Error() string { return "answered by " + e.server }
