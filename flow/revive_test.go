package flow_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/flow"
	"myelin/test/packet"
)

// TestRevived: a row that goes on when it is looked at once more stays as it is, whatever was added to what was read of
// it; one that is over goes.
func TestRevived(t *testing.T) {
	const hz = 1000
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1, FlowAlways: 1, Hz: hz}, map[string]uint32{"flows": 1024})
	for port := range uint16(2) {
		key, row := nat(packet.IPv4)
		key.Port[0], row.Side[0].Packets = bpf.Port(port+1), 7
		if err := d.Flows.Put(key, row); err != nil {
			t.Fatal(err)
		}
	}
	looks := map[flow.Key]int{}
	e := flow.Expiry[flow.Key, flow.Row]{
		Datapath: d, Log: slog.Default(), Map: d.Flows, Rows: "flows", Count: new(atomic.Uint64),
		Shares: flow.NewShares(d, bpf.DatapathShareKindSHARE_FLOWS, 1024),
		Over: func(_ flow.Clock, k *flow.Key, r *flow.Row) bool {
			looks[*k]++
			r.Side[0].Packets++
			return looks[*k] == 1 || bpf.Port(k.Port[0]) == 1
		},
		Evidence: func(*flow.Key, *flow.Row) (flow.Evidence, uint32) { return flow.Proven, 0 },
		Slot:     func(*flow.Key, *flow.Row) uint16 { return 0 },
		Demand:   func(flow.Clock, *flow.Key, *flow.Row) int { return 0 },
	}
	if err := e.Pass(context.Background(), hz); err != nil {
		t.Fatal(err)
	}
	rows := 0
	if err := flow.Each(d, func(k *flow.Key, r *flow.Row) bool {
		rows++
		if bpf.Port(k.Port[0]) != 2 || r.Side[0].Packets != 7 {
			t.Errorf("port %d remains with %d packets, want port 2 with 7", bpf.Port(k.Port[0]), r.Side[0].Packets)
		}
		return true
	}); err != nil || rows != 1 || e.Count.Load() != 1 {
		t.Errorf("%d rows remain, %d were deleted, %v; want one of each", rows, e.Count.Load(), err)
	}
}
