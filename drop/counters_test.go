package drop_test

import (
	"net/netip"
	"strings"
	"testing"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/drop"
	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

func names() packet.Names {
	return packet.Names{
		"pod": {MAC: []byte{2, 0, 0, 0, 0, 1}, IP4: netip.MustParseAddr("10.0.1.2"),
			IP6: netip.MustParseAddr("fd00:1::2")},
		"peer": {MAC: []byte{2, 0, 0, 0, 0, 2}, IP4: netip.MustParseAddr("10.0.2.2"),
			IP6: netip.MustParseAddr("fd00:2::2")},
	}
}

// TestCounters sends packets from a link that is no pod's, and for an address
// that is unassigned.
func TestCounters(t *testing.T) {
	d := bpftest.Load(t, bpf.Settings{Ipv4: 1, Ipv6: 1}, nil)
	counters := drop.Counters{Cpus: d.Cpus}
	if list, err := counters.Read(); err != nil || len(list) != 0 {
		t.Fatalf("before: %v, %v; want none", list, err)
	}
	const text = `eth pod > peer | ip pod > peer | udp 1 > 2 | len 100`
	bytes := uint64(0)
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		bytes += uint64(len(packettest.Frame(t, f, names(), text)))
		bpftest.Send(t, d, bpf.FromPod, f, names(), text)
		bpftest.Send(t, d, bpf.FromWire, f, names(), text)
	})
	list, err := counters.Read()
	if err != nil {
		t.Fatal(err)
	}
	want := map[bpf.Hook]string{bpf.FromPod: "DROP_NO_ENDPOINT", bpf.FromWire: "FORWARD_STACK"}
	if len(list) != len(want) {
		t.Errorf("%d counters, want %d: %+v", len(list), len(want), list)
	}
	for _, c := range list {
		if c.Outcome.Name != want[c.Hook] || c.Packets != 2 || c.Bytes != bytes {
			t.Errorf("%s: %s, %d packets, %d bytes; want %s, 2, %d", c.Hook, c.Outcome.Name, c.Packets, c.Bytes,
				want[c.Hook], bytes)
		}
	}
	// No event was allowed: each drop's was lost.
	if lost, err := counters.LostEvents(); err != nil || lost != 2 {
		t.Errorf("%d events lost, %v; want 2", lost, err)
	}
	row := list[0].Row()
	if got := strings.Join(row.TableRow()[:4], " "); got != "from_pod drop no endpoint 2" ||
		len(row.TableRow()) != len(row.TableHeader()) {
		t.Errorf("row %q under %q", row.TableRow(), row.TableHeader())
	}
}
