package endpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/cilium/statedb/reconciler"

	"myelin/endpoint/podlink"
)

// undoTimeout bounds what Add takes to roll back after its own context ended.
const undoTimeout = 10 * time.Second

// Add gives a pod its interface and returns when the datapath knows it. On
// error nothing is left. A second Add of an attachment is refused with
// ErrExists whatever its state: a runtime must not do that (CNI specification
// 1.1.0, ADD), and after a failed one it calls DEL first.
func (m *Manager) Add(ctx context.Context, req Request) (*Endpoint, error) {
	a := req.attachment()
	if req.ContainerID == "" || req.IfName == "" {
		return nil, errors.New("add endpoint: container ID or interface name is empty")
	}
	if !m.restored.Load() {
		return nil, fmt.Errorf("add %s: %w", a, ErrNotRestored)
	}
	release, err := m.locks.acquire(ctx, a)
	if err != nil {
		return nil, err
	}
	defer release()
	if old := m.find(a); old != nil {
		return nil, fmt.Errorf("add %s: %w as endpoint %d (%s)", a, ErrExists, old.ID, old.State)
	}
	if err := m.waitForPredecessor(ctx, req); err != nil {
		return nil, fmt.Errorf("add %s: %w", a, err)
	}
	e, err := m.plan(req)
	if err == nil {
		e, err = m.build(ctx, e)
	}
	if err == nil {
		return e, nil
	}
	if errors.Is(err, podlink.ErrIfNameTaken) {
		err = fmt.Errorf("%w: %w", ErrExists, err)
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	return nil, errors.Join(fmt.Errorf("add %s: %w", a, err), m.remove(undo, a))
}

// plan takes the endpoint's number and addresses. On error the caller removes
// whatever was taken.
func (m *Manager) plan(req Request) (*Endpoint, error) {
	a, node, now := req.attachment(), m.config.Node(), m.config.Now()
	id, err := m.slots.allocate(a)
	if err != nil {
		return nil, err
	}
	e := &Endpoint{
		ID: id, ContainerID: req.ContainerID, IfName: req.IfName, NetNS: req.NetNS,
		Namespace: req.Namespace, Pod: req.Pod, PodUID: req.PodUID,
		LinkName: linkName(a), LinkMAC: linkMAC(a, "link", now), PodMAC: linkMAC(a, "pod", now),
		MTU: node.MTU, RouteMTU: node.RouteMTU, State: StateCreating, CreatedAt: now,
		Kind: cmp.Or(node.Kind, podlink.Veth),
	}
	if e.Kind == podlink.Netkit {
		e.LinkMAC, e.PodMAC = make(net.HardwareAddr, 6), make(net.HardwareAddr, 6) // frames have zeros in place of MACs
	}
	var elsewhere func(netip.Addr) bool
	if m.config.Elsewhere != nil {
		elsewhere = func(addr netip.Addr) bool { return m.config.Elsewhere(addr, req.Namespace, req.Pod) }
	}
	if e.IPv4, e.IPv6, err = m.ipam.Allocate(a.String(), elsewhere); err != nil {
		return nil, err
	}
	switch {
	case e.IPv4.IsValid() != node.IPv4:
		return nil, fmt.Errorf("IPv4 enabled is %t, but the node's IPv4 podCIDR present is %t", node.IPv4,
			e.IPv4.IsValid())
	case e.IPv6.IsValid() != node.IPv6:
		return nil, fmt.Errorf("IPv6 enabled is %t, but the node's IPv6 podCIDR present is %t", node.IPv6,
			e.IPv6.IsValid())
	}
	return e, m.config.Step("plan")
}

// build makes what e describes. The state file comes first, so that whatever a
// crash leaves can be found.
func (m *Manager) build(ctx context.Context, e *Endpoint) (*Endpoint, error) {
	if err := m.store.write(e); err != nil {
		return nil, err
	}
	if err := m.config.Step("intent"); err != nil {
		return nil, err
	}
	link, err := m.driver.Create(m.spec(e))
	if err != nil {
		return nil, err
	}
	e.LinkIndex, e.NetnsCookie = link.Index, link.NetnsCookie
	if err := m.config.Step("link"); err != nil {
		return nil, err
	}
	e.Status = reconciler.StatusPending()
	if err := m.insert(e); err != nil {
		return nil, err
	}
	if err := m.config.Step("row"); err != nil {
		return nil, err
	}
	if err := m.wait(ctx, e.ID); err != nil {
		return nil, err
	}
	if m.config.Ready != nil {
		if err := m.config.Ready(ctx, e); err != nil {
			return nil, err
		}
	}
	if err := m.config.Step("reconciled"); err != nil {
		return nil, err
	}
	return m.setReady(e.ID)
}

// setReady makes the ADD final: first in the file, then in the row. The row
// keeps its status, nothing that the reconciler writes depends on creating or
// ready.
func (m *Manager) setReady(id uint16) (*Endpoint, error) {
	row, _, found := m.table.Get(m.db.ReadTxn(), ByID(id))
	if !found {
		return nil, fmt.Errorf("endpoint %d vanished while it was made", id)
	}
	row = row.Clone()
	row.State = StateReady
	if err := m.store.write(row); err != nil {
		return nil, err
	}
	if err := m.config.Step("ready"); err != nil {
		return nil, err
	}
	txn := m.db.WriteTxn(m.table)
	defer txn.Abort()
	if row, _, found = m.table.Get(txn, ByID(id)); !found {
		return nil, fmt.Errorf("endpoint %d vanished while it was made", id)
	}
	row = row.Clone()
	row.State = StateReady
	if _, _, err := m.table.Insert(txn, row); err != nil {
		return nil, fmt.Errorf("insert endpoint %d: %w", id, err)
	}
	txn.Commit()
	return row, nil
}

// wait returns when the reconciler is done with the row, or its error.
func (m *Manager) wait(ctx context.Context, id uint16) error {
	for {
		row, _, changed, found := m.table.GetWatch(m.db.ReadTxn(), ByID(id))
		if !found {
			return fmt.Errorf("endpoint %d vanished while waiting for the datapath", id)
		}
		switch row.Status.Kind {
		case reconciler.StatusKindDone:
			return nil
		case reconciler.StatusKindError:
			return fmt.Errorf("%w: %s", ErrReconcile, row.Status.GetError())
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for the datapath to take endpoint %d: %w", id, context.Cause(ctx))
		}
	}
}
