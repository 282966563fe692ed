package service

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/cluster/clustertest"
	"myelin/flow"
)

// owners know a pod and no link.
type owners struct{ pod netip.Addr }

func (o owners) Owner(a netip.Addr) (string, uint32) {
	if a == o.pod {
		return "demo/web", 7
	}
	return "", 0
}

func (owners) Link(int) string { return "" }

// What lists say of translated flows.
func TestTranslations(t *testing.T) {
	const snat, gone = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_SNAT), uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_GONE)
	for _, v6 := range []bool{false, true} {
		r := newRig(t, Config{}, small())
		addr := func(text string) netip.Addr { return netip.MustParseAddr(clustertest.Named(text, v6, false)) }
		r.world.set(t, clustertest.Parse(t, sized(v6, 1, 0, "1", "Cluster")))
		for _, tc := range []struct {
			flags   uint8
			service uint32
			idle    time.Duration
			want    string
		}{
			{replied, 1, 2 * time.Second, "@node9:40000 | @vip1:80 | demo/web (7) @pod1:8080 | TCP | default/web | - | replied | 3/2 | 300/200 | S/S. | 1m0s | 2s"},
			{replied | snat, 1, 0, "@node9:40000 | @vip1:80 | demo/web (7) @pod1:8080 | TCP | default/web | @node1:51000 | replied | 3/2 | 300/200 | S/S. | 1m0s | 0s"},
			{gone, 9, 0, "@node9:40000 | @vip1:80 | demo/web (7) @pod1:8080 | TCP | 9 | - | gone | 3/2 | 300/200 | S/S. | 1m0s | 0s"},
			{uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_DSR), 0, 0, "@node9:40000 | @vip1:80 | demo/web (7) @pod1:8080 | TCP | - | direct | unreplied | 3/2 | 300/200 | S/S. | 1m0s | 0s"},
			{0, 1, 2 * time.Minute, "@node9:40000 | @vip1:80 | demo/web (7) @pod1:8080 | TCP | default/web | - | expired | 3/2 | 300/200 | S/S. | 1m0s | 2m0s"},
		} {
			clock := flow.Clock{Ticks: 1 << 20, Hz: 1000}
			key := bpf.DatapathNatEntryKey{Addr: bpf.Addr(addr("@node9")), Port: bpf.Port(51000), Proto: uint8(TCP)}
			row := bpf.DatapathNatEntry{
				Client: key.Addr, ClientPort: bpf.Port(40000), Frontend: bpf.Addr(addr("@vip1")), FrontendPort: bpf.Port(80),
				Backend: bpf.Addr(addr("@pod1")), BackendPort: bpf.Port(8080), Snat: bpf.Addr(addr("@node1")), Service: tc.service, BackendId: 1,
				Flags: tc.flags, Seen: uint32(clock.Ticks) - uint32(tc.idle/time.Millisecond), Created: clock.Ticks - 60_000,
				Packets: [2]uint64{3, 2}, Bytes: [2]uint64{300, 200}, TcpFlags: [2]uint8{2, 0x12},
			}
			if err := r.datapath.NatEntries.Put(key, row); err != nil {
				t.Fatal(err)
			}
			var got []string
			err := Translations(r.datapath, owners{addr("@pod1")}, ServiceNames(r.DB.ReadTxn(), r.Desired), clock, func(x *Translation) bool {
				if len(x.TableHeader()) != len(x.TableRow()) {
					t.Errorf("%d columns have %d names", len(x.TableRow()), len(x.TableHeader()))
				}
				got = append(got, strings.Join(x.TableRow(), " | "))
				return true
			})
			if want := clustertest.Named(tc.want, v6, false); err != nil || len(got) != 1 || got[0] != want {
				t.Errorf("got\n%s\nwant\n%s\n%v", strings.Join(got, "\n"), want, err)
			}
		}
	}
}
