package labtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"

	"myelin/api"
)

// TestFlowCapacity has 1,600 events a second on a node of which no client reads flows: after 12 s all of them are kept,
// more than the default capacity and than the kernel's buffer of a CPU. `myelin status` has the capacity.
func TestFlowCapacity(t *testing.T) {
	const rate, seconds = 1600, 12
	c := up(t, setup{nodes: 1})
	conn, err := api.Dial(c.hubbleSocket("node1"))
	check(t, err)
	t.Cleanup(func() { conn.Close() })
	observer := observerpb.NewObserverClient(conn)
	status := func() *observerpb.ServerStatusResponse {
		s, err := observer.ServerStatus(t.Context(), &observerpb.ServerStatusRequest{})
		check(t, err)
		return s
	}
	before := status()
	if before.GetMaxFlows() != 4095 {
		t.Errorf("at first, %d flows can be kept", before.GetMaxFlows())
	}
	overwritten := c.lostMetric("node1", "hubble_ring_buffer")
	sent := 2 * c.sendSYNs(t, rate, seconds)
	after := status()
	t.Logf("%d events, then %v", sent, after)
	if kept := after.GetNumFlows(); kept < sent || kept <= 4095 || after.GetMaxFlows() < kept {
		t.Errorf("of %d flows, %d are kept, %d can be", sent, kept, after.GetMaxFlows())
	}
	if got := c.lostMetric("node1", "hubble_ring_buffer"); got != overwritten {
		t.Errorf("%d events were overwritten", got-overwritten)
	}
	want := fmt.Sprintf("/%d (", after.GetMaxFlows())
	eventually(t, "status has the capacity", 5*time.Second, func() error {
		if out := c.mustCLI("node1", "status", "--verbose"); !strings.Contains(out, want) ||
			!strings.Contains(words(out), "max for 60 s of them, from 4095 to 65535") {
			return fmt.Errorf("no %q in\n%s", want, out)
		}
		return nil
	})
}
