package gateway

import (
	"testing"

	apiv1 "myelin/api/v1"
)

// A peer that is slower than the walk gets every flow once, in later walks, and nothing waits for it.
func TestSlowPeer(t *testing.T) {
	const flows = 3000
	r := newRig(t, false, 8192, peering(freeAddress(t), "127.0.0.1:1", trusted))
	for i := range flows {
		r.forward(r.flow(10000+i), 2)
	}
	x := &session{queue: make(chan []*apiv1.PeerFlow, 1)}
	r.senders[0].session.Store(x)
	got := map[uint32]int{}
	for walk, want := range []int{maxBatch, 2 * maxBatch, flows, flows} {
		if err := r.walk.pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := x.behind.Load(); n != flows || !x.walked.Load() { // none is acknowledged
			t.Errorf("walk %d: %d flows behind", walk, n)
		}
		select {
		case batch := <-x.queue:
			for _, m := range batch {
				got[m.GetClientPort()]++
			}
		default:
		}
		if len(got) != want {
			t.Errorf("walk %d: %d flows were sent, want %d", walk, len(got), want)
		}
	}
	for port, n := range got {
		if n != 1 {
			t.Errorf("flow %d was sent %d times", port, n)
		}
	}
}

// Entries that no other node could forward are counted, and not sent.
func TestLocalFlows(t *testing.T) {
	r := newRig(t, true, 4096, peering(freeAddress(t), "127.0.0.1:1", trusted))
	m := r.flow(40000)
	key := r.forward(m, 2)
	f, _ := parse(m)
	e := f.entry(r.clock(), member{service: 1, backend: 1})
	e.Flags, e.Packets[0] = flagReplied, 2
	if err := r.Datapath.NatEntries.Put(key, e); err != nil {
		t.Fatal(err)
	}
	x := &session{queue: make(chan []*apiv1.PeerFlow, 1)}
	r.senders[0].session.Store(x)
	if err := r.walk.pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f := r.Flows(); f.Own != 1 || f.Local != 1 || len(x.queue) > 0 || r.Synchronised() {
		t.Errorf("got %+v, %d messages", f, len(x.queue))
	}
}
