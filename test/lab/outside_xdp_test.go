package labtest

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"myelin/bpf"
)

// plainLinks makes virtual links like wires to XDP: packets bring their checksums, also those that the fabric merged
// and cuts again, and what a driver sends is received at the other end.
func (c *cluster) plainLinks(pods ...string) {
	c.t.Helper()
	for _, port := range c.ports() {
		c.command("ip", "netns", "exec", c.fabric(), "ethtool", "-K", port, "gro", "on", "tx", "off")
	}
	for _, name := range append(pods, "world", "node1", "node2") {
		c.ethtool(name, "eth0", "tx", "off")
	}
}

func (c *cluster) ethtool(name, device string, options ...string) {
	c.t.Helper()
	p, err := c.Find(name)
	check(c.t, err)
	if out, err := p.Exec(c.t.Context(), append([]string{"ethtool", "-K", device}, options...)...); err != nil {
		c.t.Fatal(err, out)
	}
}

// ports are the devices of the fabric's bridge.
func (c *cluster) ports() (names []string) {
	c.t.Helper()
	check(c.t, foreign(c.fabric()).Do(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if l.Attrs().MasterIndex != 0 {
				names = append(names, l.Attrs().Name)
			}
		}
		return err
	}))
	return names
}

// accelerated waits until XDP is on a node's devices as its status must say.
func (c *cluster) accelerated(node, want string) {
	c.t.Helper()
	eventually(c.t, "XDP of "+node, time.Minute, func() error {
		out, err := c.Node(node).Exec(c.t.Context(), "myelin", "status")
		if err != nil { // whatever else is broken there, as on old kernels
			out = err.Error()
		}
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			return errors.New("no " + want + " in\n" + out)
		}
		return nil
	})
}

// TestOutsideByXDP is TestOutside where XDP sends on what only passes through a node: in the driver, which at first
// finds no peer at the other end of its veth, or behind it.
func TestOutsideByXDP(t *testing.T) {
	if _, err := exec.LookPath("ethtool"); err != nil {
		t.Fatal("needs ethtool: scripts/deps.sh test")
	}
	for acceleration, status := range map[string]string{"native": "native on eth0", "testing-only": "generic on eth0"} {
		t.Run(acceleration, func(t *testing.T) {
			t.Parallel()
			c := outside(t, modeNamed("native"), map[string]any{"loadBalancer.acceleration": acceleration,
				"loadBalancer.algorithm": "maglev"})
			if acceleration == "native" && kernelBefore(6, 3) {
				status = "its other end takes frames of XDP is not known"
			}
			c.accelerated("node1", status)
			c.accelerated("node2", status)
			before := c.outcomeAt("node2", bpf.DatapathHookHOOK_FROM_WIRE_XDP, bpf.DatapathOutcomeFORWARD_WIRE)
			for _, f := range c.stack.families {
				c.keptAndHidden(f)
				c.emptyOutside(f)
				c.stickyOutside(f)
				c.bulk(f)
			}
			n := c.outcomeAt("node2", bpf.DatapathHookHOOK_FROM_WIRE_XDP, bpf.DatapathOutcomeFORWARD_WIRE) - before
			if n < 1000 && !strings.Contains(status, "not known") {
				t.Errorf("XDP of node2 sent %d packets on, want most of some megabytes", n)
			}
		})
	}
}

// TestDirectByXDP is TestDirect where XDP of node2 gives packets their options and outer headers.
func TestDirectByXDP(t *testing.T) {
	for _, dispatch := range []string{"opt", "ipip", "geneve"} {
		t.Run(dispatch, func(t *testing.T) {
			t.Parallel()
			c := outside(t, modeNamed("native"), map[string]any{"loadBalancer.acceleration": "testing-only",
				"loadBalancer.mode": "dsr", "loadBalancer.dsrDispatch": dispatch})
			c.accelerated("node1", "generic on eth0")
			c.accelerated("node2", "generic on eth0")
			before := c.outcomeAt("node2", bpf.DatapathHookHOOK_FROM_WIRE_XDP, bpf.DatapathOutcomeFORWARD_WIRE)
			c.answersDirectly()
			n := c.outcomeAt("node2", bpf.DatapathHookHOOK_FROM_WIRE_XDP, bpf.DatapathOutcomeFORWARD_WIRE) - before
			if n < 1000 {
				t.Errorf("XDP of node2 sent %d packets on, want most of some megabytes", n)
			}
		})
	}
}
