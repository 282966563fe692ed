package endpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/statedb/reconciler"

	"myelin/ipam"
)

// Restore rebuilds the table, the allocator and the slots from the state files,
// once, before the first Add. An endpoint that was being made or removed, and
// one whose link is gone, is cleared away. The others get their row, pending.
//
// The error tells which endpoints could not be restored; their files stay, and
// everything else is restored nevertheless. Only a directory that can't be read
// and a cancelled ctx leave the manager as it was, refusing Add and pruning
// nothing: Ready tells.
func (m *Manager) Restore(ctx context.Context) error {
	saved, bad, err := m.store.load()
	if err != nil {
		return fmt.Errorf("restore endpoints: %w", err)
	}
	failed := bad
	var rows []*Endpoint
	for _, e := range saved {
		if ctx.Err() != nil {
			return fmt.Errorf("restore endpoints: %w", context.Cause(ctx))
		}
		alive, err := m.restoreLink(e)
		if err != nil {
			failed = append(failed, fmt.Errorf("restore endpoint %d of %s: %w", e.ID, e.PodName(), err))
		}
		switch {
		case alive:
			rows = append(rows, e)
		case err == nil:
			m.log.Info("clear away endpoint", "endpoint", e.ID, "pod", e.PodName(), "state", e.State)
			failed = append(failed, m.store.remove(e.ID))
		}
	}
	txn := m.db.WriteTxn(m.table)
	defer txn.Abort()
	for _, e := range rows {
		if err := m.claim(e); err != nil {
			failed = append(failed, fmt.Errorf("restore endpoint %d of %s: %w", e.ID, e.PodName(), err))
			continue
		}
		e.Status = reconciler.StatusPending()
		if _, _, err := m.table.Insert(txn, e); err != nil {
			failed = append(failed, fmt.Errorf("insert endpoint %d: %w", e.ID, err))
		}
	}
	m.initDone(txn)
	txn.Commit()
	m.restored.Store(true)
	return errors.Join(failed...)
}

// Ready reports whether Restore has finished and Add may be called.
func (m *Manager) Ready() bool { return m.restored.Load() }

// restoreLink brings e up to date with its link, and removes the link of an
// endpoint that shall not live.
func (m *Manager) restoreLink(e *Endpoint) (alive bool, err error) {
	if e.State != StateReady {
		return false, m.driver.Delete(e.LinkName)
	}
	link, found, err := m.driver.Find(e.LinkName)
	if err != nil {
		// Not knowing is no reason to take the pod down: what was saved is right
		// unless the link was made anew.
		return true, err
	}
	if !found {
		return false, nil
	}
	e.Kind, e.LinkIndex, e.LinkMAC, e.MTU = link.Kind, link.Index, link.MAC, link.MTU
	return true, nil
}

// claim takes the slot and the addresses of a restored endpoint, all or none.
func (m *Manager) claim(e *Endpoint) error {
	a := e.Attachment()
	if err := m.slots.claim(a, e.ID); err != nil {
		return err
	}
	for _, addr := range e.Addresses() {
		err := m.ipam.Claim(a.String(), addr)
		if errors.Is(err, ipam.ErrOutside) {
			// The pod was made before the node's podCIDRs changed. Peers may not find
			// the way to it, but taking it down here would not help.
			m.log.Warn("pod address is in no podCIDR of the node any more", "pod", e.PodName(), "address", addr)
			continue
		}
		if err != nil {
			m.ipam.Release(a.String())
			m.slots.release(a)
			return err
		}
	}
	return nil
}
