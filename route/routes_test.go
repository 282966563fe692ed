package route

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/cluster"
	"myelin/endpoint"
)

func dual(node string) Config {
	return Config{Node: node, IPv4: true, IPv6: true, AutoDirectNodeRoutes: true}
}

func threeNodes() []*cluster.Node {
	return []*cluster.Node{
		clusterNode("n1", []string{"192.168.7.1", "fd07::1"}, []string{"10.7.1.0/24", "fd70:1::/64"}),
		clusterNode("n2", []string{"192.168.7.2", "fd07::2"}, []string{"10.7.2.0/24", "fd70:2::/64"}),
		clusterNode("n3", []string{"192.168.8.3"}, []string{"10.7.3.0/24", "fd70:3::/64"}),
	}
}

// twoNodes is
//
//	n1 eth0 192.168.7.1/24, fd07::1/64 ---- eth0 n2 192.168.7.2/24, fd07::2/64
func twoNodes(t *testing.T) (n1, n2 *node) {
	t.Helper()
	n1, n2 = newNode(t), newNode(t)
	wire(n1, "eth0", n2, "eth0")
	n1.address("eth0", "192.168.7.1/24")
	n1.address("eth0", "fd07::1/64")
	n2.address("eth0", "192.168.7.2/24")
	n2.address("eth0", "fd07::2/64")
	return n1, n2
}

func TestNativeRoutes(t *testing.T) {
	t.Parallel()
	n1, _ := twoNodes(t)
	pod := n1.pod("mye00000001", "10.7.1.5", "fd70:1::5")
	a := n1.start(dual("n1"), threeNodes(), pod)

	n1.want("10.7.1.5/32 dev mye00000001 src 192.168.7.1")
	n1.want("fd70:1::5/128 dev mye00000001 src fd07::1")
	n1.want("10.7.2.0/24 via 192.168.7.2 dev eth0 src 192.168.7.1")
	n1.want("fd70:2::/64 via fd07::2 dev eth0 src fd07::1")
	n1.want("10.7.1.0/24 unreachable")
	n1.want("fd70:1::/64 unreachable")

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	must(t, a.WaitPod(ctx, "mye00000001", pod.Addresses()...))
	for _, address := range pod.Addresses() {
		n, ok, err := n1.kernel.neighbour(pod.LinkIndex, address)
		must(t, err)
		if !ok || n.state != netlink.NUD_PERMANENT || n.mac.String() != pod.PodMAC.String() || n.protocol != Protocol {
			t.Errorf("neighbour %s is %+v", address, n)
		}
	}
	for prefix, want := range map[string]string{
		"10.7.3.0/24": "node n3 192.168.8.3 is not on-link on eth0: autoDirectNodeRoutes needs one L2 segment",
		"fd70:3::/64": "node n3 has no IPv6 address",
	} {
		if problem := a.errorOf(prefix); !strings.Contains(problem, want) {
			t.Errorf("%s: error %q lacks %q", prefix, problem, want)
		}
	}
	eventually(t, "gateway addresses on lo", func() bool {
		list, err := n1.kernel.AddrList(n1.link("lo"), netlink.FAMILY_ALL)
		must(t, err)
		var have []string
		for _, address := range list {
			have = append(have, address.IPNet.String())
		}
		text := strings.Join(have, " ")
		return strings.Contains(text, "10.7.1.1/32") && strings.Contains(text, "fd70:1::1/128")
	})
}

func TestSingleFamily(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		config       Config
		want, absent []string
	}{
		{
			"IPv4", Config{Node: "n1", IPv4: true, AutoDirectNodeRoutes: true},
			[]string{"10.7.2.0/24 via 192.168.7.2 dev eth0 src 192.168.7.1"}, []string{"fd70:2::/64", "fd70:1::/64"},
		},
		{
			"IPv6", Config{Node: "n1", IPv6: true, AutoDirectNodeRoutes: true},
			[]string{"fd70:2::/64 via fd07::2 dev eth0 src fd07::1"}, []string{"10.7.2.0/24", "10.7.1.0/24"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n1, _ := twoNodes(t)
			n1.start(c.config, threeNodes())
			for _, text := range c.want {
				n1.want(text)
			}
			for _, prefix := range c.absent {
				if have := n1.routes(prefix); len(have) > 0 {
					t.Errorf("routes of a family that is off: %v", have)
				}
			}
		})
	}
}

// A killed agent leaves everything; the next one, with another configuration,
// keeps what is still wanted and removes the rest.
func TestPrune(t *testing.T) {
	t.Parallel()
	n1, _ := twoNodes(t)
	kept, left := n1.pod("mye00000001", "10.7.1.5", "fd70:1::5"), n1.pod("mye00000002", "10.7.1.6", "fd70:1::6")
	a := n1.start(dual("n1"), threeNodes(), kept, left)
	n1.want("10.7.1.6/32 dev mye00000002 src 192.168.7.1")
	n1.want("fd70:1::6/128 dev mye00000002 src fd07::1")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	must(t, a.WaitPod(ctx, "mye00000002", left.Addresses()...))
	a.stop()
	foreign := &netlink.Route{
		LinkIndex: n1.link("eth0").Attrs().Index, Dst: ipNet(netip.MustParsePrefix("10.99.0.0/16")),
		Protocol: unix.RTPROT_STATIC,
		Gw:       net.ParseIP("192.168.7.9"),
	}
	must(t, n1.kernel.RouteAdd(foreign))

	c := dual("n1")
	c.AutoDirectNodeRoutes = false
	rows := threeNodes()
	rows[0].PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.7.1.0/25")}
	b := n1.start(c, rows, kept)
	n1.want("10.7.1.0/25 unreachable")
	for _, prefix := range []string{
		"10.7.1.6/32", "fd70:1::6/128", "10.7.2.0/24", "fd70:2::/64", "10.7.1.0/24", "fd70:1::/64",
	} {
		n1.wantNone(prefix)
	}
	n1.want("10.7.1.5/32 dev mye00000001 src 192.168.7.1")
	n1.want("10.99.0.0/16 via 192.168.7.9 dev eth0")
	eventually(t, "neighbours and addresses of the first agent are pruned", func() bool {
		_, have, err := n1.kernel.neighbour(left.LinkIndex, left.IPv4)
		must(t, err)
		list, err := n1.kernel.AddrList(n1.link("lo"), netlink.FAMILY_V6)
		must(t, err)
		return !have && len(list) == 1
	})
	b.stop()
}

func TestRouteIsPutBack(t *testing.T) {
	t.Parallel()
	n1, _ := twoNodes(t)
	pod := n1.pod("mye00000001", "10.7.1.5", "fd70:1::5")
	n1.start(dual("n1"), threeNodes(), pod)
	const v4, v6 = "10.7.2.0/24 via 192.168.7.2 dev eth0 src 192.168.7.1", "fd70:2::/64 via fd07::2 dev eth0 src " +
		"fd07::1"
	n1.want(v4)
	n1.want(v6)
	for _, prefix := range []string{"10.7.2.0/24", "fd70:2::/64"} {
		for _, r := range n1.routes(prefix) {
			must(t, n1.kernel.RouteDel(&r))
		}
	}
	n1.want(v4)
	n1.want(v6)

	n1.down("eth0")
	n1.wantNone("10.7.2.0/24")
	n1.up("eth0")
	n1.address("eth0", "fd07::1/64") // the kernel drops IPv6 addresses of a device that goes down
	n1.want(v4)
	n1.want(v6)

	n1.down("mye00000001")
	n1.wantNone("10.7.1.5/32")
	n1.up("mye00000001")
	n1.want("10.7.1.5/32 dev mye00000001 src 192.168.7.1")
}

// A route of another program in the place of ours is reported, not replaced, and
// ours comes when the other one goes and the row is tried again.
func TestForeignRoute(t *testing.T) {
	t.Parallel()
	n1, _ := twoNodes(t)
	foreign := &netlink.Route{
		LinkIndex: n1.link("eth0").Attrs().Index, Dst: ipNet(netip.MustParsePrefix("10.7.2.0/24")),
		Protocol: unix.RTPROT_STATIC,
		Gw:       net.ParseIP("192.168.7.9"),
	}
	must(t, n1.kernel.RouteAdd(foreign))
	a := n1.start(dual("n1"), threeNodes())
	if problem := a.errorOf("10.7.2.0/24"); !strings.Contains(problem, "another program (protocol static)") {
		t.Errorf("error %q", problem)
	}
	n1.want("10.7.2.0/24 via 192.168.7.9 dev eth0")
	must(t, n1.kernel.RouteDel(foreign))
	n1.want("10.7.2.0/24 via 192.168.7.2 dev eth0 src 192.168.7.1")
}

func TestEndpointGone(t *testing.T) {
	t.Parallel()
	n1, _ := twoNodes(t)
	pod := n1.pod("mye00000001", "10.7.1.5", "fd70:1::5")
	a := n1.start(dual("n1"), threeNodes(), pod)
	n1.want("fd70:1::5/128 dev mye00000001 src fd07::1")
	txn := a.DB.WriteTxn(a.endpoints)
	_, _, err := a.endpoints.Delete(txn, pod)
	must(t, err)
	txn.Commit()
	n1.wantNone("10.7.1.5/32")
	n1.wantNone("fd70:1::5/128")
	eventually(t, "no neighbour", func() bool {
		_, ok, err := n1.kernel.neighbour(pod.LinkIndex, pod.IPv4)
		must(t, err)
		return !ok
	})
}

func TestSysctls(t *testing.T) {
	t.Parallel()
	n1, _ := twoNodes(t)
	read := func(name string) (value string) {
		must(t, n1.kernel.Do(func() error {
			data, err := os.ReadFile("/proc/sys/" + name)
			value = strings.TrimSpace(string(data))
			return err
		}))
		return value
	}
	must(t, n1.kernel.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/conf/eth0/rp_filter", []byte("1"), 0)
	}))
	pod := n1.pod("mye00000001", "10.7.1.5")
	c := dual("n1")
	c.OwnSource = true
	a := n1.start(c, threeNodes(), pod)
	for name, want := range map[string]string{
		"net/ipv4/conf/mye00000001/accept_local": "1", "net/ipv4/conf/eth0/accept_local": "0",
		"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1", "net/ipv4/conf/all/rp_filter": "0",
		"net/ipv4/conf/eth0/rp_filter": "2", "net/ipv4/conf/mye00000001/rp_filter": "0",
		"net/ipv6/conf/eth0/accept_ra": "2",
	} {
		eventually(t, name+" is "+want, func() bool { return read(name) == want })
	}
	eventually(t, "the row tells what was there before", func() bool {
		row, _, ok := a.Sysctls.Get(a.DB.ReadTxn(), sysctlByName("net/ipv4/conf/eth0/rp_filter"))
		return ok && row.Was == "1" && row.Have == "2"
	})
}

func TestSysctlThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	ops := &sysctlOps{kernel: &Kernel{}, root: t.TempDir()}
	err := ops.Update(t.Context(), nil, 0, &Sysctl{Name: "net/ipv4/ip_forward", Want: "1"})
	if err == nil || !strings.HasPrefix(err.Error(), "set net/ipv4/ip_forward to 1: ") {
		t.Errorf("error %v", err)
	}
	if err := ops.Update(t.Context(), nil, 0, &Sysctl{Name: "net/ipv4/conf/gone0/rp_filter", Want: "0"}); err != nil {
		t.Errorf("a device that is gone: %v", err)
	}
}

func TestNextHops(t *testing.T) {
	t.Parallel()
	n1, n2 := twoNodes(t)
	n1.defaultVia("eth0", "192.168.7.2")
	a := n1.start(dual("n1"), threeNodes())
	mac := n2.link("eth0").Attrs().HardwareAddr.String()
	manages := kernelAtLeast(t, 5, 16)
	for _, address := range []string{"192.168.7.2", "fd07::2"} {
		eventually(t, address+" is resolved without traffic", func() bool {
			n, ok, err := n1.kernel.neighbour(n1.link("eth0").Attrs().Index, netip.MustParseAddr(address))
			must(t, err)
			return ok && n.mac.String() == mac && (n.extended&netlink.NTF_EXT_MANAGED != 0 || !manages)
		})
	}
	eventually(t, "the rows tell", func() bool {
		must(t, a.look())
		resolved := 0
		for row := range a.NextHops.All(a.DB.ReadTxn()) {
			if row.Managed == manages && row.MAC.String() == mac && row.State != "failed" {
				resolved++
			}
		}
		return resolved == 2
	})
}

func kernelAtLeast(t *testing.T, major, minor int) bool {
	t.Helper()
	var name unix.Utsname
	must(t, unix.Uname(&name))
	var haveMajor, haveMinor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &haveMajor, &haveMinor); err != nil {
		t.Fatal(err)
	}
	return haveMajor > major || haveMajor == major && haveMinor >= minor
}

func TestNextHopOfTheOperator(t *testing.T) {
	t.Parallel()
	n1, _ := twoNodes(t)
	static := &netlink.Neigh{
		LinkIndex: n1.link("eth0").Attrs().Index, IP: net.ParseIP("192.168.7.2"), State: netlink.NUD_PERMANENT,
		HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9},
	}
	must(t, n1.kernel.NeighSet(static))
	a := n1.start(dual("n1"), threeNodes())
	eventually(t, "next hops are done", func() bool {
		done := 0
		for row := range a.NextHops.All(a.DB.ReadTxn()) {
			if row.Status.Kind.String() == "Done" {
				done++
			}
		}
		return done == 2
	})
	n, ok, err := n1.kernel.neighbour(static.LinkIndex, netip.MustParseAddr("192.168.7.2"))
	must(t, err)
	if !ok || n.state != netlink.NUD_PERMANENT || n.mac.String() != static.HardwareAddr.String() {
		t.Errorf("a permanent neighbour of the operator became %+v", n)
	}
}

func TestTunnelRoutes(t *testing.T) {
	t.Parallel()
	n1, _ := twoNodes(t)
	c := dual("n1")
	c.Tunnel = "myelin_vxlan"
	n1.start(c, threeNodes())
	n1.want("10.7.1.0/24 unreachable")
	must(t, n1.kernel.LinkAdd(&netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: "myelin_vxlan", MTU: 1450}, FlowBased: true, Port: 8472,
	}))
	n1.up("myelin_vxlan")
	n1.want("10.7.2.0/24 dev myelin_vxlan src 192.168.7.1 mtu 1450")
	n1.want("fd70:2::/64 dev myelin_vxlan src fd07::1 mtu 1450")
	n1.want("10.7.3.0/24 dev myelin_vxlan src 192.168.7.1 mtu 1450")
}

// TestUnguarded: to a pod that the datapath does not have yet no route leads, for the stack would bring it packets that
// no policy was applied to.
func TestUnguarded(t *testing.T) {
	t.Parallel()
	n1, _ := twoNodes(t)
	ready, pod := n1.pod("mye00000001", "10.7.1.5"), n1.pod("mye00000002", "10.7.1.6", "fd70:1::6")
	pod.State, pod.Status = endpoint.StateCreating, reconciler.StatusPending()
	a := n1.start(dual("n1"), threeNodes(), ready, pod)
	n1.want("10.7.1.5/32 dev mye00000001 src 192.168.7.1")
	for _, prefix := range []string{"10.7.1.6/32", "fd70:1::6/128"} {
		if list := n1.routes(prefix); len(list) > 0 {
			t.Errorf("there is a route already: %v", list)
		}
	}
	guarded := pod.Clone()
	guarded.Status = reconciler.StatusDone()
	a.put(nil, guarded)
	n1.want("10.7.1.6/32 dev mye00000002 src 192.168.7.1")
	n1.want("fd70:1::6/128 dev mye00000002 src fd07::1")
}
