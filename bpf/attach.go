package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// Mode is how programs hang on a device.
type Mode string

// The modes, best first.
const (
	TCX    Mode = "tcx"    // links, pinned and replaced atomically; kernel 6.6 or later
	Clsact Mode = "clsact" // filters of the clsact qdisc
)

// Hook is a place on a device, as programs are named.
type Hook string

// The hooks of the datapath.
const (
	FromPod  Hook = "from_pod"
	ToPod    Hook = "to_pod"
	FromWire Hook = "from_wire"
	ToWire   Hook = "to_wire"
)

// clsactPriority leaves room before us for those who must see packets first.
const clsactPriority = 100

// Attacher attaches programs to devices of the process's network namespace.
type Attacher struct {
	Mode Mode
	// Why says why the mode is not the best one; empty if it is.
	Why      string
	programs map[Hook]*ebpf.Program
	dir      string
}

func newAttacher(d *Datapath, noTCX bool) *Attacher {
	a := &Attacher{
		Mode: TCX, dir: filepath.Join(d.dir, "links"),
		programs: map[Hook]*ebpf.Program{FromPod: d.FromPod, ToPod: d.ToPod, FromWire: d.FromWire, ToWire: d.ToWire},
	}
	if noTCX {
		a.Mode, a.Why = Clsact, "bpf.enableTCX is false"
	} else if err := probeTCX(d.ToPod); err != nil {
		a.Mode, a.Why = Clsact, "the kernel has no TCX (6.6 or later): "+err.Error()
	}
	return a
}

// probeTCX tries it on the loopback device for a moment: to_pod changes no packet.
func probeTCX(p *ebpf.Program) error {
	l, err := link.AttachTCX(link.TCXOptions{Interface: 1, Program: p, Attach: ebpf.AttachTCXEgress})
	if err != nil {
		return err
	}
	return l.Close()
}

// ingress reports on which side of the device the hook is.
func (h Hook) ingress() bool { return h == FromPod || h == FromWire }

// Attach makes the hook's program the one on the device, in place of an older one of ours without a gap. It is idempotent.
func (a *Attacher) Attach(hook Hook, name string, index int) error {
	var err error
	if a.Mode == TCX {
		err = a.attachTCX(hook, name, index)
	} else {
		err = a.attachClsact(hook, name, index)
	}
	if err != nil {
		return fmt.Errorf("attach %s to %s: %w", hook, name, err)
	}
	return nil
}

func (a *Attacher) pinOf(hook Hook, name string) string {
	return filepath.Join(a.dir, PinName(name)+"-"+string(hook))
}

// PinName is a device in the name of a pin: it keeps what bpffs allows: it refuses dots.
func PinName(device string) string {
	b := []byte(device)
	for i, c := range b {
		if c == '.' {
			b[i] = '_'
		}
	}
	return string(b)
}

func (a *Attacher) attachTCX(hook Hook, name string, index int) error {
	pin := a.pinOf(hook, name)
	old, err := link.LoadPinnedLink(pin, nil)
	if err == nil {
		defer old.Close()
		if attachedTo(old) == index {
			err = old.Update(a.programs[hook])
			if err == nil {
				return nil
			}
		}
		/* The device is gone, or is another one of the same name. */
		if err := os.Remove(pin); err != nil {
			return fmt.Errorf("remove stale pin: %w", err)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("open pinned link: %w", err)
	}
	at := ebpf.AttachTCXEgress
	if hook.ingress() {
		at = ebpf.AttachTCXIngress
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: a.programs[hook], Attach: at})
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return fmt.Errorf("pin link: %w", err)
	}
	return nil
}

// attachedTo returns the device's index, or 0 if the link hangs on none.
func attachedTo(l link.Link) int {
	info, err := l.Info()
	if err != nil {
		return 0
	}
	tcx := info.TCX()
	if tcx == nil {
		return 0
	}
	return int(tcx.Ifindex)
}

func (a *Attacher) attachClsact(hook Hook, name string, index int) error {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("add clsact qdisc: %w", err)
	}
	return netlink.FilterReplace(a.filter(hook, index))
}

func (a *Attacher) filter(hook Hook, index int) *netlink.BpfFilter {
	parent := uint32(netlink.HANDLE_MIN_EGRESS)
	if hook.ingress() {
		parent = netlink.HANDLE_MIN_INGRESS
	}
	return &netlink.BpfFilter{
		FilterAttrs:  netlink.FilterAttrs{LinkIndex: index, Parent: parent, Handle: 1, Protocol: 3 /* ETH_P_ALL */, Priority: clsactPriority},
		Fd:           a.programs[hook].FD(),
		Name:         "myelin-" + string(hook),
		DirectAction: true,
	}
}

// Detach takes the hook's program off the device. A device that is gone is no error.
func (a *Attacher) Detach(hook Hook, name string, index int) error {
	pin := a.pinOf(hook, name)
	if err := os.Remove(pin); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("detach %s from %s: %w", hook, name, err)
	}
	if a.Mode == TCX {
		return nil
	}
	err := netlink.FilterDel(a.filter(hook, index))
	if err == nil || errors.Is(err, os.ErrNotExist) || isGone(err) {
		return nil
	}
	return fmt.Errorf("detach %s from %s: %w", hook, name, err)
}

// Pins returns the paths of all pinned links.
func (a *Attacher) Pins() ([]string, error) {
	pins, err := filepath.Glob(filepath.Join(a.dir, "*"))
	if err != nil {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	return pins, nil
}
