package flow_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/cilium/ebpf"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/event"
	"myelin/flow"
	"myelin/test/packet"
)

func TestCollector(t *testing.T) {
	const hz = 1000
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1, FlowAlways: 1, Hz: hz}, map[string]uint32{"flows": 8192})
	clock, err := flow.ReadClock(hz)
	if err != nil {
		t.Fatal(err)
	}
	bpftest.Send(t, d, bpf.ToPod, packet.IPv4, names(), `eth world > pod | ip world > pod | tcp 40000 > 80 S`) // lives
	old, row := nat(packet.IPv4)
	row.Seen = uint32(clock.Ticks) - 61*hz
	closed, end := old, row
	closed.Port[0] = bpf.Port(10002)
	end.Flags |= uint8(bpf.DatapathFlowFlagFLOW_CLOSING)
	for k, r := range map[*flow.Key]*flow.Row{&old: &row, &closed: &end} {
		if err := d.Flows.Put(k, r); err != nil {
			t.Fatal(err)
		}
	}
	var told []*event.Raw
	c := flow.NewCollector(d, slog.Default())
	c.Ended = func(e *event.Raw) { told = append(told, e) }
	for range 2 {
		if err := c.Pass(context.Background(), hz); err != nil {
			t.Fatal(err)
		}
	}
	if left := list(t, d, hz); len(left) != 1 || left[0].Dst.Port != 80 {
		t.Errorf("%d flows are left: %+v", len(left), left)
	}
	if c.Expired() != 2 {
		t.Errorf("%d expired, want 2", c.Expired())
	}
	if len(told) != 1 || event.TypeOf(told[0]) != event.FlowEnd || told[0].Hook != event.Expired ||
		told[0].Src != row.Pod ||
		told[0].Sport != row.PodPort || told[0].Dst != old.Addr[1] || told[0].Slot != 2 || told[0].Family != 4 {
		t.Errorf("told of %+v", told)
	}
}

// TestCollectorReadsAll fills the table beyond one batch, and ends early when
// it is told to.
func TestCollectorReadsAll(t *testing.T) {
	const hz, n = 1000, 5000
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1, Hz: hz}, map[string]uint32{"flows": 4 * n})
	clock, err := flow.ReadClock(hz)
	if err != nil {
		t.Fatal(err)
	}
	keys, rows := make([]flow.Key, n), make([]flow.Row, n)
	for i := range n {
		keys[i], rows[i] = nat(packet.IPv6)
		keys[i].Port[0] = bpf.Port(uint16(i))
		rows[i].Seen = uint32(clock.Ticks) - 61*hz
	}
	if _, err := d.Flows.BatchUpdate(keys, rows, nil); err != nil {
		t.Fatal(err)
	}
	c := flow.NewCollector(d, slog.Default())
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.Pass(ended, hz); !errors.Is(err, context.Canceled) {
		t.Errorf("a pass that was cancelled says %v", err)
	}
	if err := c.Pass(context.Background(), hz); err != nil {
		t.Fatal(err)
	}
	if c.Expired() != n {
		t.Errorf("%d of %d expired", c.Expired(), n)
	}
	if err := d.Flows.Lookup(&keys[0], &rows[0]); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("the first is still there: %v", err)
	}
}

func TestCollectorWithoutRows(t *testing.T) {
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1}, map[string]uint32{"flows": 1})
	if err := flow.NewCollector(d, slog.Default()).Run(context.Background()); err != nil { // returns at once
		t.Error(err)
	}
}
