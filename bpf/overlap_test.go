package bpf

import (
	"net/netip"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// flowsToCopy are entries of one flow by what is done with it: whether it is in the table when that is copied, and
// whether packets add it to the table of before or of today then.
var flowsToCopy = []struct {
	name                  string
	copied, before, today bool
	want                  uint64 // index of the entry that remains: 1 copied, 2 of before, 3 of today
}{
	{"copied", true, false, false, 1},
	{"begins", false, true, false, 2},
	{"begins in both", false, true, true, 3},
	{"begins again", true, true, false, 2},
	{"begins again in both", true, true, true, 3},
}

// TestTakeOver: flows that begin while tables are copied to larger ones are in these afterwards, also with the ports of
// a closed connection whose entry was copied.
func TestTakeOver(t *testing.T) {
	o := growing(t)
	o.Settings.Masquerade4, o.Settings.NatPortMin, o.Settings.NatPortMax = 1, 32768, 60999
	before, err := Load(o)
	must(t, err)
	t.Cleanup(func() { before.Close() })
	for i, f := range flowsToCopy {
		if f.copied {
			putFlow(t, before, i, 1, 1)
		}
	}
	o.Sizes.Flows, o.Sizes.Translations = 4096, 4096
	after, err := Load(o)
	must(t, err)
	t.Cleanup(func() { after.Close() })
	now, err := Ticks()
	must(t, err)
	for i, f := range flowsToCopy {
		if f.before {
			putFlow(t, before, i, 2, now+1)
		}
		if f.today {
			putFlow(t, after, i, 3, now+2)
		}
	}
	n, err := after.TakeOver()
	if err != nil || n != 4 {
		t.Errorf("%d entries were added, want 4, %v", n, err)
	}
	for i, f := range flowsToCopy {
		key, tuple := keysToCopy(i)
		var row DatapathFlow
		if err := after.Flows.Lookup(key, &row); err != nil || row.Side[0].Packets != f.want {
			t.Errorf("%s: entry %d remains, want %d, %v", f.name, row.Side[0].Packets, f.want, err)
		}
		index, port := masqueradePort(&key, &row)
		var indexed DatapathPortIndex
		if err := after.PortIndexes.Lookup(index, &indexed); err != nil || indexed != port {
			t.Errorf("%s: the index has NAT port %d, want %d, %v", f.name, indexed.Port, port.Port, err)
		}
		var entry DatapathNatEntry
		var reply DatapathNatReply
		must(t, after.NatEntries.Lookup(tuple, &entry))
		own, err := after.ReadNatReply(&tuple, &entry, &reply)
		if err != nil || !own || entry.Packets[0] != f.want || reply.Bytes != f.want {
			t.Errorf("%s: NAT entry %d and reply %d (%t) remain, want %d, %v", f.name, entry.Packets[0], reply.Bytes,
				own, f.want, err)
		}
	}
	if n := len(rowsIn[DatapathNatTuple, DatapathNatReply](t, after.NatReplies)); n != len(flowsToCopy) {
		t.Errorf("there are %d entries of replies, want %d", n, len(flowsToCopy))
	}
}

// keysToCopy are the keys of flow i.
func keysToCopy(i int) (DatapathFlowKey, DatapathNatTuple) {
	a, b, sport := Addr(netip.MustParseAddr("10.0.0.1")), Addr(netip.MustParseAddr("10.0.0.2")), Port(uint16(1000+i))
	return DatapathFlowKey{Addr: [2]DatapathAddr{a, b}, Port: [2]uint16{sport, Port(80)}, Proto: unix.IPPROTO_TCP},
		DatapathNatTuple{Src: a, Dst: b, Sport: sport, Dport: Port(80), Proto: unix.IPPROTO_TCP}
}

// putFlow writes the entries of flow i, which say that they are the given one, and are from a tick. NAT entries have a
// NAT port of their own each; the conntrack entry is that of a masqueraded pod, and its port is in the index.
func putFlow(t *testing.T, d *Datapath, i int, entry, created uint64) {
	t.Helper()
	key, tuple := keysToCopy(i)
	row := DatapathFlow{Created: created, Pod: Addr(netip.MustParseAddr("10.0.1.1")), PodPort: key.Port[0],
		Flags: uint8(DatapathFlowFlagFLOW_NAT | DatapathFlowFlagFLOW_INDEXED)}
	row.Side[0].Packets = entry
	must(t, d.Flows.Put(key, row))
	index, port := masqueradePort(&key, &row)
	must(t, d.PortIndexes.Put(index, port))
	var closed DatapathNatEntry
	if d.NatEntries.Lookup(tuple, &closed) == nil {
		must(t, d.DeleteNatReply(&tuple, &closed))
	}
	e := DatapathNatEntry{Backend: tuple.Dst, BackendPort: Port(8080), Snat: tuple.Src, BackendId: 1,
		NatPort: Port(uint16(20000 + 10*i + int(entry))), Flags: uint8(DatapathNatEntryFlagNAT_ENTRY_SNAT),
		Packets: [2]uint64{entry}}
	e.SetCreatedAt(created)
	must(t, d.NatEntries.Put(tuple, e))
	must(t, d.NatReplies.Put(ReplyTuple(&tuple, &e), DatapathNatReply{Request: tuple, Bytes: entry}))
}

// TestAhead: a function runs in a thread that is scheduled before others, and is as others afterwards.
func TestAhead(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	policy := func() uint32 {
		a, err := unix.SchedGetAttr(0, 0)
		must(t, err)
		return a.Policy
	}
	before, during := policy(), uint32(0)
	ahead(func() { during = policy() })
	if after := policy(); during != unix.SCHED_RR || after != before {
		t.Errorf("policy %d, then %d, then %d, want %d meanwhile", before, during, after, unix.SCHED_RR)
	}
}
