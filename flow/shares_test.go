package flow_test

import (
	"context"
	"log/slog"
	"testing"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/flow"
	"myelin/test/packet"
)

// TestUsageOfHighSlots: the endpoint with the most entries is named by its own slot, although it shares a count with
// another one; and it is that endpoint whose unproven flows make room.
func TestUsageOfHighSlots(t *testing.T) {
	const hz, high, low, other = 1000, 4096 + 2, 2, 3
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1, FlowAlways: 1, Hz: hz}, map[string]uint32{"flows": 1024})
	clock, err := flow.ReadClock(hz)
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(0)
	for _, part := range []struct {
		slot uint16
		n    int
	}{{low, 5}, {high, 300}, {low, 5}, {other, 10}} {
		for range part.n {
			port++
			key, row := nat(packet.IPv4)
			key.Port[0], row.Slot, row.Seen = bpf.Port(port), part.slot, uint32(clock.Ticks)-2*hz
			row.Flags = 0 // unanswered
			if err := d.Flows.Put(key, row); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := flow.NewCollector(d, slog.Default())
	for _, want := range []flow.Usage{
		{Entries: 320, Max: 1024, Slot: high, Most: 310},
		{Entries: 10, Max: 1024, Slot: other, Most: 10},
	} {
		if err := c.Pass(context.Background(), hz); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Usage(); err != nil || got != want {
			t.Errorf("usage is %+v, %v, want %+v", got, err, want)
		}
		room := flow.Usage{Entries: want.Entries, Max: want.Max}
		if got, err := c.Room(); err != nil || got != room {
			t.Errorf("room is %+v, %v, want %+v", got, err, room)
		}
	}
}
