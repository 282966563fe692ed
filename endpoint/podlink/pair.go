package podlink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Options of a Driver.
type Options struct {
	// ProcSys is where sysctls are: "/proc/sys". The pod's are reached by the
	// same path from a thread inside the pod's namespace.
	ProcSys string

	// SlowPath sets the sysctls on the host side without which the kernel
	// forwards nothing for the pod and bpf_fib_lookup refuses with
	// BPF_FIB_LKUP_RET_FWD_DISABLED: forwarding of both families on, reverse-path
	// filter off.
	SlowPath bool
}

// Pairs is the Driver for pairs of devices.
type Pairs struct {
	host    *netlink.Handle
	options Options
}

var _ Driver = (*Pairs)(nil)

// New makes a driver whose host side is the namespace of host, which must be
// that of the calling process.
func New(host *netlink.Handle, options Options) *Pairs {
	return &Pairs{host: host, options: options}
}

// Create implements Driver.
func (d *Pairs) Create(spec Spec) (Result, error) {
	pod, err := openPod(spec.NetNS)
	if err != nil {
		return Result{}, err
	}
	defer pod.Close()

	if err := d.host.LinkAdd(pairOf(spec, pod)); err != nil {
		return Result{}, d.addError(spec, err)
	}
	result, err := d.configure(pod, spec)
	if err != nil {
		return Result{}, errors.Join(err, d.Delete(spec.Name))
	}
	return result, nil
}

// pairOf is the pair in one message: the pod's side never shows up in the host's namespace, where udev and network
// managers would take notice. Netkit devices drop everything until Open.
func pairOf(spec Spec, pod ns.NetNS) netlink.Link {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = spec.Name, spec.MTU
	if spec.Kind != Netkit {
		attrs.HardwareAddr = spec.LinkMAC
	}
	if !spec.Kind.IsNetkit() {
		return &netlink.Veth{LinkAttrs: attrs, PeerName: spec.IfName, PeerHardwareAddr: spec.PodMAC,
			PeerNamespace: netlink.NsFd(pod.Fd())}
	}
	peer := netlink.NewLinkAttrs()
	peer.Name, peer.MTU, peer.Namespace = spec.IfName, spec.MTU, netlink.NsFd(pod.Fd())
	pair := &netlink.Netkit{LinkAttrs: attrs, Mode: netlink.NETKIT_MODE_L3, Policy: netlink.NETKIT_POLICY_BLACKHOLE,
		PeerPolicy: netlink.NETKIT_POLICY_BLACKHOLE, Scrub: netlink.NETKIT_SCRUB_NONE,
		PeerScrub: netlink.NETKIT_SCRUB_DEFAULT}
	if spec.Kind == NetkitL2 {
		pair.Mode, peer.HardwareAddr = netlink.NETKIT_MODE_L2, spec.PodMAC
	}
	pair.SetPeerAttrs(&peer)
	return pair
}

// kindOf is the kind of a link.
func kindOf(link netlink.Link) Kind {
	pair, ok := link.(*netlink.Netkit)
	switch {
	case !ok:
		return Veth
	case pair.Mode == netlink.NETKIT_MODE_L2:
		return NetkitL2
	}
	return Netkit
}

// macOf is the MAC address of a link. Of an address of zeros, as layer-3 links have it, netlink makes none.
func macOf(link netlink.Link) net.HardwareAddr {
	if mac := link.Attrs().HardwareAddr; len(mac) > 0 {
		return mac
	}
	return make(net.HardwareAddr, 6)
}

// addError tells apart the two names that the kernel reports as EEXIST.
func (d *Pairs) addError(spec Spec, err error) error {
	if errors.Is(err, unix.EEXIST) {
		if _, found, ferr := d.Find(spec.Name); ferr == nil && !found {
			return fmt.Errorf("create %s in %s: %w", spec.IfName, spec.NetNS, ErrIfNameTaken)
		}
	}
	return fmt.Errorf("create %s %s, %s in %s: %w", cmp.Or(spec.Kind, Veth), spec.Name, spec.IfName, spec.NetNS, err)
}

func (d *Pairs) configure(pod ns.NetNS, spec Spec) (Result, error) {
	link, err := d.host.LinkByName(spec.Name)
	if err != nil {
		return Result{}, fmt.Errorf("find %s: %w", spec.Name, err)
	}
	if err := d.configureHost(link); err != nil {
		return Result{}, fmt.Errorf("configure host side %s: %w", spec.Name, err)
	}
	cookie, err := configurePod(pod, d.options.ProcSys, spec)
	if err != nil {
		return Result{}, fmt.Errorf("configure %s in %s: %w", spec.IfName, spec.NetNS, err)
	}
	return Result{Index: link.Attrs().Index, NetnsCookie: cookie}, nil
}

func (d *Pairs) configureHost(link netlink.Link) error {
	name := link.Attrs().Name
	s := sysctls{root: d.options.ProcSys}
	// The host side has no address at all: the datapath answers for the gateway.
	s.set6("addr_gen_mode", name, "1")
	s.set6("accept_ra", name, "0")
	if d.options.SlowPath {
		s.set4("forwarding", name, "1")
		s.set4("rp_filter", name, "0")
		s.set6("forwarding", name, "1")
	}
	if s.err != nil {
		return s.err
	}
	if err := d.host.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	return nil
}

// Delete implements Driver.
func (d *Pairs) Delete(name string) error {
	link, err := d.host.LinkByName(name)
	if isNotFound(err) {
		return nil
	}
	if err == nil {
		err = d.host.LinkDel(link)
	}
	// The pod's namespace may die in between and take the pair along.
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

// Find implements Driver.
func (d *Pairs) Find(name string) (Host, bool, error) {
	link, err := d.host.LinkByName(name)
	if isNotFound(err) {
		return Host{}, false, nil
	}
	if err != nil {
		return Host{}, false, fmt.Errorf("find %s: %w", name, err)
	}
	attrs := link.Attrs()
	return Host{Kind: kindOf(link), Index: attrs.Index, MAC: macOf(link), MTU: attrs.MTU}, true, nil
}

// Check implements Driver.
func (d *Pairs) Check(spec Spec) error {
	host, found, err := d.Find(spec.Name)
	switch {
	case err != nil:
		return err
	case !found:
		return fmt.Errorf("host side %s: does not exist", spec.Name)
	case host.MAC.String() != spec.LinkMAC.String():
		return fmt.Errorf("host side %s: MAC is %s, want %s", spec.Name, host.MAC, spec.LinkMAC)
	}
	link, err := d.host.LinkByName(spec.Name)
	if err != nil {
		return fmt.Errorf("find %s: %w", spec.Name, err)
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("host side %s: is down", spec.Name)
	}
	pod, err := openPod(spec.NetNS)
	if err != nil {
		return err
	}
	defer pod.Close()
	if err := checkPod(pod, spec); err != nil {
		return fmt.Errorf("%s in %s: %w", spec.IfName, spec.NetNS, err)
	}
	return nil
}

// Watch implements Driver.
func (d *Pairs) Watch(ctx context.Context, gone func(index int), resync func()) error {
	for ctx.Err() == nil {
		updates := make(chan netlink.LinkUpdate, 64)
		done := make(chan struct{})
		err := netlink.LinkSubscribe(updates, done)
		if err != nil {
			close(done)
			return fmt.Errorf("subscribe to link events: %w", err)
		}
		// Only now is nothing missed that comes after the look.
		resync()
		drain(ctx, updates, gone)
		close(done)
		// The library blocks on the channel until it sees its socket closed.
		go func() {
			for range updates {
			}
		}()
	}
	return nil
}

// drain returns when ctx ends or the library closes updates, as it does when
// the socket overflows (ENOBUFS).
func drain(ctx context.Context, updates <-chan netlink.LinkUpdate, gone func(index int)) {
	for {
		select {
		case <-ctx.Done():
			return
		case u, ok := <-updates:
			if !ok {
				return
			}
			// A bridge port that is left sends RTM_DELLINK of family AF_BRIDGE.
			if u.Header.Type == unix.RTM_DELLINK && u.IfInfomsg.Family == unix.AF_UNSPEC {
				gone(int(u.IfInfomsg.Index))
			}
		}
	}
}

func isNotFound(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound)
}

// openPod opens a network namespace and refuses that of this process: a pod
// with hostNetwork has no interface of its own.
func openPod(path string) (ns.NetNS, error) {
	pod, err := ns.GetNS(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNetNS, err)
	}
	// Not /proc/self: that is the main thread, which may just be visiting a pod.
	own, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		pod.Close()
		return nil, fmt.Errorf("find own network namespace: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(pod.Fd()), &st); err != nil {
		pod.Close()
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	if sameNamespace(own, &st) {
		pod.Close()
		return nil, fmt.Errorf("%w: %s is the host's own", ErrNetNS, path)
	}
	return pod, nil
}
