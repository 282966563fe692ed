package labtest

import (
	"strings"
	"testing"
	"time"

	"myelin/status"
)

// noBands says why fq has no bands, if it has none.
func noBands() string {
	why := noType("type veth && tc qdisc add dev probe0 root fq && tc qdisc show dev probe0 | grep -q bands")
	return why + noType("type veth && tc qdisc add dev probe0 root tbf rate 1mbit burst 4k limit 1m")
}

// TestBandwidthPriority: two pods share a busy device by their priorities, 9:1, and a pod without one gets three times
// as much as the lesser. In VXLAN packets keep their priority.
//
//	┌─ node1 ──────────────────────┐  ┌─ node2 ─────┐
//	│ a1 guaranteed  b1 best-effort│  │ a2  b2  c2  │
//	└──────┬───────────────────────┘  └────┬────────┘
//	═══════╧═══════════════════════════════╧═════════
func TestBandwidthPriority(t *testing.T) {
	if why := noBands(); why != "" {
		t.Skip(why)
	}
	for _, name := range []string{"native", "vxlan"} {
		t.Run(name, func(t *testing.T) {
			c := up(t, setup{mode: pacedMode(name), pods: []string{"a", "b", "c"}})
			const annotation = "bandwidth.cilium.io/priority: "
			c.annotate(map[string]string{"a1": annotation + "guaranteed", "b1": annotation + "BestEffort"})
			c.listsLimits("a1", "a1 egress - - guaranteed - ", "b1 egress - - best-effort - ")
			c.says("BandwidthManager", status.OK, "2 pods")
			// A device that takes no more packets: the lab's own takes any number.
			c.tc("qdisc", "replace", "dev", "eth0", "root", "handle", "1:", "tbf", "rate", "40mbit", "burst", "64k",
				"limit", "4m")
			c.tc("qdisc", "add", "dev", "eth0", "parent", "1:1", "handle", "10:", "fq")
			for _, f := range c.stack.families {
				c.wantShares(f, 9, "a1", "b1")
				c.wantShares(f, 3, "c1", "b1")
			}
			c.annotate(map[string]string{"b1": annotation + "highest"})
			c.says("BandwidthManager", status.Broken, `[bandwidth.cilium.io/priority]: "highest" is no class`)
		})
	}
}

// wantShares has two pods send as much as they can, and the first have so many times as much of it.
func (c *cluster) wantShares(family int, want float64, more, less string) {
	c.t.Helper()
	const near, tries, batch = 1.3, 4, 10
	for try := 1; ; try++ {
		first := c.loadUDP(more, strings.Replace(more, "1", "2", 1), family, batch, udpBuffer)
		second := c.loadUDP(less, strings.Replace(less, "1", "2", 1), family, batch, udpBuffer)
		got := rates(2*time.Second, first, second)
		first.stop()
		second.stop()
		times := got[0] / got[1]
		c.t.Logf("IPv%d %s and %s: %.0f and %.0f bit/s, %.1f times as much", family, more, less, got[0], got[1], times)
		if times > want/near && times < want*near {
			return
		}
		if try == tries {
			out, _ := c.Node("node1").Exec(c.t.Context(), "tc", "-s", "qdisc")
			c.t.Errorf("IPv%d %s sends %.1f times as much as %s, want %.0f: %s", family, more, times, less, want, out)
			return
		}
	}
}
