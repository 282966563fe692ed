// Package hooks tells which BPF programs hang on a network device, whoever put
// them there: TCX, clsact filters, XDP and netkit; and on a control group.
package hooks

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Where a program hangs, in the order in which a packet meets them on its way
// in: XDP, then TCX, then clsact filters.
const (
	XDP           = "xdp"
	TCXIngress    = "tcx ingress"
	TCXEgress     = "tcx egress"
	ClsactIngress = "clsact ingress"
	ClsactEgress  = "clsact egress"
	netkitPrimary = "netkit primary"
	netkitPeer    = "netkit peer"
)

// Program is one program on a device.
type Program struct {
	Where string `json:"where"`
	// Position is the order among those at the same place, from 0; for clsact
	// filters it is the order of priorities.
	Position int `json:"position"`
	// ID is the kernel's number of the program; 0 for a filter that is no BPF
	// program.
	ID   uint32 `json:"id"`
	Name string `json:"name"` // what its loader called it, cut at 15 bytes by the kernel
	// Detail is what else there is to say: priority and kind of a filter, mode
	// of XDP.
	Detail string `json:"detail,omitempty"`
}

// String is "NAME (id 7) at tcx ingress".
func (p Program) String() string {
	text := p.Name
	if p.ID != 0 {
		text += fmt.Sprintf(" (id %d)", p.ID)
	}
	text += " at " + p.Where
	if p.Detail != "" {
		text += ", " + p.Detail
	}
	return text
}

// List returns the programs on a device of handle's network namespace, which
// must be that of the calling thread as well. What the kernel has no word for
// (TCX before 6.6) has no programs.
func List(handle *netlink.Handle, device netlink.Link) ([]Program, error) {
	attributes := device.Attrs()
	// Read before links: a program that moves from a filter to a link is then found at one of them.
	filters, err := clsact(handle, device)
	if err != nil {
		return nil, fmt.Errorf("list filters of %s: %w", attributes.Name, err)
	}
	list := xdp(attributes.Xdp)
	kinds := []attachment{{TCXIngress, ebpf.AttachTCXIngress}, {TCXEgress, ebpf.AttachTCXEgress}}
	if device.Type() == "netkit" {
		kinds = append(kinds, attachment{netkitPrimary, ebpf.AttachNetkitPrimary},
			attachment{netkitPeer, ebpf.AttachNetkitPeer})
	}
	for _, k := range kinds {
		found, err := k.query(attributes.Index)
		if err != nil {
			return nil, fmt.Errorf("query programs at %s of %s: %w", k.where, attributes.Name, err)
		}
		list = append(list, found...)
	}
	return append(list, filters...), nil
}

func xdp(x *netlink.LinkXdp) []Program {
	if x == nil || !x.Attached {
		return nil
	}
	mode := map[uint32]string{
		nl.XDP_ATTACHED_DRV: "in the driver", nl.XDP_ATTACHED_SKB: "generic", nl.XDP_ATTACHED_HW: "in hardware",
	}[x.AttachMode]
	return []Program{{Where: XDP, ID: x.ProgId, Name: nameOf(ebpf.ProgramID(x.ProgId)), Detail: mode}}
}

type attachment struct {
	where string
	at    ebpf.AttachType
}

func (a attachment) query(index int) ([]Program, error) {
	found, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: a.at})
	// EINVAL and ENOTSUPP: the kernel doesn't know the place. ENOENT: nothing
	// was ever attached.
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []Program
	for i, p := range found.Programs {
		list = append(list, Program{Where: a.where, Position: i, ID: uint32(p.ID), Name: nameOf(p.ID)})
	}
	return list, nil
}

// TCX reports whether the kernel has TCX, by a question that changes nothing.
// Kernel 6.6 or later; the error says what the kernel answered.
func TCX() error {
	const loopback = 1
	_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("query TCX: %w (%w)", ebpf.ErrNotSupported, err)
	}
	return err
}

func clsact(handle *netlink.Handle, device netlink.Link) ([]Program, error) {
	var list []Program
	qdiscs, err := handle.QdiscList(device)
	if err != nil {
		return nil, err
	}
	// The qdisc ingress has one side, and shows it for any that is asked for.
	oneSided := slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "ingress" })
	for _, side := range []struct {
		where  string
		parent uint32
	}{{ClsactIngress, netlink.HANDLE_MIN_INGRESS}, {ClsactEgress, netlink.HANDLE_MIN_EGRESS}} {
		if oneSided && side.where == ClsactEgress {
			continue
		}
		filters, err := handle.FilterList(device, side.parent)
		if err != nil {
			return nil, err
		}
		for i, f := range filters {
			list = append(list, filter(side.where, i, f))
		}
	}
	return list, nil
}

func filter(where string, position int, f netlink.Filter) Program {
	p := Program{Where: where, Position: position, Detail: fmt.Sprintf("priority %d", f.Attrs().Priority)}
	bpf, ok := f.(*netlink.BpfFilter)
	if !ok {
		p.Name = f.Type() + " filter"
		return p
	}
	p.ID = uint32(bpf.Id)
	p.Name = nameOf(ebpf.ProgramID(bpf.Id))
	if p.Name == unnamed && bpf.Name != "" {
		p.Name = strings.TrimSpace(bpf.Name)
	}
	return p
}

const unnamed = "unnamed program"

// nameOf asks the kernel; a program that has gone meanwhile has no name.
func nameOf(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return unnamed
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil || info.Name == "" {
		return unnamed
	}
	return info.Name
}
