package bpf

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
)

// clsactPriority leaves room before us for programs that must see packets first.
const clsactPriority = 100

func clsact(index int) *netlink.Clsact {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0),
		Parent: netlink.HANDLE_CLSACT}}
}

// attachInterim hangs an ingress hook on the qdisc ingress, for clsact has every packet that any device sends pay for
// its egress side. An egress hook can't be beside that one, which takes all filters for its own.
func (a *Attacher) attachInterim(hook Hook, name string, index int) (lasting bool, err error) {
	if hook.ingress() {
		qdisc := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index,
			Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}
		if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, os.ErrExist) {
			return false, fmt.Errorf("add ingress qdisc: %w", err)
		}
		return false, a.installFilter(hook, index)
	}
	ingress, err := ingressOnly(index)
	if err != nil || ingress != nil {
		return true, errors.Join(err, a.attachLink(hook, name, index))
	}
	return false, a.attachClsact(hook, index)
}

// ingressOnly returns the device's qdisc ingress, nil if it has none.
func ingressOnly(index int) (netlink.Qdisc, error) {
	qdiscs, err := netlink.QdiscList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}})
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	for _, q := range qdiscs {
		if q.Type() == "ingress" {
			return q, nil
		}
	}
	return nil, nil
}

func (a *Attacher) attachClsact(hook Hook, index int) error {
	err := netlink.QdiscAdd(clsact(index))
	if errors.Is(err, os.ErrExist) && !hook.ingress() {
		err = nil
		if q, bad := ingressOnly(index); q != nil { // that of an agent which had TCX
			err = errors.Join(netlink.QdiscDel(q), netlink.QdiscAdd(clsact(index)))
		} else if bad != nil {
			err = bad
		}
	}
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("add clsact qdisc: %w", err)
	}
	return a.installFilter(hook, index)
}

func (a *Attacher) replaceFilter(hook Hook, index int) error {
	program, err := a.program(hook)
	if err != nil {
		return err
	}
	f := filter(hook, index)
	f.Fd = program.FD()
	return netlink.FilterReplace(f)
}

// hasFilter reports whether the filter of the hook hangs on the device.
func hasFilter(hook Hook, index int) (bool, error) {
	ours := filter(hook, index)
	filters, err := netlink.FilterList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}, ours.Parent)
	return slices.ContainsFunc(filters, func(f netlink.Filter) bool {
		b, ok := f.(*netlink.BpfFilter)
		return ok && b.Name == ours.Name
	}), err
}

// dropFilter removes the filter that hung on the device before the link. The qdisc stays, and costs nothing where a
// link decides: taking it off a device that is up deactivates the device's own queue (qdisc_graft), and what the host
// sends meanwhile is lost.
func (a *Attacher) dropFilter(hook Hook, index int) error {
	if hook == FromPodLink {
		return nil
	}
	there, err := hasFilter(hook, index)
	err = errors.Join(err, a.replacements.forget(filterOf(hook, index)))
	if there {
		err = errors.Join(err, netlink.FilterDel(filter(hook, index)))
	}
	if err != nil && !isGone(err) {
		return fmt.Errorf("remove the filter that came before the link: %w", err)
	}
	return nil
}

func (h Hook) parent() uint32 {
	if h.ingress() {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

func filter(hook Hook, index int) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: hook.parent(), Handle: 1,
			Protocol: 3 /* ETH_P_ALL */, Priority: clsactPriority},
		Name:         filterPrefix + string(hook),
		DirectAction: true,
	}
}
