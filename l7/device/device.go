// Package device makes the devices by which flows get to the proxy and back, and attaches the datapath to them.
package device

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/endpoint/podlink"
)

// linkName is the veth's end in the node's network namespace.
const linkName = "myelin_proxy"

// insideName is its end in the proxy's.
const insideName = "eth0"

// tunMTU is above that of all wires: the datapath has checked the size of packets.
const tunMTU = 65000

// Spec says what there is to be.
type Spec struct {
	Datapath   *bpf.Datapath
	Namespace  *os.File // the proxy's
	TUN        string   // the device that the proxy reads DNS messages from
	IPv4, IPv6 bool
	// MTU is that of pods, and RouteMTU that of their routes where it is smaller.
	MTU, RouteMTU int
	ProcSys       string // "/proc/sys"
}

// Set makes the devices, their routes and the programs on them as the spec says. It is idempotent. Nothing that
// forwards is interrupted unless the proxy's network namespace is another one.
func Set(s Spec) error {
	link, err := s.setLink()
	if err != nil {
		return err
	}
	tun, err := s.setTUN()
	if err != nil {
		return err
	}
	if err := s.Datapath.AttachAccept(s.Namespace); err != nil {
		return err
	}
	attacher := s.Datapath.Attacher
	if err := errors.Join(attacher.Attach(bpf.FromProxy, linkName, link),
		attacher.Attach(bpf.FromProxyL3, s.TUN, tun)); err != nil {
		return err
	}
	row := bpf.DatapathProxyDevices{StreamIfindex: uint32(link), DatagramIfindex: uint32(tun),
		StreamMac: bpf.MAC(insideMAC()), LinkMac: bpf.MAC(linkMAC())}
	if err := s.Datapath.ProxyDevice.Put(uint32(0), row); err != nil {
		return fmt.Errorf("write proxy_device: %w", err)
	}
	return nil
}

// Locally administered addresses. Both ends are the only ones of their link.
func linkMAC() net.HardwareAddr   { return net.HardwareAddr{2, 'p', 'r', 'o', 'x', 1} }
func insideMAC() net.HardwareAddr { return net.HardwareAddr{2, 'p', 'r', 'o', 'x', 2} }

// podSpec is the veth pair. The addresses are only those from which the namespace's kernel sends ICMP errors.
func (s *Spec) podSpec() podlink.Spec {
	spec := podlink.Spec{
		Name: linkName, LinkMAC: linkMAC(), IfName: insideName, PodMAC: insideMAC(),
		NetNS: filepath.Join("/proc/self/fd", strconv.Itoa(int(s.Namespace.Fd()))), MTU: s.MTU, RouteMTU: s.RouteMTU,
	}
	if s.IPv4 {
		spec.IPv4, spec.Gateway4 = netip.AddrFrom4([4]byte{169, 254, 90, 2}), netip.AddrFrom4([4]byte{169, 254, 90, 1})
	}
	if s.IPv6 {
		spec.IPv6, spec.Gateway6 = netip.MustParseAddr("fd00:6d79:656c::2"), netip.MustParseAddr("fe80::1")
	}
	return spec
}

// setLink returns the index of the veth's end here.
func (s *Spec) setLink() (int, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return 0, fmt.Errorf("open netlink socket: %w", err)
	}
	defer handle.Close()
	driver := podlink.New(handle, podlink.Options{ProcSys: s.ProcSys, SlowPath: true})
	spec := s.podSpec()
	if driver.Check(spec) != nil {
		if err := driver.Delete(spec.Name); err != nil {
			return 0, err
		}
		if _, err := driver.Create(spec); err != nil {
			return 0, err
		}
	}
	if err := s.configureInside(spec); err != nil {
		return 0, err
	}
	host, found, err := driver.Find(spec.Name)
	if err == nil && !found {
		err = fmt.Errorf("find %s: it has gone", spec.Name)
	}
	return host.Index, err
}

// setTUN sets the proxy's TUN device up, and returns its index.
func (s *Spec) setTUN() (int, error) {
	link, err := netlink.LinkByName(s.TUN)
	if err != nil {
		return 0, fmt.Errorf("find %s: %w", s.TUN, err)
	}
	for path, value := range map[string]string{ // no packets of the kernel's own; with legacy routing, it forwards
		filepath.Join("net/ipv6/conf", s.TUN, "addr_gen_mode"): "1",
		filepath.Join("net/ipv6/conf", s.TUN, "accept_ra"):     "0",
		filepath.Join("net/ipv6/conf", s.TUN, "forwarding"):    "1",
		filepath.Join("net/ipv4/conf", s.TUN, "rp_filter"):     "0",
		filepath.Join("net/ipv4/conf", s.TUN, "forwarding"):    "1",
	} {
		if err := os.WriteFile(filepath.Join(s.ProcSys, path), []byte(value), 0); err != nil &&
			!errors.Is(err, os.ErrNotExist) {
			return 0, fmt.Errorf("configure %s: %w", s.TUN, err)
		}
	}
	if err := netlink.LinkSetMTU(link, tunMTU); err != nil {
		return 0, fmt.Errorf("set the MTU of %s: %w", s.TUN, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return 0, fmt.Errorf("set %s up: %w", s.TUN, err)
	}
	return link.Attrs().Index, nil
}
