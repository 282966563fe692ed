package labtest

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"

	"myelin/bpf"
)

// wireKind is how node2 hangs on the fabric, in the place of one veth.
type wireKind struct {
	values map[string]any
	needs  func() string // why this kernel or machine can't; "": it can
	plug   func(*cluster)
	status string // node2's status of XDP
	since  [2]int // the first kernel with it; "tc on" before
	tc     bool   // XDP forwards nothing
}

func wireKinds() map[string]wireKind {
	return map[string]wireKind{
		"virtio": {needs: noCards, plug: (*cluster).plugCard, status: "native on eth0"},
		"bond": {needs: func() string {
			return noType("type bond")
		}, plug: (*cluster).plugBond, status: "native on eth0", since: [2]int{5, 15}},
		"VLAN alone": {needs: func() string { return noType("link probe0 type vlan id 5") },
			plug: (*cluster).plugVLAN, status: "native on eth0", since: [2]int{6, 3}},
		"VLAN": {
			values: map[string]any{"devices": []string{"eth0", "trunk0"}}, needs: func() string {
				return noType("link probe0 type vlan id 5")
			},
			plug: (*cluster).plugVLAN, status: "native on eth0, native on trunk0", since: [2]int{6, 3},
		},
		"TUN": {values: l3Values(), needs: noTUN, plug: (*cluster).plugTUN, status: "native on eth0, tc on l30",
			since: [2]int{6, 3}, tc: true},
		"two": {
			values: map[string]any{"devices": []string{"eth0", "eth1"}, "autoDirectNodeRoutes": false},
			plug:   (*cluster).plugSecond, status: "native on eth0, native on eth1", since: [2]int{6, 3},
		},
	}
}

// TestWires is what the world sends through node2, which has wires of other kinds than one veth, and XDP where these
// can.
//
//	virtio  eth0, a card of the VM ══ the other card, a port of the fabric
//	bond    eth0 of port0 and port1 ══ two ports of the fabric
//	VLAN    eth0 on trunk0, which is a wire, too, or alone ══ a port of the fabric, tagged
//	two     eth0 ══ fabric, where the world is; eth1 ══ eth1 of node1
//	TUN     eth0 ══ fabric, where the world is; l30 ══ l30 of node1, without a link-layer header
func TestWires(t *testing.T) {
	for name, k := range wireKinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if k.needs != nil {
				if why := k.needs(); why != "" {
					t.Skip(why)
				}
			}
			values := map[string]any{"loadBalancer.acceleration": "native"}
			maps.Copy(values, k.values)
			c := outside(t, modeNamed("native"), values, k.plug)
			native := !kernelBefore(k.since[0], k.since[1])
			if !native {
				k.status = "tc on eth0"
			}
			c.accelerated("node2", k.status)
			before := c.outcomeAt("node2", bpf.DatapathHookHOOK_FROM_WIRE_XDP, bpf.DatapathOutcomeFORWARD_WIRE)
			for _, f := range c.stack.families {
				c.stickyOutside(f)
				c.bulk(f)
			}
			n := c.outcomeAt("node2", bpf.DatapathHookHOOK_FROM_WIRE_XDP, bpf.DatapathOutcomeFORWARD_WIRE) - before
			if forwards := native && !k.tc; forwards != (n > 100) {
				t.Errorf("XDP of node2 sent %d packets on; whether it is to: %v", n, forwards)
			}
		})
	}
}

// noType says why the kernel makes no such device, if it doesn't: it tries, in a namespace that lasts as long.
func noType(args string) string {
	out, err := exec.Command("unshare", "--net", "sh", "-c",
		"ip link add probe0 type veth && ip link add name probe1 "+args).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("can't make a device %s: %v: %s", args, err, out)
	}
	return ""
}

// cards are the names of the VM's own network cards.
func cards() (names []string) {
	drivers, _ := filepath.Glob("/sys/class/net/*/device/driver")
	for _, d := range drivers {
		if to, err := os.Readlink(d); err == nil && filepath.Base(to) == "virtio_net" {
			names = append(names, strings.Split(d, "/")[4])
		}
	}
	return names
}

func noCards() string {
	if os.Getenv("IN_VM") == "" || len(cards()) < 2 {
		return "needs two cards that are joined: test/vm/vm.sh run --nics"
	}
	return ""
}

func (c *cluster) fabric() string { return c.Name() + "-fabric" }

// configure gives eth0 of node2, which was made anew, what the one before it had.
func (c *cluster) configure(mac string) {
	c.t.Helper()
	c.ip("node2", "link", "set", "eth0", "address", mac)
	c.ip("node2", "link", "set", "eth0", "up")
	for _, a := range c.Node("node2").Addrs() {
		c.address("node2", a)
	}
}

func (c *cluster) plugCard() {
	c.t.Helper()
	mac, list := c.eth0("node2").HardwareAddr.String(), cards()
	c.ip("node2", "link", "delete", "eth0")
	c.command("ip", "link", "set", list[0], "netns", c.fabric())
	c.command("ip", "-n", c.fabric(), "link", "set", list[0], "master", "fabric", "up")
	c.command("ip", "link", "set", list[1], "netns", c.Node("node2").NetnsName(), "name", "eth0")
	c.configure(mac)
}

// plugBond gives the ports' other ends XDP programs, without which frames that leave by the port they came in by are
// not received there at once.
func (c *cluster) plugBond() {
	c.t.Helper()
	mac := c.eth0("node2").HardwareAddr.String()
	c.ip("node2", "link", "delete", "eth0")
	c.ip("node2", "link", "add", "eth0", "address", mac, "type", "bond", "mode", "active-backup", "miimon", "100")
	for _, port := range []string{"port0", "port1"} {
		c.command("ip", "-n", c.fabric(), "link", "add", port, "master", "fabric", "up", "type", "veth", "peer", "name",
			port, "netns", c.Node("node2").NetnsName())
		c.takeFrames(port)
		c.ethtool("node2", port, "tx", "off")
		c.ip("node2", "link", "set", port, "master", "eth0")
	}
	c.configure(mac)
}

// takeFrames attaches a program that passes all packets on to a port of the fabric.
func (c *cluster) takeFrames(port string) {
	c.t.Helper()
	check(c.t, rlimit.RemoveMemlock())
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	check(c.t, err)
	defer program.Close()
	check(c.t, foreign(c.fabric()).Do(func() error {
		l, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		x, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: l.Attrs().Index,
			Flags: link.XDPDriverMode})
		if err == nil {
			c.t.Cleanup(func() { x.Close() })
		}
		return err
	}))
}

func (c *cluster) plugVLAN() {
	c.t.Helper()
	mac := c.eth0("node2").HardwareAddr.String()
	c.command("ip", "-n", c.fabric(), "link", "set", "node2", "nomaster")
	c.command("ip", "-n", c.fabric(), "link", "add", "link", "node2", "name", "tagged", "master", "fabric", "up",
		"type", "vlan", "id", "5")
	c.command("ip", "netns", "exec", c.fabric(), "ethtool", "-K", "node2", "gro", "on", "tx", "off", "txvlan", "off")
	c.ip("node2", "address", "flush", "dev", "eth0")
	c.ip("node2", "link", "set", "eth0", "down")
	c.ip("node2", "link", "set", "eth0", "name", "trunk0")
	c.ip("node2", "link", "set", "trunk0", "up")
	c.ip("node2", "link", "add", "link", "trunk0", "name", "eth0", "type", "vlan", "id", "5")
	c.configure(mac)
}

// plugSecond joins the nodes directly, too: the pods of each are behind that wire for the other.
func (c *cluster) plugSecond() {
	c.t.Helper()
	netns := []string{c.Node("node1").NetnsName(), c.Node("node2").NetnsName()}
	c.command("ip", "-n", netns[0], "link", "add", "eth1", "type", "veth", "peer", "name", "eth1", "netns", netns[1])
	for i, node := range []string{"node1", "node2"} {
		c.ethtool(node, "eth1", "gro", "on", "tx", "off")
		c.ip(node, "link", "set", "eth1", "up")
		c.ip(node, "address", "add", fmt.Sprintf("192.168.65.%d/24", i+1), "dev", "eth1")
		c.ip(node, "address", "add", fmt.Sprintf("fd00:65::%d/64", i+1), "dev", "eth1", "nodad")
	}
	for i, node := range []string{"node1", "node2"} {
		other := 2 - i
		for _, via := range []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 65, byte(other)}),
			netip.MustParseAddr(fmt.Sprintf("fd00:65::%d", other))} {
			to := fmt.Sprintf("10.0.%d.0/24", other)
			if via.Is6() {
				to = fmt.Sprintf("fd00:10:0:%d::/64", other)
			}
			c.ip(node, "route", "add", to, "via", via.String(), "dev", "eth1")
		}
	}
}
