package labtest

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"myelin/status"
)

// report is what status of node1 says, whatever its exit status; an error while the agent loads its programs anew.
func (c *cluster) report() (*status.Report, error) {
	out, err := c.cli("node1", "status", "-o", "json")
	r := &status.Report{}
	if bad := json.Unmarshal([]byte(out), r); bad != nil {
		return r, fmt.Errorf("%w: %w", bad, err)
	}
	return r, nil
}

// says waits until a feature of the status of node1 has a state, and this in its text or problems.
func (c *cluster) says(feature string, state status.State, want string) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("%s is %s: %s", feature, state, want), 10*time.Second, func() error {
		r, err := c.report()
		if err != nil {
			return err
		}
		f := r.Feature(feature)
		if f == nil || f.State != state || !strings.Contains(f.Chosen+"\n"+strings.Join(f.Problems, "\n"), want) {
			return fmt.Errorf("it is %+v", f)
		}
		return nil
	})
}

// soonWorks waits until the ways work, each family by UDP, and arrive from where they should.
func (c *cluster) soonWorks(ways ...way) {
	c.t.Helper()
	for _, w := range ways {
		for _, f := range c.stack.families {
			from, to := c.end(w.from), c.end(w.to)
			eventually(c.t, fmt.Sprintf("IPv%d %s→%s", f, w.from, w.to), 10*time.Second, func() error {
				seen, err := c.once(from, to, to.addr(f))
				if want := c.end(w.as).addr(f); err != nil || seen != want {
					return fmt.Errorf("seen from %s, want %s: %w", seen, want, errOr(err, "another address"))
				}
				return nil
			})
		}
	}
}

// TestPodCIDRs changes the podCIDRs of a node under its pods: they keep addresses, gateway and connectivity, new
// ones come from the new podCIDRs. What another node has is refused, also by the next agent; what vanishes is given out
// no more. When all pods are gone, the gateway follows.
//
//	┌─ node1: 10.0.1.0/24 → 10.0.7.0/24 → … ─┐  ┌─ node2 ─┐
//	│ a1 10.0.1.2   c1 10.0.7.2              │  │ a2      │
//	└────┬───────────────────────────────────┘  └────┬────┘
//	═════╧═ world ═══════════════════════════════════╧═════
func TestPodCIDRs(t *testing.T) {
	for _, m := range manifestModes() {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: m, pods: []string{"a"}})
			r := c.runtime("node1")
			path, yaml := c.nodeFile("node1")
			both := []way{{"c1", "a1", "c1"}, {"a1", "c1", "a1"}, {"c1", "a2", "c1"}, {"a2", "c1", "a2"},
				{"c1", "world", "node1"}, {"a1", "world", "node1"}}
			c.rewrite(path, withPodCIDRs(yaml, "10.0.7.0/24", "fd00:10:0:7::/64"))
			c.says("IPAM", status.Fallback, "10.0.1.")
			c.newPodWorks("c1", both...)
			c.within("c1", "10.0.7.0/24", "fd00:10:0:7::/64")
			both = append(both, way{"a1", "a2", "a1"}, way{"a2", "a1", "a2"}, way{"node2", "a1", "node2"})
			c.soonWorks(both...)
			c.newNeighbours("a1", "c1")
			for _, w := range both {
				for _, f := range c.stack.families {
					c.try(w, f)
				}
			}

			c.rewrite(path, withPodCIDRs(yaml, "10.0.2.128/25", "fd00:10:0:7::/64"))
			conflict := "podCIDR 10.0.2.128/25 of Node node1 overlaps 10.0.2.0/24 of Node node2: " +
				"10.0.7.0/24 fd00:10:0:7::/64 stays in force"
			c.says("IPAM", status.Broken, conflict)
			check(t, c.Node("node1").RestartAgent(t.Context()))
			c.says("IPAM", status.Broken, conflict)
			c.newNeighbours("a1", "c1")
			c.soonWorks(way{"c1", "a1", "c1"}, way{"a1", "c1", "a1"}, way{"a1", "world", "node1"})
			c.newPodWorks("d1", way{"d1", "a1", "d1"})
			c.within("d1", "10.0.7.0/24", "fd00:10:0:7::/64")
			c.rewrite(path, withPodCIDRs(yaml))
			c.says("IPAM", status.Broken, "Node node1 has no podCIDR any more")
			s, err := r.create(1)
			check(t, err)
			if err := r.add(t.Context(), s); err == nil || !strings.Contains(err.Error(), "has no podCIDR any more") {
				t.Errorf("ADD without a podCIDR: %v", err)
			}
			check(t, s.remove())
			wantCNI(t, "STATUS", r.cni.GetStatusNetworkList(t.Context(), r.list), types.ErrPluginNotAvailable,
				"has no podCIDR any more")
			c.soonWorks(way{"c1", "a1", "c1"}, way{"a1", "world", "node1"})

			c.rewrite(path, withPodCIDRs(yaml, "10.0.7.0/24", "fd00:10:0:7::/64", "10.0.1.0/24", "fd00:10:0:1::/64"))
			c.says("IPAM", status.OK, "10.0.1.0/24")
			c.soonWorks(way{"a2", "a1", "a2"}, way{"a1", "a2", "a1"})
			c.rewrite(path, withPodCIDRs(yaml, "10.0.7.0/24", "fd00:10:0:7::/64"))
			c.says("IPAM", status.Fallback, "10.0.1.")
			for _, name := range []string{"a1", "c1", "d1"} {
				check(t, c.DeletePod(t.Context(), "default/"+name))
			}
			c.says("Myelin", status.OK, "reloaded once")
			c.newPodWorks("e1", way{"e1", "a2", "e1"}, way{"a2", "e1", "a2"}, way{"e1", "world", "node1"})
			routes, err := c.Pod("e1").Exec(t.Context(), "sh", "-c", "ip -4 route; ip -6 route; ip neigh")
			check(t, err)
			contains(t, "routes of e1", routes, "default via 10.0.7.1", "default via fd00:10:0:7::1")
		})
	}
}

// within: the pod's addresses are in these prefixes.
func (c *cluster) within(pod string, prefixes ...string) {
	c.t.Helper()
	for _, a := range c.end(pod).addrs {
		found := false
		for _, p := range prefixes {
			found = found || netip.MustParsePrefix(p).Contains(a)
		}
		if !found {
			c.t.Errorf("%s has %s, which is in none of %v", pod, a, prefixes)
		}
	}
}

// newNeighbours makes pods ask for their gateway again.
func (c *cluster) newNeighbours(pods ...string) {
	c.t.Helper()
	for _, name := range pods {
		if _, err := c.Pod(name).Exec(c.t.Context(), "ip", "neighbour", "flush", "dev", "eth0"); err != nil {
			c.t.Fatal(err)
		}
	}
}

// TestWireReplaced deletes the device to other nodes and makes another one of the same name: another index, and for a
// moment no address. Nothing but that moment is lost.
func TestWireReplaced(t *testing.T) {
	for _, name := range []string{"native", "legacy", "vxlan", "vxlan6"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: modeNamed(name), pods: []string{"a"}})
			pid := c.Node("node1").AgentProcess().PID
			before := c.eth0("node1")
			c.replug("node1", before.HardwareAddr)
			if after := c.eth0("node1"); after.Index == before.Index {
				t.Fatalf("the device has the index that it had: %d", after.Index)
			}
			c.soonWorks(way{"a1", "a2", "a1"}, way{"a2", "a1", "a2"}, way{"a1", "world", "node1"})
			c.says("Devices", status.OK, "eth0")
			c.newPodWorks("c1", way{"c1", "a2", "c1"}, way{"a2", "c1", "a2"}, way{"c1", "world", "node1"})
			if now := c.Node("node1").AgentProcess(); now.PID != pid || !now.Alive() {
				t.Errorf("agent %d is gone", pid)
			}
		})
	}
}

// eth0 is the wire of a node.
func (c *cluster) eth0(node string) (i *net.Interface) {
	c.t.Helper()
	check(c.t, c.Node(node).Do(func() (err error) {
		i, err = net.InterfaceByName("eth0")
		return err
	}))
	return i
}

// replug makes eth0 of a node anew, with what it had.
func (c *cluster) replug(node string, mac net.HardwareAddr) {
	c.t.Helper()
	netns := c.Node(node).NetnsName()
	c.command("ip", "-n", netns, "link", "delete", "eth0")
	c.command("ip", "-n", c.Name()+"-fabric", "link", "add", "again", "master", "fabric", "up", "type", "veth",
		"peer", "name", "eth0", "netns", netns, "address", mac.String())
	c.ip(node, "link", "set", "eth0", "up")
	for _, a := range c.Node(node).Addrs() {
		c.address(node, a)
	}
}

// address gives eth0 of a node an address and the default route of its family.
func (c *cluster) address(node string, a netip.Addr) {
	c.t.Helper()
	bits, flags, gateway := 24, []string{}, "192.168.64.254"
	if a.Is6() {
		bits, flags, gateway = 64, []string{"nodad"}, "fd00:64::fffe"
	}
	c.ip(node, append([]string{"address", "add", netip.PrefixFrom(a, bits).String(), "dev", "eth0"}, flags...)...)
	c.ip(node, "route", "replace", "default", "via", gateway)
}

// TestTunnelReplaced deletes the tunnel's device. The agent makes another one and loads the programs anew, which know
// it by its index: once, in the same process.
func TestTunnelReplaced(t *testing.T) {
	for _, name := range []string{"vxlan", "vxlan6"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: modeNamed(name)})
			pid := c.Node("node1").AgentProcess().PID
			for i, times := range []string{"reloaded once", "reloaded 2 times"} {
				c.ip("node1", "link", "delete", "myelin_vxlan")
				c.says("Myelin", status.OK, times+", last at ")
				c.says("Routing", status.OK, "Tunnel")
				c.soonWorks(way{"a1", "a2", "a1"}, way{"a2", "a1", "a2"}, way{"a1", "b1", "a1"},
					way{"a1", "world", "node1"})
				c.newPodWorks(fmt.Sprintf("%c1", 'c'+i), way{"a2", fmt.Sprintf("%c1", 'c'+i), "a2"})
			}
			time.Sleep(patience(3 * time.Second)) // longer than between two reloads
			c.says("Myelin", status.OK, "reloaded 2 times")
			if now := c.Node("node1").AgentProcess(); now.PID != pid || !now.Alive() {
				t.Errorf("agent %d is gone", pid)
			}
			_, metrics := c.health(t, "node1", "/metrics")
			contains(t, "/metrics", metrics, "myelin_reloads_total 2\n")
		})
	}
}

// TestNodeAddress gives a node other addresses: wires, tunnel and masquerade follow on both nodes.
func TestNodeAddress(t *testing.T) {
	for _, name := range []string{"native", "legacy", "vxlan", "vxlan6"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: modeNamed(name), pods: []string{"a"}})
			path, yaml := c.nodeFile("node1")
			old := c.Node("node1").Addrs()
			var next []netip.Addr
			for _, a := range old {
				b := netip.MustParseAddr(map[bool]string{true: "192.168.64.77", false: "fd00:64::77"}[a.Is4()])
				next = append(next, b)
				yaml = strings.ReplaceAll(yaml, `"`+a.String()+`"`, `"`+b.String()+`"`)
				c.address("node1", b)
			}
			c.rewrite(path, yaml)
			for i, a := range old {
				bits := map[bool]int{true: 24, false: 64}[a.Is4()]
				c.ip("node1", "address", "delete", netip.PrefixFrom(a, bits).String(), "dev", "eth0")
				c.address2("node1", next[i])
			}
			c.soonWorks(way{"a1", "a2", "a1"}, way{"a2", "a1", "a2"})
			a1, world := c.end("a1"), c.end("world")
			for _, f := range c.stack.families {
				eventually(t, "masquerade follows", 10*time.Second, func() error {
					seen, err := c.once(a1, world, world.addr(f))
					if want := (end{addrs: next}).addr(f); err != nil || seen != want {
						return fmt.Errorf("seen from %s, want %s: %w", seen, want, errOr(err, "another address"))
					}
					return nil
				})
			}
		})
	}
}

// address2 gives eth0 an address again that the kernel may have deleted with the first one of its subnet.
func (c *cluster) address2(node string, a netip.Addr) {
	c.t.Helper()
	if !strings.Contains(c.ip(node, "-o", "address", "show", "dev", "eth0"), " "+a.String()+"/") {
		c.address(node, a)
	}
}
