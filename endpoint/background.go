package endpoint

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// atOnce bounds how many deletions are finished at the same time. The kernel
// deletes devices one after the other, so more would not be faster, and Close
// waits for those that have begun.
const atOnce = 4

// Retries of a deletion that was answered and can't be finished.
const (
	finishRetryMin = time.Second
	finishRetryMax = time.Minute
)

// background runs what is left of deletions that were answered already.
type background struct {
	running sync.WaitGroup
	turns   chan struct{}
	closing context.Context
	close   context.CancelFunc

	mu     sync.Mutex
	closed bool
}

func newBackground() background {
	closing, stop := context.WithCancel(context.Background())
	return background{turns: make(chan struct{}, atOnce), closing: closing, close: stop}
}

// start runs do in the background, and reports whether that is still possible.
func (b *background) start(do func()) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.running.Go(do)
	return true
}

// Close ends what runs in the background and waits for the device that is just
// being deleted. What is left is in the state files, as deleting, and the next
// Restore finishes it.
func (m *Manager) Close() {
	b := &m.background
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.close()
	b.running.Wait()
}

// DeleteAsync is Delete for callers that can't wait for the kernel: deleting a veth
// pair takes it 20 ms, in which it waits for grace periods of RCU. It returns as
// soon as the state file says that the endpoint is to be deleted and the datapath
// has forgotten it: no packet leaves the pod or reaches it any more. Link, row,
// file, addresses and slot go afterwards, in this order, and after a crash with
// the next Restore. An endpoint whose state can't be recorded so is deleted
// before DeleteAsync returns.
func (m *Manager) DeleteAsync(ctx context.Context, a Attachment) error {
	release, err := m.locks.acquire(ctx, a)
	if err != nil {
		return err
	}
	recorded := false
	e := m.find(a)
	if e != nil {
		recorded, err = m.forget(ctx, e)
	}
	if err == nil && recorded && m.background.start(func() { m.finishLater(e, release) }) {
		return nil
	}
	defer release()
	if err == nil {
		err = m.finish(a)
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", a, err)
	}
	return nil
}

// finishLater finishes the deletion of e, until it is successful, another call
// has done it, or the manager is closed. The lock is held while it works, and not
// while it waits to try again.
func (m *Manager) finishLater(e *Endpoint, release func()) {
	a := e.Attachment()
	for wait := finishRetryMin; ; wait = min(2*wait, finishRetryMax) {
		err := m.finishInTurn(a)
		release()
		if err == nil || m.background.closing.Err() != nil {
			return
		}
		m.log.Warn("the deletion of an endpoint is not finished, and tried again",
			"endpoint", e.ID, "pod", e.PodName(), "link", e.LinkName, "after", wait, "error", err)
		select {
		case <-time.After(wait):
		case <-m.background.closing.Done():
			return
		}
		if release, err = m.locks.acquire(m.background.closing, a); err != nil {
			return
		}
		if id, taken := m.slots.of(a); !taken || id != e.ID { // the slot goes last
			release()
			return
		}
	}
}

// finishInTurn is finish, with at most atOnce at the same time.
func (m *Manager) finishInTurn(a Attachment) error {
	select {
	case m.background.turns <- struct{}{}:
		defer func() { <-m.background.turns }()
		return m.finish(a)
	case <-m.background.closing.Done():
		return context.Cause(m.background.closing)
	}
}

// waitForPredecessor waits for the deletion of an endpoint that has the same
// interface in the same network namespace.
func (m *Manager) waitForPredecessor(ctx context.Context, req Request) error {
	for e := range m.table.All(m.db.ReadTxn()) {
		if !e.Deleting() || e.NetNS != req.NetNS || e.IfName != req.IfName {
			continue
		}
		release, err := m.locks.acquire(ctx, e.Attachment())
		if err != nil {
			return err
		}
		release()
	}
	return nil
}
