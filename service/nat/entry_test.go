package nat_test

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/cluster/clustertest"
	"myelin/flow"
	"myelin/service"
	"myelin/service/nat"
	"myelin/service/nat/nattest"
	"myelin/service/servicetest"
)

// owners knows one pod and no link.
type owners struct{ pod netip.Addr }

func (o owners) Owner(a netip.Addr) (string, uint32) {
	if a == o.pod {
		return "demo/web", 7
	}
	return "", 0
}

func (owners) Link(int) string { return "" }

// Lists of NAT entries.
func TestTranslations(t *testing.T) {
	const snat, gone = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_SNAT),
		uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_GONE)
	for _, v6 := range []bool{false, true} {
		d, c := bpftest.LoadMaps(t, bpf.Settings{}, nil), servicetest.New(t, service.Config{}, "")
		addr := func(text string) netip.Addr { return netip.MustParseAddr(clustertest.Named(text, v6, false)) }
		c.Set(t, clustertest.Parse(t, servicetest.Sized(v6, 1, 0, "1", "Cluster")))
		for _, tc := range []struct {
			flags   uint8
			service uint32
			idle    time.Duration
			want    string
		}{
			{nattest.Replied, 1, 2 * time.Second,
				"@node9:40000 | @vip1:80 | demo/web (7) @pod1:8080 | TCP | default/web | " +
					"- | replied | 3/2 | 300/200 | S/S. | 1m0s | 2s"},
			{nattest.Replied | snat, 1, 0, "@node9:40000 | @vip1:80 | demo/web (7) @pod1:8080 | TCP | default/web | " +
				"@node1:51000 | replied | 3/2 | 300/200 | S/S. | 1m0s | 0s"},
			{gone, 9, 0,
				"@node9:40000 | @vip1:80 | demo/web (7) @pod1:8080 | TCP | 9 | - | gone | 3/2 | 300/200 | S/S. | " +
					"1m0s | 0s"},
			{uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_DSR), 0, 0,
				"@node9:40000 | @vip1:80 | demo/web (7) @pod1:8080 | TCP | - | direct | unreplied | " +
					"3/2 | 300/200 | S/S. | 1m0s | 0s"},
			{0, 1, 2 * time.Minute,
				"@node9:40000 | @vip1:80 | demo/web (7) @pod1:8080 | TCP | default/web | - | expired | " +
					"3/2 | 300/200 | S/S. | 1m0s | 2m0s"},
		} {
			clock := flow.Clock{Ticks: 1 << 20, Hz: 1000}
			key := bpf.DatapathNatTuple{Src: bpf.Addr(addr("@node9")), Sport: bpf.Port(40000),
				Dst: bpf.Addr(addr("@vip1")), Dport: bpf.Port(80), Proto: uint8(service.TCP)}
			row := bpf.DatapathNatEntry{
				Backend: bpf.Addr(addr("@pod1")), BackendPort: bpf.Port(8080),
				Snat: bpf.Addr(addr("@node1")), NatPort: bpf.Port(51000),
				Service: tc.service, BackendId: 1, Flags: tc.flags,
				Seen:    uint32(clock.Ticks) - uint32(tc.idle/time.Millisecond),
				Packets: [2]uint64{3, 2}, Bytes: [2]uint64{300, 200}, TcpFlags: [2]uint8{2, 0x12},
			}
			row.SetCreatedAt(clock.Ticks - 60_000)
			if err := d.NatEntries.Put(key, row); err != nil {
				t.Fatal(err)
			}
			var got []string
			names := service.Names(c.DB.ReadTxn(), c.Desired)
			err := nat.Entries(d, owners{addr("@pod1")}, names, clock, func(x *nat.Entry) bool {
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

// The collector deletes the entries that have expired for the datapath, and no other.
func TestCollector(t *testing.T) {
	const replied, closing = nattest.Replied, nattest.Closing
	const direct = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_DSR)
	for _, v6 := range []bool{false, true} {
		d := bpftest.LoadMaps(t, bpf.Settings{}, nil)
		for i, f := range []struct {
			proto service.Protocol
			flags uint8
			idle  time.Duration
		}{
			{service.TCP, 0, 50 * time.Second}, {service.TCP, 0, 70 * time.Second},
			{service.TCP, replied, time.Hour}, {service.TCP, replied, 3 * time.Hour},
			{service.TCP, replied | closing, 5 * time.Second}, {service.TCP, replied | closing, 20 * time.Second},
			{service.TCP, direct, time.Hour},
			{service.UDP, replied, 50 * time.Second}, {service.UDP, replied, 70 * time.Second},
			{service.SCTP, 0, 70 * time.Second},
		} {
			nattest.Put(t, d, nattest.Flow{
				V6: v6, Protocol: f.proto, Port: uint16(i), Service: 1, Backend: 1, Flags: f.flags, Idle: f.idle,
			})
		}
		c := nat.NewCollector(d, slog.New(slog.DiscardHandler))
		if err := c.Pass(t.Context(), 1000); err != nil {
			t.Fatal(err)
		}
		const want = "TCP 0 to 1 unreplied, TCP 2 to 1 replied, TCP 4 to 1 closing, TCP 6 to 1 unreplied, " +
			"UDP 7 to 1 replied"
		if got := nattest.Texts(t, d); got != want || c.Count.Load() != 5 {
			t.Errorf("%d had expired, left are %s, want %s", c.Count.Load(), got, want)
		}
		if n := nattest.Replies(t, d); n != 5 {
			t.Errorf("%d entries of replies are left, want 5", n)
		}
	}
}

// TestProven: a client that may have a forged source is not proven.
func TestProven(t *testing.T) {
	const tcp, udp = 6, 17
	const replied, dsr = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_REPLIED), uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_DSR)
	const closing, gone = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_CLOSING),
		uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_GONE)
	for _, c := range []struct {
		proto, flags, client uint8 // client: its TCP flags
		packets              uint64
		want                 bool
	}{
		{tcp, 0, 0, 1, false},       // SYN
		{tcp, replied, 0, 2, false}, // and another one, after a SYN-ACK
		{tcp, replied, flow.ACK, 2, true},
		{tcp, replied | closing, flow.ACK, 3, false},
		{tcp, replied | gone, flow.ACK, 3, false},
		{tcp, dsr, 0, 2, false}, // no replies are seen
		{tcp, dsr, flow.ACK, 2, true},
		{udp, 0, 0, 5, false},
		{udp, replied, 0, 1, true},
		{udp, dsr, 0, 1, false},
		{udp, dsr, 0, 2, true},
		{udp, dsr, 0, 0, true}, // a peer has sent it
	} {
		e := bpf.DatapathNatEntry{Flags: c.flags, TcpFlags: [2]uint8{c.client, flow.ACK},
			Packets: [2]uint64{c.packets, 1}}
		if got := nat.Proven(&bpf.DatapathNatTuple{Proto: c.proto}, &e); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestDemand: closed flows count while the backend may be in TIME-WAIT, those of forged sources not at all.
func TestDemand(t *testing.T) {
	const tcp, fin, rst = 6, flow.ACK | flow.FIN, flow.RST
	const snat, dsr = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_SNAT), uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_DSR)
	const replied, first = uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_REPLIED),
		uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_CLIENT_FIN)
	const closing = replied | uint8(bpf.DatapathNatEntryFlagNAT_ENTRY_CLOSING)
	for _, c := range []struct {
		flags, client, backend uint8
		idle                   time.Duration
		want                   int
	}{
		{snat, 0, flow.ACK, 0, 0},
		{snat | replied, flow.ACK, flow.ACK, 0, 1},
		{snat | closing, fin, fin, 50 * time.Second, 2},
		{snat | closing, fin, fin, 61 * time.Second, 0}, // over
		{snat | closing | first, fin, fin, 0, 0},
		{closing, fin, fin, 2 * time.Second, 0},              // the client keeps its own port
		{snat | closing, fin, flow.ACK | rst, 0, 0},          // forged: the backend refuses it
		{snat | closing, fin, fin | rst, 2 * time.Second, 0}, // no TIME-WAIT
		{dsr | closing, fin, 0, 0, 0},
	} {
		clock := flow.Clock{Ticks: 1 << 20, Hz: 1000}
		e := bpf.DatapathNatEntry{Flags: c.flags, TcpFlags: [2]uint8{c.client, c.backend},
			Packets: [2]uint64{3, 3}, Seen: uint32(clock.Ticks) - uint32(c.idle/time.Millisecond)}
		if got := nat.Demand(clock, &bpf.DatapathNatTuple{Proto: tcp}, &e); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
