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

// clsactPriority leaves room before us for programs that must see packets first.
const clsactPriority = 100

// Attacher attaches programs to devices of the process's network namespace.
type Attacher struct {
	Mode Mode
	// Why says why the mode is not the best one; empty if it is.
	Why string
	dir string
	d   *Datapath

	mu  sync.Mutex
	xdp map[string]XDPState // by device
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

// updateLink gives the link that is pinned the new program, and reports whether there is one on the device.
func (a *Attacher) updateLink(hook Hook, name string, index int) (done bool, err error) {
	pin := a.pinOf(hook, name)
	old, err := link.LoadPinnedLink(pin, nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open pinned link: %w", err)
	}
	defer old.Close()
	if attachedTo(old) == index {
		program, err := a.program(hook)
		if err != nil {
			return false, err
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
		return false, a.replaceFilter(hook, index)
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
	return a.replaceFilter(hook, index)
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

// dropFilter removes the filter that hung on the device before the link. The qdisc stays, and costs nothing where a
// link decides: taking it off a device that is up deactivates the device's own queue (qdisc_graft), and what the host
// sends meanwhile is lost.
func (a *Attacher) dropFilter(hook Hook, index int) error {
	if hook == FromPodLink {
		return nil
	}
	ours := filter(hook, index)
	filters, err := netlink.FilterList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}, ours.Parent)
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok && b.Name == ours.Name {
			err = errors.Join(err, netlink.FilterDel(ours))
		}
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

// Detach takes the hook's program off the device. A device that is gone is no error.
func (a *Attacher) Detach(hook Hook, name string, index int) error {
	pin := a.pinOf(hook, name)
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
