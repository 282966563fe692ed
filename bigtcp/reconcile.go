package bigtcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/cilium/statedb"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"myelin/route"
)

// ops makes the sizes of devices what their rows want.
type ops struct {
	kernel *route.Kernel
	before *originals
}

// Update sets both ends of a pod link. The pod's end follows when sizes grow and precedes when they shrink, so that
// the host's end takes whatever the pod sends, and shows whether there is anything left to restore.
func (o *ops) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, d *Device) error {
	link, err := o.kernel.LinkByIndex(d.Index)
	if gone(err) {
		return nil // and so is its row, soon
	}
	if err != nil {
		return fmt.Errorf("read device %s: %w", d.Name, err)
	}
	d.Have = route.SizesOf(link.Attrs())
	target := fill(d.Want, o.original(d))
	if d.Role != rolePod {
		return o.updateWire(d, link, target)
	}
	grows := target.GSO6 > d.Have.GSO6 || target.GSO4 > d.Have.GSO4
	if grows {
		d.Have, err = set(o.kernel.Handle, link, target)
	}
	if err == nil {
		err = o.updatePod(d, link, target)
	}
	if err == nil && !grows {
		d.Have, err = set(o.kernel.Handle, link, target)
	}
	return err
}

// original are the sizes that a device gets back.
func (o *ops) original(d *Device) route.Sizes {
	if sizes, ok := o.before.get(d.Name, d.Index); ok {
		return sizes
	}
	if d.Role == rolePod {
		return lowered(d.Have)
	}
	return d.Have
}

// fill replaces sizes that are 0.
func fill(want, by route.Sizes) route.Sizes {
	return route.Sizes{GSO6: cmp.Or(want.GSO6, by.GSO6), GRO6: cmp.Or(want.GRO6, by.GRO6),
		GSO4: cmp.Or(want.GSO4, by.GSO4), GRO4: cmp.Or(want.GRO4, by.GRO4)}
}

func (o *ops) updateWire(d *Device, link netlink.Link, target route.Sizes) error {
	restores := d.Want == route.Sizes{}
	if target != d.Have {
		if !restores {
			if err := o.before.keep(d.Name, d.Index, d.Have); err != nil {
				return err
			}
		}
		var err error
		if d.Have, err = set(o.kernel.Handle, link, target); err != nil {
			return err
		}
	}
	if restores {
		return o.before.forget(d.Name)
	}
	return nil
}

// updatePod sets the pod's end. The path of the namespace may be another pod's by now, and the pod may have renamed its
// device: the pair itself is what is looked for.
func (o *ops) updatePod(d *Device, host netlink.Link, target route.Sizes) error {
	namespace, err := netns.GetFromPath(d.NetNS)
	if errors.Is(err, unix.ENOENT) {
		return nil // the pod is ending
	}
	if err != nil {
		return fmt.Errorf("open network namespace of %s: %w", d.Pod, err)
	}
	defer namespace.Close()
	inside, err := netlink.NewHandleAt(namespace, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open rtnetlink of %s: %w", d.Pod, err)
	}
	defer inside.Close()
	link, err := inside.LinkByIndex(host.Attrs().ParentIndex)
	if gone(err) || err == nil && link.Attrs().ParentIndex != d.Index {
		return nil
	}
	if err == nil {
		_, err = set(inside, link, target)
	}
	if err != nil {
		return fmt.Errorf("pod %s: %w", d.Pod, err)
	}
	return nil
}

// set writes the sizes that differ, and returns what the device has then. Those of IPv6 come first: one of at most
// 65,536 bytes sets that of IPv4, too. Sizes of 0 are not written.
func set(h *netlink.Handle, link netlink.Link, want route.Sizes) (have route.Sizes, err error) {
	have = route.SizesOf(link.Attrs())
	for _, s := range []struct {
		name string
		have *int
		want int
		with *int // what the kernel sets, too
		set  func(netlink.Link, int) error
	}{
		{"gso_max_size", &have.GSO6, want.GSO6, &have.GSO4, h.LinkSetGSOMaxSize},
		{"gro_max_size", &have.GRO6, want.GRO6, &have.GRO4, h.LinkSetGROMaxSize},
		{"gso_ipv4_max_size", &have.GSO4, want.GSO4, nil, h.LinkSetGSOIPv4MaxSize},
		{"gro_ipv4_max_size", &have.GRO4, want.GRO4, nil, h.LinkSetGROIPv4MaxSize},
	} {
		if s.want == 0 || s.want == *s.have {
			continue
		}
		if err := s.set(link, s.want); err != nil {
			return have, fmt.Errorf("set %s of %s to %d: %w", s.name, link.Attrs().Name, s.want, err)
		}
		*s.have = s.want
		if s.with != nil && *s.with != 0 && s.want <= ordinary {
			*s.with = s.want
		}
	}
	return have, nil
}

// gone reports whether err says that a device does not exist.
func gone(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing) || errors.Is(err, unix.ENODEV)
}

// Delete leaves the device as it is: it is gone, or another row restores it.
func (*ops) Delete(context.Context, statedb.ReadTxn, statedb.Revision, *Device) error { return nil }

// Prune does nothing: what an earlier agent left is in the file of original sizes.
func (*ops) Prune(context.Context, statedb.ReadTxn, iter.Seq2[*Device, statedb.Revision]) error {
	return nil
}
