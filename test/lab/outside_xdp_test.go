package labtest

import (
	"os/exec"
	"testing"

	"myelin/bpf"
)

// plainLinks makes virtual links like wires to XDP: packets bring their checksums.
func (c *cluster) plainLinks() {
	c.t.Helper()
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

// TestOutsideByXDP is TestOutside where XDP turns around what only passes through a node: behind the driver, for a veth that a bridge is at the other end of
// loses frames with data that its own driver sends back.
func TestOutsideByXDP(t *testing.T) {
	if _, err := exec.LookPath("ethtool"); err != nil {
		t.Fatal("needs ethtool: scripts/deps.sh test")
	}
	c := outside(t, modeNamed("native"), map[string]any{"loadBalancer.acceleration": "testing-only", "loadBalancer.algorithm": "maglev"})
	before := c.outcomeAt("node2", bpf.DatapathHookHOOK_FROM_WIRE_XDP, bpf.DatapathOutcomeFORWARD_WIRE)
	for _, f := range c.stack.families {
		c.keptAndHidden(f)
		c.emptyOutside(f)
		c.stickyOutside(f)
		c.bulk(f)
	}
	if n := c.outcomeAt("node2", bpf.DatapathHookHOOK_FROM_WIRE_XDP, bpf.DatapathOutcomeFORWARD_WIRE) - before; n < 1000 {
		t.Errorf("XDP of node2 sent %d packets on, want most of some megabytes", n)
	}
}
