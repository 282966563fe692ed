package labtest

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mtuOf is what pods get on a fabric: the tunnel's headers are 50 bytes over IPv4 and 70 over IPv6 (RFC 7348, 5).
func mtuOf(m mode, fabric int) int {
	switch m.tunnel {
	case 4:
		return fabric - 50
	case 6:
		return fabric - 70
	}
	return fabric
}

func headers(family int) int { return map[int]int{4: 20 + 8, 6: 40 + 8}[family] } // IP and UDP

// TestMTU sends the largest packet that a pod may across nodes, and one that is a byte larger.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐
//	│ a1      │  │ a2      │
//	└────┬────┘  └────┬────┘    fabric of 1500 and of 9000 bytes
//	═════╧════════════╧═════
func TestMTU(t *testing.T) {
	for _, m := range modes() {
		for _, fabric := range []int{1500, 9000} {
			t.Run(fmt.Sprintf("%s/%d", m.name, fabric), func(t *testing.T) {
				t.Parallel()
				c := up(t, setup{mode: m, mtu: fabric, pods: []string{"a"}})
				for _, f := range c.stack.families {
					c.largest("a1", "a2", f, mtuOf(m, fabric))
					_, err := tcp(t.Context(), c.end("a1"), c.end("a2"), c.end("a2").addr(f), fewer(4<<20))
					c.errorf(f, "TCP", err)
				}
			})
		}
	}
}

// largest finds that packets of mtu bytes arrive and that the kernel refuses larger ones.
func (c *cluster) largest(from, to string, family, mtu int) {
	c.t.Helper()
	a, b := c.end(from), c.end(to)
	_, err := udp(c.t.Context(), a, b, b.addr(family), mtu-headers(family), whole(family))
	c.errorf(family, fmt.Sprintf("packet of %d bytes", mtu), err)
	_, err = udp(c.t.Context(), a, b, b.addr(family), mtu+1-headers(family), whole(family))
	if !errors.Is(err, unix.EMSGSIZE) {
		c.t.Errorf("IPv%d packet of %d bytes: %v, want %v", family, mtu+1, err, unix.EMSGSIZE)
	}
}

// TestFragments sends datagrams of 8 KB each way.
//
//	┌─ node1 ─┐  ┌─ node2 ─┐
//	│ a1  b1  │  │ a2      │
//	└────┬────┘  └────┬────┘
//	═════╧═══ world ══╧═════
func TestFragments(t *testing.T) {
	for _, m := range modes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: m})
			for _, f := range c.stack.families {
				for _, pair := range [][2]string{{"a1", "b1"}, {"a1", "a2"}, {"a1", "node1"}, {"a1", "node2"},
					{"node1", "a2"}, {"a1", "world"}} {
					from, to := c.end(pair[0]), c.end(pair[1])
					_, err := udp(t.Context(), from, to, to.addr(f), 8192, fragmented(f))
					c.errorf(f, fmt.Sprintf("8 KB %s→%s", pair[0], pair[1]), err)
					_, err = ping(t.Context(), from, to, to.addr(f), 5000)
					c.errorf(f, fmt.Sprintf("echo of 5000 bytes %s→%s", pair[0], pair[1]), err)
				}
			}
		})
	}
}

// TestRouteMTU makes a route in the middle smaller: the pod is told, and TCP gets through. The MTU is locked, since
// bpf_fib_lookup looks at no other.
//
//	┌─ node1 ───────────────┐  ┌─ node2 ─┐
//	│ a1   route: mtu 1300 ─┼──┼─ a2     │
//	└──────┬────────────────┘  └────┬────┘
//	═══════╧════════════════════════╧═════
func TestRouteMTU(t *testing.T) {
	const small = 1300
	for _, name := range []string{"native", "native-flows", "legacy"} {
		t.Run(name, func(t *testing.T) {
			if name != "legacy" && kernelBefore(5, 12) {
				t.Skip("bpf_fib_lookup tells the route's MTU since kernel 5.12")
			}
			t.Parallel()
			c := up(t, setup{mode: modeNamed(name), pods: []string{"a"}})
			for _, f := range c.stack.families {
				a2 := c.end("a2").addr(f)
				c.ip("node1", "route", "add", netip.PrefixFrom(a2, a2.BitLen()).String(), "via",
					nodeAddr(2, f).String(), "dev", "eth0", "mtu", "lock", fmt.Sprint(small))
				c.narrow("a1", a2, small, []netip.Addr{gateway(1, f), nodeAddr(1, f)})
				_, err := tcp(t.Context(), c.end("a1"), c.end("a2"), a2, 1<<20)
				c.errorf(f, "TCP", err)
			}
		})
	}
}

// TestWorldMTU has a router of the world answer that a masqueraded packet is too big, and one whose time ran out: the
// pod must understand both.
//
//	┌─ node1 ─┐
//	│ a1      │  as node1
//	└────┬────┘
//	═════╧═ world ─── mtu 1400 ─── far
func TestWorldMTU(t *testing.T) {
	for _, m := range masqueradeModes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: m, nodes: 1, pods: []string{"a"}})
			far := c.addFar(1400)
			for _, f := range c.stack.families {
				dst := far.addr(f)
				c.narrow("a1", dst, 1400, []netip.Addr{worldAddr(f)})
				_, err := tcp(t.Context(), c.end("a1"), far, dst, 1<<20)
				c.errorf(f, "TCP", err)
				_, err = udp(t.Context(), c.end("a1"), far, dst, 8192, fragmented(f))
				c.errorf(f, "8 KB", err)
				c.expires("a1", dst, 1, gateway(1, f), nodeAddr(1, f))
				c.expires("a1", dst, 2, worldAddr(f))
			}
		})
	}
}

// narrow sends packets of 1450 bytes from a pod until an ICMP error says which MTU fits, and checks its sender.
func (c *cluster) narrow(pod string, dst netip.Addr, mtu int, by []netip.Addr) {
	c.t.Helper()
	f := family(dst)
	s, err := c.end(pod).dialUDP(c.t.Context(), netip.AddrPort{}, at(dst, 9), whole(f), errorQueue(f))
	if err != nil {
		c.t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Write(make([]byte, 1450-headers(f))); err != nil {
		c.errorf(f, "packet of 1450 bytes", err)
		return
	}
	e, err := readError(s, patience(2*time.Second))
	if err != nil {
		c.t.Errorf("IPv%d %s→%s: no word of the MTU: %v", f, pod, dst, err)
		return
	}
	kind := map[int]int{4: 3, 6: 2}[f] // destination unreachable (RFC 792), packet too big (RFC 4443)
	if e.kind != kind || e.mtu != mtu || !slices.Contains(by, e.from) {
		c.t.Errorf("IPv%d %s→%s: %+v, want type %d, MTU %d, from one of %v", f, pod, dst, e, kind, mtu, by)
	}
	if got, err := pathMTU(s, f); err != nil || got != mtu {
		c.t.Errorf("IPv%d %s→%s: the pod's path MTU is %d, %v; want %d", f, pod, dst, got, err, mtu)
	}
}

// worldAddr is the world's address on the fabric.
func worldAddr(family int) netip.Addr {
	if family == 4 {
		return netip.MustParseAddr("192.168.64.254")
	}
	return netip.MustParseAddr("fd00:64::fffe")
}

// addFar makes a namespace behind the world, joined to it by a link of the MTU.
func (c *cluster) addFar(mtu int) end {
	c.t.Helper()
	world, far := c.World().NetnsName(), c.Name()+"-far"
	addrs := []netip.Addr{netip.MustParseAddr("203.0.113.2"), netip.MustParseAddr("2001:db8:cafe::2")}
	c.command("ip", "netns", "add", far)
	c.command("ip", "-n", world, "link", "add", "far", "mtu", fmt.Sprint(mtu), "type", "veth", "peer", "name", "eth0",
		"mtu", fmt.Sprint(mtu), "netns", far)
	for _, args := range [][]string{
		{world, "addr", "add", "203.0.113.1/24", "dev", "far"}, {world, "addr", "add", "2001:db8:cafe::1/64", "dev",
			"far", "nodad"},
		{far, "addr", "add", "203.0.113.2/24", "dev", "eth0"}, {far, "addr", "add", "2001:db8:cafe::2/64", "dev",
			"eth0", "nodad"},
		{far, "link", "set", "lo", "up"}, {far, "link", "set", "eth0", "up"}, {world, "link", "set", "far", "up"},
		{far, "route", "add", "default", "via", "203.0.113.1"}, {far, "-6", "route", "add", "default", "via",
			"2001:db8:cafe::1"},
	} {
		c.command(append([]string{"ip", "-n"}, args...)...)
	}
	return end{foreign(far), addrs}
}
