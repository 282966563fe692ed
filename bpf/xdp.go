package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// XDPMode is where in the kernel's way of a packet XDP programs run.
type XDPMode string

// The modes of XDP.
const (
	XDPNone    XDPMode = ""
	XDPNative  XDPMode = "native"  // in the driver, before there is a packet
	XDPGeneric XDPMode = "generic" // after the driver, for every device; for tests
)

// XDPState is how XDP is on a device.
type XDPState struct {
	Mode  XDPMode
	Why   string // why it is not as wanted; empty if it is
	Note  string // what else must be so, which can't be seen from here
	Takes bool   // frames that other devices brought may leave by it in XDP

	device XDPDevice
}

// AttachXDP makes from_wire_xdp the XDP program of the device in the mode, in place of an older one of ours without a
// gap; XDPNone takes ours off. Where the driver can't, or another program is there, the state says so, and
// packets go on by tc. Kernel 5.9 or later.
func (a *Attacher) AttachXDP(d XDPDevice, mode XDPMode) XDPState {
	state := a.tryXDP(d, mode)
	state.device = d
	state.Takes = d.takes(state.Mode)
	if state.Mode == XDPNative {
		state.Note = d.note()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.xdp[d.Name] = state
	if mode == XDPNone && state.Why == "" {
		delete(a.xdp, d.Name)
	}
	if err := a.writeXDP(); err != nil && state.Why == "" { // forwarding goes on
		state.Why = err.Error()
		a.xdp[d.Name] = state
	}
	return state
}

func (a *Attacher) tryXDP(d XDPDevice, mode XDPMode) XDPState {
	on := d.below()
	refused := d.supports(mode)
	if mode == XDPNone || refused != nil {
		if err := a.releaseXDP(d); err != nil {
			return XDPState{Why: err.Error()}
		}
	}
	if mode == XDPNone {
		return XDPState{}
	}
	if old := a.XDP(d.Name).device; old.below().Name != on.Name && old.Name != "" { // the wire was made anew
		refused = errors.Join(refused, a.releaseXDP(old))
	}
	if refused == nil && mode == XDPNative && on.Type == "veth" {
		refused = setVariable(a.d.XdpByMap, 1) // before a program that must know it runs
	}
	if refused == nil {
		refused = a.attachXDP(on.Name, on.Index, mode)
	}
	if errors.Is(refused, ebpf.ErrNotSupported) || (errors.Is(refused, errors.ErrUnsupported) && on.Type != "veth") {
		refused = errors.New("its driver has none")
	}
	if errors.Is(refused, unix.ENOMEM) {
		refused = fmt.Errorf("%w; drivers say that, too, if they have no queue left for each CPU to send "+
			"by (ethtool -L)",
			refused)
	}
	if refused != nil {
		return XDPState{Why: fmt.Sprintf("XDP (%s) is not active on %s, packets go by tc: %v", mode, d.Name, refused)}
	}
	return XDPState{Mode: mode}
}

// releaseXDP detaches the program from the wire, or from the device below it, unless another wire needs it there.
func (a *Attacher) releaseXDP(d XDPDevice) error {
	on := d.below()
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, s := range a.xdp {
		if name != d.Name && s.Mode != XDPNone && s.device.below().Index == on.Index {
			return nil
		}
	}
	return a.detachXDP(on.Name)
}

// XDP says how XDP is on the device of the name, as AttachXDP left it.
func (a *Attacher) XDP(name string) XDPState {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.xdp[name]
}

// pinOfXDP has the mode in its name: a link can't change it.
func (a *Attacher) pinOfXDP(name string, mode XDPMode) string {
	return a.pinOf(FromWireXDP, name) + "-" + string(mode)
}

func (a *Attacher) attachXDP(name string, index int, mode XDPMode) error {
	flags, other := link.XDPDriverMode, XDPGeneric
	if mode == XDPGeneric {
		flags, other = link.XDPGenericMode, XDPNative
	}
	if err := dropXDP(a.pinOfXDP(name, other)); err != nil {
		return err
	}
	pin := a.pinOfXDP(name, mode)
	if done, err := a.updateXDP(pin, name, index, mode); done || err != nil {
		return err
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: a.d.FromWireXDP, Interface: index, Flags: flags})
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return fmt.Errorf("pin link: %w", err)
	}
	return nil
}

func (a *Attacher) updateXDP(pin, name string, index int, mode XDPMode) (done bool, err error) {
	old, err := link.LoadPinnedLink(pin, nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open pinned link: %w", err)
	}
	waits := false
	defer func() {
		if !waits {
			old.Close()
		}
	}()
	update := func() error { return old.Update(a.d.FromWireXDP) }
	if info, err := old.Info(); err == nil && info.XDP() != nil && int(info.XDP().Ifindex) == index {
		waits, err = a.replacements.later(replacement{
			at:   pin,
			swap: update,
			done: func(failed error) error {
				if failed != nil {
					return a.attachXDP(name, index, mode)
				}
				return nil
			},
			close: old.Close,
		})
		if waits || err != nil || update() == nil {
			return true, err
		}
	}
	return false, dropXDP(pin)
}

func (a *Attacher) detachXDP(name string) error {
	return errors.Join(a.replacements.forget(a.pinOfXDP(name, XDPNative), a.pinOfXDP(name, XDPGeneric)),
		dropXDP(a.pinOfXDP(name, XDPNative)), dropXDP(a.pinOfXDP(name, XDPGeneric)))
}

// dropXDP takes the pinned link off its device at once: without its pin it would go a moment later.
func dropXDP(pin string) error {
	l, err := link.LoadPinnedLink(pin, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = errors.Join(l.Detach(), l.Close())
	}
	if bad := os.Remove(pin); bad != nil {
		return fmt.Errorf("remove pin: %w", bad)
	}
	if err != nil {
		return fmt.Errorf("detach XDP: %w", err)
	}
	return nil
}
