package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	apiv1 "myelin/api/v1"
	"myelin/bpf"
	"myelin/flow"
	"myelin/service/nat"
)

// Bounds of the work of walking over nat_entries.
const (
	walkInterval = time.Second // from the begin of one walk to that of the next, at least
	walkRate     = 1 << 17     // entries a second, at most
	walkStep     = 1 << 10     // entries between looks at the limit
	maxBatch     = 1 << 10     // flows in a message
)

// activeTime is how long after its last packet a flow counts as active.
const activeTime = 10 * time.Second

// Flows are the numbers of flows in nat_entries, without those that have expired.
type Flows struct {
	At      time.Time // when the walk ended
	Own     int64     // a request has arrived here
	Active  int64     // of these, with a packet in the last ten seconds
	Local   int64     // of these, that no other node can forward: the backend is this node
	Learned int64     // of peers
}

// errAnew ends a walk that no peer hears of when one connects: the next walk is for it.
var errAnew = errors.New("a peer has connected")

// walk finds what has changed in nat_entries, and hands it to the peers.
type walk struct {
	gateway *Gateway
	index   index
	outbox  []outbox // by peer
	wake    chan struct{}
	flows   atomic.Pointer[Flows]
}

// outbox has the flows that are to be sent to a peer next.
type outbox struct {
	session *session // nil: not connected
	batch   []*apiv1.PeerFlow
}

// room makes room for another flow, if the peer is not slower than the walk.
func (o *outbox) room() bool { return len(o.batch) < maxBatch || o.flush() }

// flush queues the batch. It returns false if the queue is full: the peer gets the batch later.
func (o *outbox) flush() bool {
	if len(o.batch) == 0 || o.session == nil {
		return true
	}
	select {
	case o.session.queue <- o.batch:
		o.batch = nil
		return true
	default:
		return false
	}
}

// run walks until ctx ends, while there are peers or the counts are needed.
func (w *walk) run(ctx context.Context) error {
	tick := time.NewTicker(walkInterval)
	defer tick.Stop()
	for {
		if len(w.outbox) > 0 || w.gateway.Draining() {
			if err := w.pass(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, errAnew) {
				w.gateway.Log.Warn("peers are not told of flows for now", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-w.wake: // a peer has connected, or drain has begun
			tick.Reset(walkInterval)
		}
	}
}

// poke begins a walk at once.
func (w *walk) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// pass walks once.
func (w *walk) pass(ctx context.Context) error {
	clock, err := flow.ReadClock(w.gateway.hz)
	if err != nil {
		return fmt.Errorf("walk over flows: %w", err)
	}
	sessions := w.sessions()
	w.index.begin()
	var seen Flows
	var failed error
	entries, limit := int64(0), rate.NewLimiter(walkRate, walkStep)
	err = bpf.Each(w.gateway.Datapath.NatEntries, func(k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry) bool {
		w.entry(clock, k, r, sessions, &seen)
		if entries++; entries%walkStep == 0 {
			if failed = limit.WaitN(ctx, walkStep); sessions == 0 && len(w.wake) > 0 {
				failed = errAnew
			}
		}
		return failed == nil
	})
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("walk over flows: %w", err)
	}
	w.index.end(sessions, func(k *bpf.DatapathNatTuple, t *told, added peerSet) peerSet {
		w.behind(added)
		return w.ended(clock, k, t, sessions)
	})
	for i := range w.outbox {
		if o := &w.outbox[i]; o.session != nil {
			o.flush()
			o.session.walked.Store(true)
		}
	}
	seen.At = time.Now()
	w.flows.Store(&seen)
	w.gateway.installer.entries.Store(entries)
	w.gateway.installer.learned.Store(seen.Learned)
	return nil
}

// sessions brings the outboxes up to date, and returns the peers that are connected. A peer that has connected, or
// asks for it, gets all flows.
func (w *walk) sessions() (all peerSet) {
	for i := range w.outbox {
		o, now := &w.outbox[i], w.gateway.senders[i].session.Load()
		bit := peerSet(1) << i
		if now == nil {
			*o = outbox{}
			continue
		}
		if fresh := now != o.session; fresh || now.takeResend() {
			if fresh {
				*o = outbox{session: now}
			}
			now.behind.Add(w.index.tellAll(bit, fresh))
		}
		o.flush()
		all |= bit
	}
	return all
}

// entry counts an entry, and tells peers of it if it has changed.
func (w *walk) entry(
	clock flow.Clock, k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry, sessions peerSet, seen *Flows,
) {
	switch {
	case r.BackendId == 0, r.Flags&flagGone != 0, nat.Expired(clock, k, r):
		return
	case learned(r):
		seen.Learned++
		return
	}
	seen.Own++
	if clock.Idle(r.Seen) < activeTime {
		seen.Active++
	}
	if r.Flags&(flagSNAT|flagDSR) == 0 {
		seen.Local++
		return
	}
	if len(w.outbox) == 0 {
		return
	}
	state := stateOf(k, r)
	pending, added := w.index.note(clock, k, r, state, sessions)
	if pending &= sessions; pending == 0 {
		return
	}
	w.behind(added)
	if sent := w.send(pending, message(clock, k, r, state)); sent != 0 {
		w.index.tell(k, sent)
	}
}

// ended sends the end of a flow to peers, and returns those that still need it.
func (w *walk) ended(clock flow.Clock, k *bpf.DatapathNatTuple, t *told, sessions peerSet) peerSet {
	pending := t.pending & sessions
	m := identity(k)
	m.State, m.IdleMs = ended, uint32(min(clock.Idle(t.seen).Milliseconds(), 1<<31))
	return pending &^ w.send(pending, m)
}

// send puts a flow into the outboxes of peers. It returns those that had room.
func (w *walk) send(peers peerSet, m *apiv1.PeerFlow) (sent peerSet) {
	for i := range w.outbox {
		if bit := peerSet(1) << i; peers&bit != 0 && w.outbox[i].room() {
			w.outbox[i].batch = append(w.outbox[i].batch, m)
			sent |= bit
		}
	}
	return sent
}

// behind counts another flow that peers do not know yet.
func (w *walk) behind(peers peerSet) {
	for i := range w.outbox {
		if peers>>i&1 != 0 {
			w.outbox[i].session.behind.Add(1)
		}
	}
}
