package labtest

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"myelin/bpf"
)

// plainLinks makes virtual links like wires to XDP: packets bring their checksums, also those that the fabric merged and cuts again, and what a driver sends is
// received at the other end.
func (c *cluster) plainLinks() {
	c.t.Helper()
	for _, port := range []string{"world", "node1", "node2"} {
		c.command("ip", "netns", "exec", c.Name()+"-fabric", "ethtool", "-K", port, "gro", "on", "tx", "off")
	}
	for _, name := range []string{"world", "node1", "node2", "default/a1", "default/s1", "default/s2"} {
		p, err := c.Find(name)
		if err != nil {
			c.t.Fatal(err)
		}
		if out, err := p.Exec(c.t.Context(), "ethtool", "-K", "eth0", "tx", "off"); err != nil {
			c.t.Fatal(err, out)
		}
	}
}

// accelerated waits until XDP is on a node's devices as its status must say.
func (c *cluster) accelerated(node, want string) {
	c.t.Helper()
	eventually(c.t, "XDP of "+node, time.Minute, func() error {
		out, err := c.Node(node).Exec(c.t.Context(), "myelin", "status")
		if err == nil && !strings.Contains(out, want) {
			err = errors.New("no " + want + " in\n" + out)
		}
		return err
	})
}

// TestOutsideByXDP is TestOutside where XDP sends on what only passes through a node: in the driver, which at first finds nobody at the other end of its veth,
// or behind it.
func TestOutsideByXDP(t *testing.T) {
	if _, err := exec.LookPath("ethtool"); err != nil {
		t.Fatal("needs ethtool: scripts/deps.sh test")
	}
	for acceleration, status := range map[string]string{"native": "native on eth0", "testing-only": "generic on eth0"} {
		t.Run(acceleration, func(t *testing.T) {
			t.Parallel()
			c := outside(t, modeNamed("native"), map[string]any{"loadBalancer.acceleration": acceleration, "loadBalancer.algorithm": "maglev"})
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
