package labtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"myelin/status"
)

// TestStray wipes an agent's run directory while pods run. Their links are reported and send nothing more; when the
// pod's namespace ends, or its DEL comes, they go. Pods that come then are given addresses as if nothing had been.
//
//	┌─ node1 ────────────────────┐
//	│ lost1  lost2   run/ wiped  │
//	└──────┬─────────────────────┘
//	═══════╧══════════════════════
func TestStray(t *testing.T) {
	for _, name := range []string{"native", "vxlan"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := up(t, setup{mode: modeNamed(name), nodes: 1, pods: []string{}})
			node, r := c.Node("node1"), c.runtime("node1")
			lost := r.start(t, 2)
			check(t, node.StopAgent(t.Context()))
			check(t, os.RemoveAll(filepath.Join(node.RunDir(), "endpoints")))
			check(t, node.StartAgent(t.Context(), nil))
			c.says("Endpoints", status.Broken, "belongs to no endpoint")
			r1, err := c.report()
			check(t, err)
			if len(r1.Strays) != 2 || !r1.Strays[0].Pod {
				t.Errorf("strays %+v", r1.Strays)
			}
			_, metrics := c.health(t, "node1", "/metrics")
			contains(t, "/metrics", metrics, "myelin_stray_links 2\n")
			if out := c.ip("node1", "-o", "link", "show", "type", "veth"); strings.Count(out, "state DOWN") != 2 {
				t.Errorf("nothing checks what two pods send, and their links are not down:\n%s", out)
			}
			for _, f := range c.stack.families {
				world := c.end("world")
				if seen, err := c.once(lost[0].end(), world, world.addr(f)); err == nil {
					t.Errorf("an unchecked pod reaches the world, as %s", seen)
				}
			}
			next, err := r.create(2)
			check(t, err)
			check(t, r.add(t.Context(), next))
			if fmt.Sprint(next.addrs) != fmt.Sprint(lost[0].addrs) {
				t.Logf("%v, were %v", next.addrs, lost[0].addrs)
			}

			check(t, r.del(t.Context(), lost[0]))
			check(t, lost[1].remove())
			c.oneLinkLeft()
			c.says("Endpoints", status.OK, "1 ready")
			for _, f := range c.stack.families {
				world := c.end("world")
				if _, err := udp(t.Context(), next.end(), world, world.addr(f), 100); err != nil {
					t.Error(err)
				}
			}
			check(t, r.del(t.Context(), next))
			check(t, next.remove())
			check(t, lost[0].remove())
		})
	}
}

// oneLinkLeft waits: one worker of the kernel clears the namespaces of all tests, one after another.
func (c *cluster) oneLinkLeft() {
	c.t.Helper()
	eventually(c.t, "one pod's link is left", 5*time.Minute, func() error {
		out := c.ip("node1", "-o", "link", "show", "type", "veth")
		if strings.Count(out, ": mye") != 1 {
			return fmt.Errorf("there are:\n%s", out)
		}
		return nil
	})
}
