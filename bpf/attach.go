package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
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
	FromPod     Hook = "from_pod"
	FromPodLink Hook = "from_pod_link" // from_pod on a netkit device itself
	ToPod       Hook = "to_pod"
	FromWire    Hook = "from_wire"
	FromWireL3  Hook = "from_wire_l3" // of a wire without a link-layer header
	FromIPsec   Hook = "from_ipsec"   // what IPsec has decrypted
	ToWire      Hook = "to_wire"
	ToWireL3    Hook = "to_wire_l3"
	FromWireXDP Hook = "from_wire_xdp"
	FromProxy   Hook = "from_proxy"
	FromProxyL3 Hook = "from_proxy_l3" // of the TUN device
)

// ProxyHooks are the hooks of the proxy's devices.
func ProxyHooks() []Hook { return []Hook{FromProxy, FromProxyL3} }

// WireHooks are the hooks of wires that attach to tc.
func WireHooks() []Hook { return []Hook{FromWire, FromWireL3, FromIPsec, ToWire, ToWireL3} }

// Attacher attaches programs to devices of the process's network namespace.
type Attacher struct {
	Mode Mode
	// Why says why the mode is not the best one; empty if it is.
	Why string
	dir string
	d   *Datapath

	mu           sync.Mutex
	xdp          map[string]XDPState // by device
	replacements replacements
}

func newAttacher(d *Datapath, noTCX bool) *Attacher {
	a := &Attacher{Mode: TCX, dir: filepath.Join(d.options.Dir, "links"), d: d, xdp: map[string]XDPState{}}
	if noTCX {
		a.Mode, a.Why = Clsact, "bpf.enableTCX is false"
	} else if err := probeTCX(); err != nil {
		a.Mode, a.Why = Clsact, "the kernel has no TCX (6.6 or later): "+err.Error()
	}
	return a
}

// probeTCX asks what hangs on the loopback device: trying it would wait for two grace periods of RCU. With nothing
// there the answer is that there is none; a kernel without TCX doesn't know the question.
func probeTCX() error {
	_, err := link.QueryPrograms(link.QueryOptions{Target: 1, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// program returns the hook's program for tc.
func (a *Attacher) program(hook Hook) (*ebpf.Program, error) {
	switch hook {
	case FromPod, FromPodLink:
		return a.d.FromPod, nil
	case ToPod:
		return a.d.ToPod, nil
	case FromWire:
		return a.d.FromWire, nil
	case ToWire:
		return a.d.ToWire, nil
	}
	if hook == FromProxy || hook == FromProxyL3 {
		proxy, err := a.d.loadProxy()
		if err != nil {
			return nil, err
		}
		if hook == FromProxy {
			return proxy.FromProxy, nil
		}
		return proxy.FromProxyL3, nil
	}
	if hook == FromIPsec {
		ipsec, err := a.d.loadIPsec()
		if err != nil {
			return nil, err
		}
		return ipsec.FromIPsec, nil
	}
	l3, err := a.d.loadL3()
	if err != nil {
		return nil, err
	}
	if hook == FromWireL3 {
		return l3.FromWire, nil
	}
	return l3.ToWire, nil
}

// ingress reports on which side of the device the hook is.
func (h Hook) ingress() bool {
	switch h {
	case FromPod, FromPodLink, FromWire, FromWireL3, FromIPsec, FromProxy, FromProxyL3:
		return true
	}
	return false
}

// Attach makes the hook's program the one on the device, in place of an older one of ours without a gap. It is
// idempotent. The first TCX link on a device takes as long as a grace period of RCU, 7 to 20 ms (tcx_link_prog_attach),
// and the kernel lets no other process change a device meanwhile.
func (a *Attacher) Attach(hook Hook, name string, index int) error {
	var err error
	if a.Mode == TCX || hook == FromPodLink {
		err = a.attachLink(hook, name, index)
	} else {
		err = a.attachClsact(hook, index)
	}
	if err != nil {
		return fmt.Errorf("attach %s to %s: %w", hook, name, err)
	}
	return nil
}

// AttachSoon is Attach for callers that can't wait: where that would take long, the program hangs by a filter for the
// time being, which takes 0.1 ms and forwards alike, and lasting is false. Attach then puts a link in its place. On a
// netkit device, FromPod stands in for FromPodLink.
func (a *Attacher) AttachSoon(hook Hook, name string, index int) (lasting bool, err error) {
	if a.Mode != TCX && hook != FromPodLink {
		return true, a.Attach(hook, name, index)
	}
	lasting, err = a.updateLink(hook, name, index)
	if err == nil && !lasting && hook != FromPodLink {
		lasting, err = a.attachInterim(hook, name, index)
	}
	if err != nil {
		return false, fmt.Errorf("attach %s to %s: %w", hook, name, err)
	}
	return lasting, nil
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

func (a *Attacher) attachLink(hook Hook, name string, index int) error {
	if done, err := a.updateLink(hook, name, index); done || err != nil {
		return err
	}
	if later, err := a.linkLater(hook, name, index); later || err != nil {
		return err
	}
	program, err := a.program(hook)
	if err != nil {
		return err
	}
	l, err := hook.attach(program, index)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.Pin(a.pinOf(hook, name)); err != nil {
		return fmt.Errorf("pin link: %w", err)
	}
	return a.dropFilter(hook, index)
}

// attach makes the hook's link: TCX, or netkit, whose peer in the pod runs the program when it transmits.
func (h Hook) attach(program *ebpf.Program, index int) (link.Link, error) {
	if h == FromPodLink {
		return link.AttachNetkit(link.NetkitOptions{Interface: index, Program: program, Attach: ebpf.AttachNetkitPeer})
	}
	at := ebpf.AttachTCXEgress
	if h.ingress() {
		at = ebpf.AttachTCXIngress
	}
	return link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: at})
}

// updateLink gives the link that is pinned the new program, or will, and reports whether there is one on the device.
func (a *Attacher) updateLink(hook Hook, name string, index int) (done bool, err error) {
	pin := a.pinOf(hook, name)
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
	if attachedTo(old) == index {
		program, err := a.program(hook)
		if err != nil {
			return false, err
		}
		waits, err = a.replacements.later(replacement{
			at:   pin,
			swap: func() error { return old.Update(program) },
			done: func(failed error) error {
				if failed != nil {
					return a.Attach(hook, name, index)
				}
				return a.dropFilter(hook, index)
			},
			close: old.Close,
		})
		if waits || err != nil {
			return true, err
		}
		if old.Update(program) == nil {
			return true, a.dropFilter(hook, index)
		}
	}
	/* The device is gone, or is another one of the same name. */
	if err := os.Remove(pin); err != nil {
		return false, fmt.Errorf("remove stale pin: %w", err)
	}
	return false, nil
}

// attachedTo returns the device's index, or 0 if the link hangs on none.
func attachedTo(l link.Link) int {
	info, err := l.Info()
	if err != nil {
		return 0
	}
	if tcx := info.TCX(); tcx != nil {
		return int(tcx.Ifindex)
	}
	if netkit := info.Netkit(); netkit != nil {
		return int(netkit.Ifindex)
	}
	return 0
}

// Detach takes the hook's program off the device. A device that is gone is no error.
func (a *Attacher) Detach(hook Hook, name string, index int) error {
	pin := a.pinOf(hook, name)
	if err := a.replacements.forget(pin); err != nil {
		return err
	}
	if err := os.Remove(pin); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("detach %s from %s: %w", hook, name, err)
	}
	if err := a.dropFilter(hook, index); err != nil {
		return fmt.Errorf("detach %s from %s: %w", hook, name, err)
	}
	return nil
}

// SplitPin returns whose link a pin is: the device, as PinName has it, and the hook. Those of XDP end in the mode.
func SplitPin(pin string) (device string, hook Hook) {
	name := filepath.Base(pin)
	for _, mode := range []XDPMode{XDPNative, XDPGeneric} {
		name = strings.TrimSuffix(name, "-"+string(mode))
	}
	at := strings.LastIndexByte(name, '-') // a device's name may have some, a hook's has none
	return name[:max(at, 0)], Hook(name[at+1:])
}

// Pins returns the paths of all pinned links to devices. Others, such as that of proxy_accept, have no device in their
// names.
func (a *Attacher) Pins() ([]string, error) {
	pins, err := filepath.Glob(filepath.Join(a.dir, "*-*"))
	if err != nil {
		return nil, fmt.Errorf("list pinned links: %w", err)
	}
	return pins, nil
}
