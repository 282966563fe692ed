package stats

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"myelin/bpf"
	"myelin/bpf/bpftest"
	"myelin/flow"
)

// count has each CPU count so many requests, of 100 bytes, and half as many replies.
func count(t *testing.T, d *bpf.Datapath, index uint32, packets uint64) {
	t.Helper()
	cpus := make([]Counters, ebpf.MustPossibleCPU())
	for i := range cpus {
		cpus[i] = Counters{Packets: [2]uint64{packets, packets / 2}, Bytes: [2]uint64{100 * packets, 50 * packets},
			Flows: 1}
	}
	if err := d.ServiceStats.Put(index, cpus); err != nil {
		t.Fatal(err)
	}
}

func newStats(t *testing.T, d *bpf.Datapath, members map[Pair]uint32) *Stats {
	t.Helper()
	s, err := New(d, members, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// total is what a Service has counted since the agent began, in requests.
func total(t *testing.T, s *Stats, service uint32) uint64 {
	t.Helper()
	totals, err := s.Totals()
	if err != nil {
		t.Fatal(err)
	}
	return totals[service].Packets[0]
}

// TestTotals: what a Service has counted never falls, although backends leave and agents come.
func TestTotals(t *testing.T) {
	d := bpftest.LoadMaps(t, bpf.Settings{}, map[string]uint32{"service_stats": 4, "nat_entries": 64,
		"nat_replies": 64})
	cpus, now := uint64(ebpf.MustPossibleCPU()), time.Unix(0, 0)
	s := newStats(t, d, nil)
	old, left := Pair{Service: 7, Port: 1}, Pair{Service: 7, Port: 2}
	i, j := s.Take(old), s.Take(left)
	count(t, d, i, 10)
	count(t, d, j, 20)
	count(t, d, 0, 4)
	if got := total(t, s, 7); got != 30*cpus || total(t, s, 0) != 4*cpus {
		t.Errorf("%d, want %d", got, 30*cpus)
	}
	s.Release(left, now)
	// A flow still counts into the index.
	key := bpf.DatapathNatTuple{Sport: 1}
	if err := d.NatReplies.Put(key, bpf.DatapathNatReply{Stat: uint16(j)}); err != nil {
		t.Fatal(err)
	}
	later := now.Add(HoldTime)
	if _, err := s.Reuse(later); err != nil || s.Take(left) != j {
		t.Fatalf("the index of a flow was given away: %v", err)
	}
	s.Release(left, now)
	if err := d.NatReplies.Delete(key); err != nil {
		t.Fatal(err)
	}
	if s.Take(Pair{Service: 8}) == 0 || s.Take(Pair{Service: 9}) != 0 {
		t.Error("of three indexes one is held: there is room for one pair, and not for two")
	}
	if again, err := s.Reuse(later); err != nil || !again {
		t.Fatalf("the index is not free: %v", err)
	}
	if got := total(t, s, 7); got != 30*cpus {
		t.Errorf("%d after a backend left, want %d", got, 30*cpus)
	}
	if next := s.Take(Pair{Service: 9}); next != j || total(t, s, 9) != 0 {
		t.Errorf("the next backend has index %d and has counted %d, want %d and 0", next, total(t, s, 9), j)
	}
	s.Forget(func(id uint32) bool { return id != 7 })
	if got := total(t, s, 7); got != 10*cpus {
		t.Errorf("%d of a Service that was deleted, want %d, of its backend", got, 10*cpus)
	}

	s = newStats(t, d, map[Pair]uint32{old: i})
	count(t, d, i, 15)
	if got := total(t, s, 7); got != 5*cpus {
		t.Errorf("%d since the agent began, want %d", got, 5*cpus)
	}
}

// TestRead: rows have the counters of all CPUs, and the flows that have not ended.
func TestRead(t *testing.T) {
	d := bpftest.LoadMaps(t, bpf.Settings{}, map[string]uint32{"service_stats": 4, "nat_entries": 64})
	cpus, clock := uint64(ebpf.MustPossibleCPU()), flow.Clock{Ticks: 1 << 20, Hz: 1000}
	s, now := newStats(t, d, nil), time.Unix(0, 0)
	p, held := Pair{Service: 7, Port: 1}, Pair{Service: 7, Port: 2}
	i, _ := s.Take(p), s.Take(held)
	s.Release(held, now)
	count(t, d, i, 10)
	for port, flags := range []bpf.DatapathNatEntryFlag{0, bpf.DatapathNatEntryFlagNAT_ENTRY_REPLIED,
		bpf.DatapathNatEntryFlagNAT_ENTRY_GONE, bpf.DatapathNatEntryFlagNAT_ENTRY_CLOSING} {
		key := bpf.DatapathNatTuple{Sport: uint16(port), Proto: 17}
		row := bpf.DatapathNatEntry{Stat: uint16(i), Flags: uint8(flags), Seen: uint32(clock.Ticks)}
		if err := d.NatEntries.Put(key, row); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := s.Read(clock, now)
	if err != nil || len(rows) != 3 || rows[0].Pair != (Pair{}) {
		t.Fatalf("%+v, %v", rows, err)
	}
	for _, r := range rows[1:] {
		want := Row{Pair: held, Held: true}
		if r.Pair == p {
			want = Row{Pair: p, Open: 2, Counters: Counters{Packets: [2]uint64{10 * cpus, 5 * cpus},
				Bytes: [2]uint64{1000 * cpus, 500 * cpus}, Flows: cpus}}
		}
		if r != want {
			t.Errorf("got %+v, want %+v", r, want)
		}
	}
}
