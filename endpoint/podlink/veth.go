package podlink

import (
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

// Veth is the Driver for pairs of virtual Ethernet devices.
type Veth struct {
	host    *netlink.Handle
	options Options
}

var _ Driver = (*Veth)(nil)

// NewVeth makes a driver whose host side is the namespace of host, which must be
// that of the calling process.
func NewVeth(host *netlink.Handle, options Options) *Veth {
	return &Veth{host: host, options: options}
}

// Create implements Driver.
func (v *Veth) Create(spec Spec) (Result, error) {
	pod, err := openPod(spec.NetNS)
	if err != nil {
		return Result{}, err
	}
	defer pod.Close()

	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = spec.Name, spec.MTU, spec.LinkMAC
	// One message: the pod's side never shows up in the host's namespace, where
	// udev and network managers would take notice.
	pair := &netlink.Veth{
		LinkAttrs:        attrs,
		PeerName:         spec.IfName,
		PeerHardwareAddr: spec.PodMAC,
		PeerNamespace:    netlink.NsFd(pod.Fd()),
	}
	if err := v.host.LinkAdd(pair); err != nil {
		return Result{}, v.addError(spec, err)
	}
	result, err := v.configure(pod, spec)
	if err != nil {
		return Result{}, errors.Join(err, v.Delete(spec.Name))
	}
	return result, nil
}

// addError tells apart the two names that the kernel reports as EEXIST.
func (v *Veth) addError(spec Spec, err error) error {
	if errors.Is(err, unix.EEXIST) {
		if _, found, ferr := v.Find(spec.Name); ferr == nil && !found {
			return fmt.Errorf("create %s in %s: %w", spec.IfName, spec.NetNS, ErrIfNameTaken)
		}
	}
	return fmt.Errorf("create veth %s, %s in %s: %w", spec.Name, spec.IfName, spec.NetNS, err)
}

func (v *Veth) configure(pod ns.NetNS, spec Spec) (Result, error) {
	link, err := v.host.LinkByName(spec.Name)
	if err != nil {
		return Result{}, fmt.Errorf("find veth %s: %w", spec.Name, err)
	}
	if err := v.configureHost(link); err != nil {
		return Result{}, fmt.Errorf("configure host side %s: %w", spec.Name, err)
	}
	cookie, err := configurePod(pod, v.options.ProcSys, spec)
	if err != nil {
		return Result{}, fmt.Errorf("configure %s in %s: %w", spec.IfName, spec.NetNS, err)
	}
	return Result{Index: link.Attrs().Index, NetnsCookie: cookie}, nil
}

func (v *Veth) configureHost(link netlink.Link) error {
	name := link.Attrs().Name
	s := sysctls{root: v.options.ProcSys}
	// The host side has no address at all: the datapath answers for the gateway.
	s.set6("addr_gen_mode", name, "1")
	s.set6("accept_ra", name, "0")
	if v.options.SlowPath {
		s.set4("forwarding", name, "1")
		s.set4("rp_filter", name, "0")
		s.set6("forwarding", name, "1")
	}
	if s.err != nil {
		return s.err
	}
	if err := v.host.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	return nil
}

// Delete implements Driver.
func (v *Veth) Delete(name string) error {
	link, err := v.host.LinkByName(name)
	if isNotFound(err) {
		return nil
	}
	if err == nil {
		err = v.host.LinkDel(link)
	}
	// The pod's namespace may die in between and take the pair along.
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete veth %s: %w", name, err)
	}
	return nil
}

// Find implements Driver.
func (v *Veth) Find(name string) (Host, bool, error) {
	link, err := v.host.LinkByName(name)
	if isNotFound(err) {
		return Host{}, false, nil
	}
	if err != nil {
		return Host{}, false, fmt.Errorf("find veth %s: %w", name, err)
	}
	attrs := link.Attrs()
	return Host{Index: attrs.Index, MAC: attrs.HardwareAddr, MTU: attrs.MTU}, true, nil
}

// Check implements Driver.
func (v *Veth) Check(spec Spec) error {
	host, found, err := v.Find(spec.Name)
	switch {
	case err != nil:
		return err
	case !found:
		return fmt.Errorf("host side %s: does not exist", spec.Name)
	case host.MAC.String() != spec.LinkMAC.String():
		return fmt.Errorf("host side %s: MAC is %s, want %s", spec.Name, host.MAC, spec.LinkMAC)
	}
	link, err := v.host.LinkByName(spec.Name)
	if err != nil {
		return fmt.Errorf("find veth %s: %w", spec.Name, err)
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
func (v *Veth) Watch(ctx context.Context, gone func(index int), resync func()) error {
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
