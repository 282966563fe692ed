package gateway

import (
	"testing"

	apiv1 "myelin/api/v1"
	"myelin/bpf"
	"myelin/flow"
)

const both = peerSet(3)

// Peers receive a flow's begin, changes of its state, refreshes, and its end; each peer does, also if the first attempt
// to send failed.
func TestIndex(t *testing.T) {
	x, clock := newIndex(), flow.Clock{Ticks: 1 << 20, Hz: 1000}
	k := bpf.DatapathNatTuple{Proto: 6, Sport: 1}
	r := bpf.DatapathNatEntry{Seen: 1 << 20, Created: 1 << 20}
	note := func(step string, want, wantAdded peerSet, state uint8) {
		t.Helper()
		x.begin()
		pending, added := x.note(clock, &k, &r, apiv1.PeerFlowState(state), both)
		if pending != want || added != wantAdded {
			t.Errorf("%s: pending %b, added %b, want %b and %b", step, pending, added, want, wantAdded)
		}
	}
	note("a SYN", 0, 0, uint8(unproven))
	note("closed before it was told", 0, 0, uint8(closing))
	note("established", both, both, uint8(established))
	x.tell(&k, 1)
	note("one knows", 2, 0, uint8(established))
	x.tell(&k, 2)
	note("all know", 0, 0, uint8(established))
	r.Seen += 599_000
	note("too early for a refresh", 0, 0, uint8(established))
	r.Seen += 1000
	note("a refresh", both, both, uint8(established))
	x.tell(&k, both)
	note("closing", both, both, uint8(closing))
	x.tell(&k, both)
	r.Created++
	note("another connection with the same ports", both, both, uint8(established))
	if n := x.tellAll(1, false); n != 0 {
		t.Errorf("%d flows became pending again", n)
	}
	x.tell(&k, both)
	if n := x.tellAll(1, false) + x.tellAll(2, true); n != 2 {
		t.Errorf("%d flows became pending, want one for each peer", n)
	}
	x.tell(&k, both)
	x.begin()
	var calls int
	end := func(left peerSet) {
		x.end(both, func(_ *bpf.DatapathNatTuple, told *told, added peerSet) peerSet {
			calls++
			if calls == 1 && (added != both || told.pending != both) ||
				calls == 2 && (added != 0 || told.pending != 2) {
				t.Errorf("call %d: added %b, pending %b", calls, added, told.pending)
			}
			return left
		})
	}
	end(2)
	end(0)
	end(0)
	if calls != 2 || len(x.flows) != 0 {
		t.Errorf("%d calls, %d flows left", calls, len(x.flows))
	}
}

// UDP entries live for a minute: peers hear of them more often.
func TestRefreshOfUDP(t *testing.T) {
	clock := flow.Clock{Hz: 1000}
	k := &bpf.DatapathNatTuple{Proto: 17}
	if refreshDue(clock, k, &bpf.DatapathNatEntry{Seen: 14_999}, 0) ||
		!refreshDue(clock, k, &bpf.DatapathNatEntry{Seen: 15_000}, 0) {
		t.Error("not after 15 s")
	}
}
