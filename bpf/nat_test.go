package bpf

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// natRows are about the two entries of a flow of a Service: of requests and of replies.
func natRows() []row {
	const request, reply = `eth router > node | ip world > lb | udp 40000 > 81`,
		`eth node2 > node | ip c > node | udp 8080 > 51000`
	begin := step{at: "from_wire eth0", in: request, want: "FORWARD_RESOLVE"}
	answered := step{at: "from_wire eth0", in: reply, want: "FORWARD_RESOLVE"}
	again := step{at: "from_wire eth0", in: reply, want: "FORWARD_WIRE"}
	return []row{
		{name: "replies are counted", steps: []step{begin, withAfter(answered, repliesAre(1, 0)),
			withAfter(again, repliesAre(1, 1))}},
		{name: "only the entry of replies is left", steps: []step{begin, answered,
			{at: "from_wire eth0", in: reply, want: "FORWARD_WIRE", before: evictEntries},
			{at: "from_wire eth0", in: request, want: "FORWARD_WIRE", after: translationsAre(1)},
			withAfter(again, repliesAre(1, 0))}},
		{name: "of a peer's flow", steps: []step{begin,
			{at: "from_wire eth0", in: request, want: "FORWARD_WIRE", before: asLearned, after: requestsAre(1)},
			withAfter(answered, repliesAre(1, 0))}},
	}
}

// learnedSteps: a flow that another load balancer has begun goes to its backend, which no new flow would get.
func learnedSteps(outer, at string) []step {
	return []step{
		{at: "from_wire eth0", in: `eth router > node | ip world > lb | tcp 40000 > 83 S`, want: "FORWARD_RESOLVE"},
		{at: at, in: `eth router > node | ip world > lb ttl 60 | tcp 40000 > 83 A | len 100`, want: "FORWARD_WIRE",
			out:    `eth node > router | ` + outer + ` | ip world > lb ttl 60 | tcp 40000 > 83 A | len 100`,
			before: asLearned, after: requestsAre(1)},
	}
}

// asLearned makes entries what package gateway makes of those of peers, and takes all backends from Services.
func asLearned(t testing.TB, w *world) {
	slots := rowsIn[DatapathBackendSlotsKey, DatapathBackendSlotsRow](t, w.BackendSlots)
	empty(t, w.BackendSlots)
	t.Cleanup(func() {
		for k, r := range slots {
			must(t, w.BackendSlots.Put(k, r))
		}
	})
	for k, r := range rowsIn[DatapathNatTuple, DatapathNatEntry](t, w.NatEntries) {
		r.Packets, r.Bytes, r.TcpFlags = [2]uint64{}, [2]uint64{}, [2]uint8{16, 0}
		must(t, w.NatEntries.Put(k, r))
	}
}

func requestsAre(want uint64) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		for k, r := range rowsIn[DatapathNatTuple, DatapathNatEntry](t, w.NatEntries) {
			if r.Packets[0] != want {
				t.Errorf("%d requests of %+v, want %d", r.Packets[0], k, want)
			}
		}
	}
}

func withAfter(s step, after func(testing.TB, *world)) step {
	s.after = after
	return s
}

// repliesAre wants counts of replies: those of the NAT entry, and those that have not been flushed to it.
func repliesAre(counted uint64, pending uint32) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		for k, r := range rowsIn[DatapathNatTuple, DatapathNatEntry](t, w.NatEntries) {
			var reply DatapathNatReply
			own, err := w.ReadNatReply(&k, &r, &reply)
			must(t, err)
			if !own || r.Packets[1] != counted || reply.Packets != pending {
				t.Errorf("own %v, %d packets and %d pending, want %d and %d", own, r.Packets[1], reply.Packets,
					counted, pending)
			}
		}
	}
}

func evictEntries(t testing.TB, w *world) { empty(t, w.NatEntries) }

// TestNatEntriesConverted: flows that an agent with the former layout of nat_entries has begun go on.
func TestNatEntriesConverted(t *testing.T) {
	dir := filepath.Join(bpffs(t), "myelin")
	must(t, os.MkdirAll(filepath.Join(dir, "maps"), 0o700))
	former, err := ebpf.NewMap(&ebpf.MapSpec{Name: "nat_entries", Type: ebpf.LRUHash, KeySize: formerNatKeySize,
		ValueSize: formerNatEntrySize, MaxEntries: 64})
	must(t, err)
	defer former.Close()
	address := func(text string) DatapathAddr { return Addr(netip.MustParseAddr(text)) }
	must(t, former.Put(formerNatKey{Port: Port(25031), Proto: unix.IPPROTO_TCP, Slot: 3}, formerNatEntry{
		Client: address("198.51.100.7"), ClientPort: Port(40000), Frontend: address("203.0.113.50"),
		FrontendPort: Port(80), Backend: address("10.0.1.3"), BackendPort: Port(8080), Snat: address("192.0.2.1"),
		Flags: uint8(DatapathNatEntryFlagNAT_ENTRY_SNAT | DatapathNatEntryFlagNAT_ENTRY_REPLIED), BackendID: 5,
		Packets: [2]uint64{3, 2}, Seen: 77,
	}))
	direct := formerNatEntry{Client: address("198.51.100.8"), Backend: address("10.0.1.3"), BackendID: 5,
		Flags: uint8(DatapathNatEntryFlagNAT_ENTRY_DSR)}
	must(t, former.Put(formerNatKey{Addr: direct.Client, Proto: unix.IPPROTO_TCP}, direct))
	must(t, former.Pin(filepath.Join(dir, "maps", "nat_entries")))
	d, err := Load(Options{Settings: settingsOf(servicing), Sizes: Sizes{Translations: 64}, Dir: dir})
	must(t, err)
	defer d.Close()
	key := DatapathNatTuple{Src: address("198.51.100.7"), Sport: Port(40000), Dst: address("203.0.113.50"),
		Dport: Port(80), Proto: unix.IPPROTO_TCP}
	var row DatapathNatEntry
	must(t, d.NatEntries.Lookup(key, &row))
	if row.NatPort != Port(25031) || row.BackendId != 5 || row.Packets != [2]uint64{3, 2} || row.Seen != 77 {
		t.Errorf("converted to %+v", row)
	}
	var reply DatapathNatReply
	must(t, d.NatReplies.Lookup(DatapathNatTuple{Src: address("10.0.1.3"), Sport: Port(8080),
		Dst: address("192.0.2.1"), Dport: Port(25031), Proto: unix.IPPROTO_TCP}, &reply))
	if reply.Request != key {
		t.Errorf("the reply's entry names %+v, want %+v", reply.Request, key)
	}
	replies := rowsIn[DatapathNatTuple, DatapathNatReply](t, d.NatReplies)
	if entries := rowsIn[DatapathNatTuple, DatapathNatEntry](t, d.NatEntries); len(entries) != 2 || len(replies) != 1 {
		t.Errorf("%d entries and %d of replies, want 2 and 1: replies by DSR don't pass", len(entries), len(replies))
	}
}

// TestNatEntriesKept: flows go on that an agent has begun for which the maps of NAT entries were LRU maps.
func TestNatEntriesKept(t *testing.T) {
	dir := filepath.Join(bpffs(t), "myelin")
	must(t, os.MkdirAll(filepath.Join(dir, "maps"), 0o700))
	key := DatapathNatTuple{Sport: Port(40000), Dport: Port(80), Proto: unix.IPPROTO_TCP}
	row := DatapathNatEntry{BackendPort: Port(8080), BackendId: 5, Packets: [2]uint64{3, 2}}
	reply := ReplyTuple(&key, &row)
	for name, entry := range map[string]struct {
		key   DatapathNatTuple
		value any
		size  uint32
	}{"nat_entries": {key, row, 104}, "nat_replies": {reply, DatapathNatReply{Request: key}, 64}} {
		former, err := ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: ebpf.LRUHash, KeySize: 40, ValueSize: entry.size,
			MaxEntries: 64})
		must(t, err)
		must(t, former.Put(entry.key, entry.value))
		must(t, former.Pin(filepath.Join(dir, "maps", name)))
		must(t, former.Close())
	}
	d, err := Load(Options{Settings: settingsOf(servicing), Sizes: Sizes{Translations: 64}, Dir: dir})
	must(t, err)
	defer d.Close()
	var kept DatapathNatEntry
	must(t, d.NatEntries.Lookup(key, &kept))
	var keptReply DatapathNatReply
	own, err := d.ReadNatReply(&key, &kept, &keptReply)
	if must(t, err); kept != row || !own || d.NatEntries.Type() != ebpf.Hash {
		t.Errorf("%s has %+v (with an entry of replies: %v), want %+v", d.NatEntries.Type(), kept, own, row)
	}
}
