package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Processors and priorities while a front's rate is measured: one processor runs the load balancer, as the thread that
// polls its wire, and the reader of the counters; the other runs the sender and, with a higher priority, what counts
// and loses what comes back.
const (
	balancerProcessor, senderProcessor = 0, 1
	usually, before                    = 1, 2
)

const (
	burstFrames = 256     // sent at once: as many as a veth keeps for its poller, and the kernel allows
	warmFrames  = 1 << 15 // sent before it is looked
	runFrames   = 3 << 19 // that a run sends; the more of them come in vain, the faster they are sent
	window      = 40 * time.Millisecond
	leastWorked = 0.5 // of the window: what works less is mostly woken
)

// moment is what has happened until a point of time.
type moment struct {
	at         time.Time
	sent, came uint64        // packets; sent in this run
	worked     time.Duration // of the load balancer
}

// apart has both ends of the wire polled by threads, and those on their processors.
func (f *front) apart(ctx context.Context) (err error) {
	if f.poller, err = pollApart(ctx, f.prefix+"a", f.index[0], balancerProcessor, usually); err != nil {
		return err
	}
	_, err = pollApart(ctx, f.prefix+"b", f.index[1], senderProcessor, before)
	return err
}

// saturated has frames of a player sent from the other end of the wire, faster than they can be balanced, and returns
// two moments in between.
func (f *front) saturated(p *player) (from, to moment, err error) {
	had, err := p.played()
	if err != nil {
		return from, to, err
	}
	var watched atomic.Bool
	sent := make(chan error, 1)
	go func() {
		sent <- undisturbed(f.prefix+"b", senderProcessor, usually, func() error {
			for !watched.Load() {
				nap(time.Millisecond)
			}
			return p.live(f.index[1], runFrames, burstFrames)
		})
	}()
	err = undisturbed(f.prefix+"b", balancerProcessor, before, func() error {
		watched.Store(true)
		var err error
		from, to, err = f.watch(p, had)
		return err
	})
	watched.Store(true) // also where it can't be watched
	if err = errors.Join(err, <-sent); err != nil {
		return from, to, fmt.Errorf("send frames through %s: %w", f.name, err)
	}
	return from, to, nil
}

// watch looks when the first frames are sent, and a window later. Half a second is patience enough for them.
func (f *front) watch(p *player, had uint64) (from, to moment, err error) {
	for range 500 {
		nap(time.Millisecond)
		if from, err = f.now(p, had); err != nil || from.sent >= warmFrames {
			break
		}
	}
	if err != nil {
		return from, to, err
	}
	nap(window)
	to, err = f.now(p, had)
	return from, to, err
}

func (f *front) now(p *player, had uint64) (m moment, err error) {
	if m.worked, err = f.poller.worked(); err != nil {
		return m, err
	}
	if m.sent, err = p.played(); err != nil {
		return m, err
	}
	m.came, err = f.sink.count()
	m.sent, m.at = m.sent-had, time.Now()
	return m, err
}

// rate is packets that came between two moments, a second of the load balancer's time: of the wall clock's, too, as
// long as the load balancer is never without packets; where the sender is held up, that doesn't count. share is how
// much of the wall clock's time the load balancer worked.
func rate(from, to moment) (value, share float64, err error) {
	took := (to.worked - from.worked).Seconds()
	share = took / to.at.Sub(from.at).Seconds()
	sent, came := to.sent-from.sent, to.came-from.came
	switch {
	case from.sent < warmFrames:
		return 0, share, fmt.Errorf("only %d frames were sent when it began", from.sent)
	case to.sent >= runFrames:
		return 0, share, fmt.Errorf("all %d frames were sent before it was over", to.sent)
	case sent <= came || share < leastWorked:
		return 0, share, fmt.Errorf("not saturated: it worked %.3f of the time, %d frames were sent, %d came", share,
			sent, came)
	case came == 0:
		return 0, share, fmt.Errorf("of %d frames none came", sent)
	}
	return float64(came) / took, share, nil
}

// nap waits without telling Go's scheduler, whose threads may get no processor to say that it is over. Its signals,
// which end a sleep, don't end this.
func nap(d time.Duration) {
	for end := time.Now().Add(d); d > 0; d = time.Until(end) {
		t := unix.NsecToTimespec(int64(d))
		unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
	}
}
