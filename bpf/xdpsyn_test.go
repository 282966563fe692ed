package bpf

import (
	"fmt"
	"testing"
)

// askAgain is a SYN in XDP of a flow that has an entry: XDP takes it for the first of its flow and may begin to claim a
// port, but leaves it to from_wire, and nothing of the claim stays.
func askAgain(port int, before, after func(testing.TB, *world)) step {
	return step{at: xdpAt, in: fmt.Sprintf("eth router > node | ip world > lb ttl 60 | tcp %d > 81 S", port), want: "",
		out: "=", before: before, after: after}
}

// synTables are SYNs in XDP of known flows.
func synTables() []table {
	moved := xdpKnown("another backend is selected", askAgain(40000, movesFlow, func(t testing.TB, w *world) {
		t.Helper()
		translationsAre(2)(t, w)
		natRepliesAre(2)(t, w)
		var counted uint32
		must(t, w.Shares.Lookup(uint32(1*4096), &counted))
		if counted != 0 {
			t.Errorf("%d entries are counted, want none", counted)
		}
	}), step{at: xdpAt, in: `eth router > node | ip world > lb ttl 60 | tcp 40000 > 81 A`, want: "FORWARD_WIRE",
		out: `eth node > node2 | ip node > c ttl 59 | tcp 51000 > 8081 A`})
	same := xdpKnown("the same backend is selected", askAgain(40000, sumReplies, stillSum))
	fill := func(port int) step {
		return step{at: xdpAt, in: fmt.Sprintf("eth router > node | ip world > lb | tcp %d > 81 S", port),
			want: "FORWARD_WIRE"}
	}
	full := xdpBegins("no room, and nothing makes room", fill(40000), fill(40001), fill(40002),
		askAgain(40000, movesFlow, func(t testing.TB, w *world) {
			translationsAre(floodRoom)(t, w)
			natRepliesAre(floodRoom)(t, w)
		}))
	above := statelessRows(xdpAt)[0]
	above.name = "above the rate, and the flow has an entry"
	above.steps = append(above.steps[:3:3], limited(2, askAgain(40000, nil, translationsAre(2))),
		step{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | tcp 40000 > 81 S`,
			want: "FORWARD_WIRE", after: unlimited})
	return []table{
		{name: "services, known SYN", settings: settingsOf(servicing), rows: []row{moved, same}},
		{name: "services, known SYN, no room", settings: settingsOf(servicing, eightPorts, crowded), tweak: crowd,
			rows: []row{full}},
		{name: "services, known SYN, flood", settings: settingsOf(servicing, direct, ipip), rows: []row{above}},
	}
}

// movesFlow has the flow of port 40000 go to another port of its backend than the Service's, and counts entries from 0
// on.
func movesFlow(t testing.TB, w *world) {
	t.Helper()
	must(t, w.Shares.Put(uint32(1*4096), uint32(0)))
	for k, e := range rowsIn[DatapathNatTuple, DatapathNatEntry](t, w.NatEntries) {
		if k.Proto != 6 || k.Sport != Port(40000) {
			continue
		}
		was := ReplyTuple(&k, &e)
		var r DatapathNatReply
		must(t, w.NatReplies.Lookup(was, &r))
		must(t, w.NatReplies.Delete(was))
		e.BackendPort = Port(8081)
		must(t, w.NatReplies.Put(ReplyTuple(&k, &e), r))
		must(t, w.NatEntries.Put(k, e))
	}
}

// sumReplies has seven replies that no flush has moved to the flow's NAT entry.
func sumReplies(t testing.TB, w *world) {
	t.Helper()
	for k, r := range rowsIn[DatapathNatTuple, DatapathNatReply](t, w.NatReplies) {
		r.Packets = 7
		must(t, w.NatReplies.Put(k, r))
	}
}

func stillSum(t testing.TB, w *world) {
	t.Helper()
	for k, r := range rowsIn[DatapathNatTuple, DatapathNatReply](t, w.NatReplies) {
		if r.Packets != 7 {
			t.Errorf("%d replies of %+v, want 7", r.Packets, k)
		}
	}
}

func natRepliesAre(want int) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		if got := len(rowsIn[DatapathNatTuple, DatapathNatReply](t, w.NatReplies)); got != want {
			t.Errorf("%d entries of replies, want %d", got, want)
		}
	}
}
