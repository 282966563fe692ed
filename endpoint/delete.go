package endpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/statedb/reconciler"
)

// Delete removes an attachment and whatever is left of it, and returns when the
// datapath has forgotten it. An attachment that does not exist is no error. On
// error the addresses stay taken and Delete may be repeated.
func (m *Manager) Delete(ctx context.Context, a Attachment) error {
	release, err := m.locks.acquire(ctx, a)
	if err != nil {
		return err
	}
	defer release()
	if err := m.remove(ctx, a); err != nil {
		return fmt.Errorf("delete %s: %w", a, err)
	}
	return nil
}

// remove undoes Add from any step. The caller holds the attachment's lock.
func (m *Manager) remove(ctx context.Context, a Attachment) error {
	if e := m.find(a); e != nil {
		if _, err := m.forget(ctx, e); err != nil {
			return err
		}
	}
	return m.finish(a)
}

// finish is the part of remove that comes after the datapath has forgotten the
// endpoint: link, row, file, addresses and slot. It can be repeated.
func (m *Manager) finish(a Attachment) error {
	if err := m.driver.Delete(linkName(a)); err != nil {
		return err
	}
	if err := m.config.Step("unlink"); err != nil {
		return err
	}
	// The row goes after the link, so that a second Add is refused as long as
	// anything is left.
	if e := m.find(a); e != nil {
		if err := m.deleteRow(e); err != nil {
			return err
		}
	}
	if err := m.config.Step("unrow"); err != nil {
		return err
	}
	if id, ok := m.slots.of(a); ok {
		if err := m.store.remove(id); err != nil {
			return err
		}
	}
	if err := m.config.Step("unfile"); err != nil {
		return err
	}
	m.ipam.Release(a.String())
	m.slots.release(a)
	return nil
}

// forget has the reconciler remove the endpoint from the kernel. Writing the
// state first makes a crash in between end in a removal, too. A state that can't
// be written, as on a full disk, doesn't keep the endpoint from being removed:
// recorded is false then, and only the caller's answer may say that it is gone.
func (m *Manager) forget(ctx context.Context, e *Endpoint) (recorded bool, err error) {
	e = e.Clone()
	e.State = StateDeleting
	e.Status = reconciler.StatusPending()
	unwritten := m.store.write(e)
	if unwritten != nil {
		m.log.Warn("the deletion of an endpoint is not recorded",
			"endpoint", e.ID, "pod", e.PodName(), "error", unwritten)
	}
	if err := m.insert(e); err != nil {
		return false, err
	}
	if err := m.config.Step("deleting"); err != nil {
		return false, err
	}
	if err := m.wait(ctx, e.ID); err != nil {
		return false, err
	}
	return unwritten == nil, m.config.Step("forgotten")
}

// GC deletes every attachment that is not in valid.
func (m *Manager) GC(ctx context.Context, valid []Attachment) error {
	keep := make(map[Attachment]bool, len(valid))
	for _, a := range valid {
		keep[a] = true
	}
	var failed []error
	for e := range m.table.All(m.db.ReadTxn()) {
		if a := e.Attachment(); !keep[a] {
			m.log.Info("garbage-collect endpoint", "endpoint", e.ID, "pod", e.PodName(), "attachment", a)
			failed = append(failed, m.Delete(ctx, a))
		}
	}
	return errors.Join(failed...)
}
