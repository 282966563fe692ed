package labtest

import (
	"net/netip"
	"testing"
)

// TestParallelAdds has 100 ADDs at once, and an agent that is killed among as many again: none fails without a reason,
// whatever was answered with success works afterwards, and nothing is given out twice.
//
//	┌─ node1 ──────────────────────────────┐
//	│ a1   100 pods at once   agent dies   │
//	└──────┬───────────────────────────────┘
//	═══════╧════════════════════════════════
func TestParallelAdds(t *testing.T) {
	t.Parallel()
	c := up(t, setup{nodes: 1, pods: []string{"a"}})
	ctx, node := t.Context(), c.Node("node1")
	churn := &churner{runtimeOf: c.runtime("node1"), taken: map[netip.Addr]string{}}
	n := 100 / min(slow(), 4)
	for i, err := range churn.addAll(ctx, 0, n, func(int) {}) {
		if err != nil {
			t.Errorf("pod %d: %v", i, err)
		}
	}
	killed := make(chan error, 1)
	failed := 0
	errs := churn.addAll(ctx, 1000, n, func(succeeded int) {
		if succeeded == n/4 {
			killed <- node.KillAgent(ctx)
		}
	})
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	if err := <-killed; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d of %d ADDs failed when the agent was killed", failed, n)
	if err := node.StartAgent(ctx, nil); err != nil {
		t.Fatal(err)
	}
	for i, err := range churn.addAll(ctx, 2000, n/4, func(int) {}) {
		if err != nil {
			t.Errorf("pod %d after the restart: %v", i, err)
		}
	}
	c.reachAll(churn)
	c.newPodWorks("c1", way{"c1", "a1", "c1"}, way{"c1", "world", "node1"})
}

// reachAll pings every pod whose ADD succeeded.
func (c *cluster) reachAll(churn *churner) {
	c.t.Helper()
	for a, name := range churn.taken {
		if _, err := udp(c.t.Context(), c.end("a1"), end{foreign(name), []netip.Addr{a}}, a, 100); err != nil {
			c.t.Errorf("a1→%s: %v", name, err)
		}
	}
}
