package endpoint

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"myelin/bpf"
)

// LinkNetns returns a Kernel's Netns that asks the kernel. A veth reports the
// id of its peer's namespace (IFLA_LINK_NETNSID), which the kernel gives at the
// first question and keeps as long as the namespace lives.
func LinkNetns(h *netlink.Handle) func(link int) (int32, bool, error) {
	return func(index int) (int32, bool, error) {
		link, err := h.LinkByIndex(index)
		var missing netlink.LinkNotFoundError
		if errors.As(err, &missing) {
			return 0, false, nil
		}
		if err != nil {
			return 0, false, fmt.Errorf("find link %d: %w", index, err)
		}
		id := link.Attrs().NetNsID
		return int32(id), id >= 0, nil
	}
}

// writeNetns lets the datapath find the sockets of the pod. Without them a TCP
// segment of the pod's that has no flow row belongs to no connection.
func (k *Kernel) writeNetns(e *Endpoint) error {
	if k.Netns == nil || k.Datapath.PodNetns.MaxEntries() <= 1 {
		return nil
	}
	id, ok, err := k.Netns(e.LinkIndex)
	if err != nil {
		return fmt.Errorf("network namespace of %s: %w", e.PodName(), err)
	}
	if !ok {
		return k.deleteNetns(e.ID)
	}
	row := bpf.DatapathNetns{Id: id}
	if k.Administers == nil || k.Administers(e) {
		row.Forgeable = 1
	}
	var old bpf.DatapathNetns
	if k.Datapath.PodNetns.Lookup(uint32(e.ID), &old) == nil && old == row {
		return nil
	}
	if err := k.Datapath.PodNetns.Put(uint32(e.ID), row); err != nil {
		return fmt.Errorf("write network namespace of %s: %w", e.PodName(), err)
	}
	return nil
}

func (k *Kernel) deleteNetns(slot uint16) error {
	if err := ignoreMissing(k.Datapath.PodNetns.Delete(uint32(slot))); err != nil {
		return fmt.Errorf("delete network namespace of endpoint %d: %w", slot, err)
	}
	return nil
}

func (k *Kernel) pruneNetns(slots map[uint16]bool) error {
	var stale []uint32
	err := bpf.Each(k.Datapath.PodNetns, func(slot *uint32, _ *bpf.DatapathNetns) bool {
		if *slot != HostID && !slots[uint16(*slot)] {
			stale = append(stale, *slot)
		}
		return true
	})
	for _, slot := range stale {
		err = errors.Join(err, k.deleteNetns(uint16(slot)))
	}
	return err
}
