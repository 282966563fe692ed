package flow_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/flow"
	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// TestPaths writes what the datapath keeps, and bumps the epoch of one end.
func TestPaths(t *testing.T) {
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		d := bpftest.Load(t, bpf.Settings{Ipv4: 1, Ipv6: 1}, nil)
		epochs := &bpf.Epochs{Map: d.Epochs}
		for range 5 {
			if err := epochs.Bump(2); err != nil {
				t.Fatal(err)
			}
		}
		rows := make([]bpf.DatapathCachedPath, ebpf.MustPossibleCPU())
		via := netip.MustParseAddr("192.168.0.254")
		rows[len(rows)-1] = bpf.DatapathCachedPath{
			Src: bpf.Addr(addr(f, "pod")), Dst: bpf.Addr(addr(f, "world")), Snat: bpf.Addr(addr(f, "node")),
			Path: bpf.DatapathPath{
				Ifindex: 2, InIfindex: 3 | 0x40000000, Epoch: 5, Expires: 1000, SrcSlot: 2, Mtu: 1500,
				Action: uint8(bpf.DatapathPathActionPATH_WIRE), Flags: uint8(bpf.DatapathPathFlagPATH_MASQUERADE),
				Via: bpf.Addr(via),
			},
		}
		if err := d.Paths.Put(uint32(1), rows); err != nil {
			t.Fatal(err)
		}
		read := func(ticks uint64) (list []*flow.Path) {
			if err := flow.Paths(d, fixed{}, flow.Clock{Ticks: ticks, Hz: 100}, func(p *flow.Path) bool {
				list = append(list, p)
				return true
			}); err != nil {
				t.Fatal(err)
			}
			if len(list) != 1 {
				t.Fatalf("%d paths, want 1", len(list))
			}
			return list
		}
		p := read(1000)[0]
		want := "demo/pod (65536) " + addr(f, "pod").String() + " | " + addr(f, "world").String() +
			" | mye1 | wire | eth0 | 192.168.0.254 | " +
			addr(f, "node").String() + " | 1500 | true"
		if got := strings.Join(p.TableRow(), " | "); got != want || len(p.TableRow()) != len(p.TableHeader()) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if read(1001)[0].Fresh {
			t.Error("fresh after it has expired")
		}
		if err := epochs.Bump(2); err != nil {
			t.Fatal(err)
		}
		if read(1000)[0].Fresh {
			t.Error("fresh after its endpoint's epoch was bumped")
		}
	})
}
