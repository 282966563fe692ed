package labtest

import (
	"fmt"
	"testing"
	"time"
)

// TestL7AgentRestart restarts the agents of both nodes under load: the proxy goes on, and no request fails, on
// connections that are open nor on new ones.
//
//	┌─ node1 ─────────────────┐  ┌─ node2 ─────────────────┐
//	│ far (frontend)          │  │ near (frontend)  api:80 │
//	└───────────┬─────────────┘  └────────────┬────────────┘
//	════════════╧═════════════════════════════╧═════════════
func TestL7AgentRestart(t *testing.T) {
	t.Parallel()
	for _, m := range []string{"native", "vxlan"} {
		t.Run(m, func(t *testing.T) {
			c := up(t, setup{mode: modeNamed(m), yaml: l7Pods() + "---\n" + postOnly()})
			c.serveEcho(c.end("api"), 80)
			client := c.client(c.end("far"))
			eventually(t, "the policy", 20*time.Second, func() error { return c.wantStatus(client, "DELETE", 403) })
			check(t, c.wantStatus(client, "POST", 200))
			before := c.proxy("node2")
			l := c.upgradeLoad()
			for i := range 4 {
				time.Sleep(time.Second)
				t.Logf("restart %d at %s", i, time.Now().Format(time.StampMicro))
				check(t, c.Node(fmt.Sprintf("node%d", 2-i%2)).RestartAgent(t.Context()))
			}
			time.Sleep(3 * time.Second)
			requests, failed := l.stop()
			t.Logf("%d of %d requests failed", failed, requests)
			if requests == 0 || failed > 0 {
				t.Errorf("%d of %d requests failed", failed, requests)
			}
			if now := c.proxy("node2"); !now.Same(&before) {
				t.Errorf("the proxy is process %d, and was %d", now.PID, before.PID)
			}
		})
	}
}
