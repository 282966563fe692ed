package podlink

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/bpf"
)

// sysctls writes per-device values and keeps the first error.
type sysctls struct {
	root string
	err  error
}

func (s *sysctls) set4(key, device, value string) { s.set("ipv4", key, device, value) }

// set6 does nothing on a kernel without IPv6; a pod that is to have an IPv6
// address fails there when the address is added.
func (s *sysctls) set6(key, device, value string) {
	if _, err := os.Stat(filepath.Join(s.root, "net/ipv6")); errors.Is(err, fs.ErrNotExist) {
		return
	}
	s.set("ipv6", key, device, value)
}

// set joins the path itself because a device's name may contain dots, which
// the dotted form of sysctl names can't.
func (s *sysctls) set(family, key, device, value string) {
	if s.err != nil {
		return
	}
	path := filepath.Join(s.root, "net", family, "conf", device, key)
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		s.err = fmt.Errorf("write sysctl: %w", err)
	}
}

func sameNamespace(own os.FileInfo, other *unix.Stat_t) bool {
	st, ok := own.Sys().(*syscall.Stat_t)
	return ok && st.Ino == other.Ino && st.Dev == other.Dev
}

// configurePod does the pod's side on one thread that is moved into the pod's
// namespace: sysctls are only reachable from within, and the netlink socket is
// opened there too. It returns the namespace's cookie.
func configurePod(pod ns.NetNS, procSys string, spec Spec) (cookie uint64, err error) {
	err = pod.Do(func(ns.NetNS) error {
		if cookie, err = bpf.NetnsCookie(); err != nil {
			return err
		}
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink socket: %w", err)
		}
		defer h.Close()
		return configureInside(h, procSys, spec)
	})
	return cookie, err
}

func configureInside(h *netlink.Handle, procSys string, spec Spec) error {
	// Before the device goes up: no router solicitation, no duplicate address
	// detection that would keep the pod silent for a second.
	if err := ipv6Sysctls(procSys, spec); err != nil {
		return err
	}
	if _, err := setUp(h, "lo"); err != nil {
		return err
	}
	link, err := setUp(h, spec.IfName)
	if err != nil {
		return err
	}
	for _, f := range families(spec) {
		if err := addFamily(h, link, f); err != nil {
			return err
		}
	}
	return nil
}

func setUp(h *netlink.Handle, name string) (netlink.Link, error) {
	link, err := h.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set %s up: %w", name, err)
	}
	return link, nil
}

func ipv6Sysctls(procSys string, spec Spec) error {
	s := sysctls{root: procSys}
	if !spec.IPv6.IsValid() {
		// A link-local address alone is of no use to a pod of an IPv4 cluster and
		// makes noise that the datapath would have to drop.
		s.set6("disable_ipv6", spec.IfName, "1")
		return s.err
	}
	// Some container runtimes switch IPv6 off in every new namespace.
	s.set6("disable_ipv6", "lo", "0")
	s.set6("disable_ipv6", spec.IfName, "0")
	s.set6("accept_ra", spec.IfName, "0")
	s.set6("accept_dad", spec.IfName, "0")
	return s.err
}

// family is one address of the pod with its gateway.
type family struct {
	number           int
	address, gateway netip.Addr
	mtu              int // of the default route, 0: that of the link
	flags            int
}

func families(spec Spec) []family {
	var all []family
	if spec.IPv4.IsValid() {
		all = append(all, family{netlink.FAMILY_V4, spec.IPv4, spec.Gateway4, spec.RouteMTU, 0})
	}
	if spec.IPv6.IsValid() {
		all = append(all, family{netlink.FAMILY_V6, spec.IPv6, spec.Gateway6, spec.RouteMTU, unix.IFA_F_NODAD})
	}
	return all
}

func (f family) host() *net.IPNet {
	bits := f.address.BitLen()
	return &net.IPNet{IP: f.address.AsSlice(), Mask: net.CIDRMask(bits, bits)}
}

// everything is 0.0.0.0/0 or ::/0.
func (f family) everything() *net.IPNet {
	bits := f.address.BitLen()
	return &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}
}

func addFamily(h *netlink.Handle, link netlink.Link, f family) error {
	addr := &netlink.Addr{IPNet: f.host(), Flags: f.flags}
	if err := h.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("add address %s: %w", f.address, err)
	}
	// The gateway is in no prefix of the pod: onlink lets the kernel take it
	// without a route of its own (IPv6: since 4.16).
	route := &netlink.Route{
		LinkIndex: link.Attrs().Index, Dst: f.everything(), Gw: f.gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK),
		MTU: f.mtu,
	}
	if err := h.RouteAdd(route); err != nil {
		return fmt.Errorf("add default route via %s: %w", f.gateway, err)
	}
	return nil
}

// checkPod returns the first difference between the pod's side and spec.
func checkPod(pod ns.NetNS, spec Spec) error {
	return pod.Do(func(ns.NetNS) error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink socket: %w", err)
		}
		defer h.Close()
		link, err := h.LinkByName(spec.IfName)
		if err != nil {
			return fmt.Errorf("find: %w", err)
		}
		attrs := link.Attrs()
		switch {
		case attrs.Flags&net.FlagUp == 0:
			return errors.New("is down")
		case macOf(link).String() != spec.PodMAC.String():
			return fmt.Errorf("MAC is %s, want %s", macOf(link), spec.PodMAC)
		case attrs.MTU != spec.MTU:
			return fmt.Errorf("MTU is %d, want %d", attrs.MTU, spec.MTU)
		}
		for _, f := range families(spec) {
			if err := checkFamily(h, link, f); err != nil {
				return err
			}
		}
		return nil
	})
}

func checkFamily(h *netlink.Handle, link netlink.Link, f family) error {
	addrs, err := h.AddrList(link, f.number)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	found := false
	for _, a := range addrs {
		found = found || a.IPNet.String() == f.host().String()
	}
	if !found {
		return fmt.Errorf("address %s is missing", f.address)
	}
	routes, err := h.RouteList(link, f.number)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if !r.Gw.Equal(f.gateway.AsSlice()) || r.Dst != nil && r.Dst.String() != f.everything().String() {
			continue
		}
		if f.mtu != 0 && r.MTU != f.mtu {
			return fmt.Errorf("default route via %s: MTU is %d, want %d", f.gateway, r.MTU, f.mtu)
		}
		return nil
	}
	return fmt.Errorf("default route via %s is missing", f.gateway)
}
