package endpoint

import (
	"context"
	"sync"
)

// Run deletes endpoints whose link vanishes because the pod's namespace died
// without a DEL, until ctx ends. It returns an error only when the kernel's
// link events can't be had. Call it after Restore.
func (m *Manager) Run(ctx context.Context) error {
	var lost sync.WaitGroup
	defer lost.Wait()
	check := func(e *Endpoint) {
		// Events come one after the other, and a deletion may have to wait for an
		// operation that runs: there are at most as many as endpoints.
		lost.Go(func() { m.deleteIfLost(ctx, e.Attachment()) })
	}
	return m.driver.Watch(ctx,
		func(index int) {
			for e := range m.table.All(m.db.ReadTxn()) {
				if e.LinkIndex == index {
					check(e)
				}
			}
		},
		func() {
			for e := range m.table.All(m.db.ReadTxn()) {
				if _, found, err := m.driver.Find(e.LinkName); err == nil && !found {
					check(e)
				}
			}
		})
}

// deleteIfLost looks again under the lock: the link may have been deleted by a
// DEL that has finished since, or be there again.
func (m *Manager) deleteIfLost(ctx context.Context, a Attachment) {
	release, err := m.locks.acquire(ctx, a)
	if err != nil {
		return
	}
	defer release()
	e := m.find(a)
	if e == nil {
		return
	}
	link, found, err := m.driver.Find(e.LinkName)
	if err == nil && found && link.Index == e.LinkIndex {
		return
	}
	if err == nil {
		m.log.Info("pod link is gone, delete endpoint", "endpoint", e.ID, "pod", e.PodName(), "link", e.LinkName)
		err = m.remove(ctx, a)
	}
	if err != nil && ctx.Err() == nil {
		m.log.Warn("delete endpoint without link", "endpoint", e.ID, "pod", e.PodName(), "error", err)
	}
}
