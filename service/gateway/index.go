package gateway

import (
	"time"

	apiv1 "myelin/api/v1"
	"myelin/bpf"
	"myelin/flow"
	"myelin/service"
)

// Peers hear of a flow that is going on before its entry there expires: TCP connections after tcpRefresh of packets,
// others, which are kept for a minute, after otherRefresh.
const (
	tcpRefresh   = 10 * time.Minute
	otherRefresh = 15 * time.Second
)

// index has the state of each flow of this node that was last sent to peers, and the peers that need an update. It
// takes about 120 bytes per flow, and has at most as many flows as nat_entries. Only the walk uses it.
type index struct {
	flows map[bpf.DatapathNatTuple]told
	pass  uint8
	found int // flows that the pass has found
}

func newIndex() index { return index{flows: map[bpf.DatapathNatTuple]told{}} }

// begin begins a pass.
func (x *index) begin() { x.pass, x.found = x.pass+1, 0 }

// told is the state of a flow that was last sent.
type told struct {
	seen, created uint32 // ticks
	// pending has a bit for each peer that still needs the update.
	pending uint16
	state   uint8 // apiv1.PeerFlowState
	pass    uint8 // that found it last
}

// peerSet has a bit for each peer.
type peerSet = uint16

// note updates a flow that the walk has found. all are the peers with a session. It returns which of them are to be
// told, and which of these have become so.
func (x *index) note(
	clock flow.Clock, k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry, state apiv1.PeerFlowState, all peerSet,
) (pending, added peerSet) {
	old, known := x.flows[*k]
	next := old
	if state == unproven || !known && state != established {
		return 0, 0 // the first was another flow; the second was never worth telling
	}
	if !known || old.pass != x.pass {
		x.found++
	}
	next.pass = x.pass
	if !known || uint8(state) != old.state || uint32(r.Created) != old.created || refreshDue(clock, k, r, old.seen) {
		next.seen, next.created, next.state = r.Seen, uint32(r.Created), uint8(state)
		next.pending |= all
	}
	added = next.pending &^ old.pending
	x.flows[*k] = next
	return next.pending, added
}

// tell removes peers from the pending ones of a flow.
func (x *index) tell(k *bpf.DatapathNatTuple, peers peerSet) {
	t := x.flows[*k]
	t.pending &^= peers
	x.flows[*k] = t
}

// refreshDue reports whether peers need a refresh of a flow that continues.
func refreshDue(clock flow.Clock, k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry, seen uint32) bool {
	after := otherRefresh
	if k.Proto == uint8(service.TCP) {
		after = tcpRefresh
	}
	return int32(r.Seen-seen) >= int32(int64(clock.Hz)*int64(after/time.Second))
}

// tellAll makes all flows pending for a peer, and returns for how many that is new. fresh: the peer knows none,
// whatever is pending for it.
func (x *index) tellAll(peer peerSet, fresh bool) (added int64) {
	for k, t := range x.flows {
		if fresh || t.pending&peer == 0 {
			t.pending |= peer
			x.flows[k] = t
			added++
		}
	}
	return added
}

// end calls fn for each flow that the pass has not found, with the peers for which that is new, and forgets the flow
// when fn says that all peers know.
func (x *index) end(all peerSet, fn func(k *bpf.DatapathNatTuple, t *told, added peerSet) (pending peerSet)) {
	if x.found == len(x.flows) {
		return
	}
	for k, t := range x.flows {
		if t.pass == x.pass {
			continue
		}
		added := peerSet(0)
		if uint8(ended) != t.state {
			added = all &^ t.pending
			t.state, t.pending = uint8(ended), all
		}
		if t.pending = fn(&k, &t, added); t.pending == 0 {
			delete(x.flows, k)
			continue
		}
		x.flows[k] = t
	}
}
