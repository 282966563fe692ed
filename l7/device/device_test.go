package device

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf/link"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/endpoint/nettest"
)

const tunName = "dns-test"

// newSpec has a loaded datapath, a namespace of a proxy and its TUN device.
func newSpec(t *testing.T) (s Spec, dir string) {
	t.Helper()
	fs := t.TempDir()
	must(t, unix.Mount("bpf", fs, "bpf", 0, ""))
	t.Cleanup(func() { must(t, unix.Unmount(fs, unix.MNT_DETACH)) })
	dir = filepath.Join(fs, "myelin")
	d, err := bpf.Load(bpf.Options{Dir: dir})
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: tunName}, Mode: netlink.TUNTAP_MODE_TUN}
	must(t, netlink.LinkAdd(tun))
	namespace, err := os.Open(nettest.NewNS(t))
	must(t, err)
	t.Cleanup(func() { namespace.Close() })
	return Spec{Datapath: d, Namespace: namespace, TUN: tunName, IPv4: true, IPv6: true, MTU: 1400,
		ProcSys: "/proc/sys"}, dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// acceptLink is the kernel's number of the link of proxy_accept.
func acceptLink(t *testing.T, dir string) link.ID {
	t.Helper()
	l, err := link.LoadPinnedLink(filepath.Join(dir, "links", "proxy_accept"), nil)
	must(t, err)
	defer l.Close()
	info, err := l.Info()
	must(t, err)
	return info.ID
}

func index(t *testing.T, name string) int {
	t.Helper()
	l, err := netlink.LinkByName(name)
	must(t, err)
	return l.Attrs().Index
}

// TestSet makes the devices, leaves them as they are when it is repeated, and repairs what is not as it is to be.
func TestSet(t *testing.T) {
	nettest.Root(t)
	s, dir := newSpec(t)
	must(t, Set(s))
	first, accept := index(t, linkName), acceptLink(t, dir)
	checkInside(t, &s)
	var row bpf.DatapathProxyDevices
	must(t, s.Datapath.ProxyDevice.Lookup(uint32(0), &row))
	if int(row.StreamIfindex) != first || int(row.DatagramIfindex) != index(t, tunName) {
		t.Errorf("the datapath has %+v; the devices are %d and %d", row, first, index(t, tunName))
	}
	tun, err := netlink.LinkByName(tunName)
	must(t, err)
	if tun.Attrs().MTU != tunMTU || tun.Attrs().Flags&net.FlagUp == 0 {
		t.Errorf("the TUN device is %+v", tun.Attrs())
	}

	must(t, Set(s))
	if now := index(t, linkName); now != first || acceptLink(t, dir) != accept {
		t.Errorf("when it is repeated, the device is %d, and was %d; the link is %d, and was %d", now, first,
			acceptLink(t, dir), accept)
	}

	must(t, inside(&s, func() error { // it is made anew: the kernel removes both ends
		l, err := netlink.LinkByName(insideName)
		return errors.Join(err, netlink.LinkDel(l))
	}))
	must(t, Set(s))
	checkInside(t, &s)
	must(t, s.Datapath.ProxyDevice.Lookup(uint32(0), &row))
	if now := index(t, linkName); int(row.StreamIfindex) != now || acceptLink(t, dir) != accept {
		t.Errorf("after the device had gone the datapath has %+v, the device is %d", row, now)
	}

	next, err := os.Open(nettest.NewNS(t)) // that of a proxy after this one
	must(t, err)
	defer next.Close()
	s.Namespace = next
	must(t, Set(s))
	checkInside(t, &s)
	if acceptLink(t, dir) == accept {
		t.Error("proxy_accept is still on the namespace before")
	}
	s.TUN = "missing"
	if err := Set(s); err == nil {
		t.Error("without a TUN device: no error")
	}
}

func inside(s *Spec, do func() error) error {
	namespace, err := ns.GetNS(s.podSpec().NetNS)
	if err != nil {
		return err
	}
	defer namespace.Close()
	return namespace.Do(func(ns.NetNS) error { return do() })
}

// checkInside: packets that come by the veth are local, whatever their address.
func checkInside(t *testing.T, s *Spec) {
	t.Helper()
	must(t, inside(s, func() error {
		l, err := netlink.LinkByName(insideName)
		if err != nil {
			return err
		}
		if l.Attrs().MTU != s.MTU || l.Attrs().HardwareAddr.String() != insideMAC().String() {
			t.Errorf("the end inside is %+v", l.Attrs())
		}
		for _, addrs := range [][2]string{{"192.0.2.1", "198.51.100.1"}, {"2001:db8::1", "2001:db8:1::1"}} {
			from, to := netip.MustParseAddr(addrs[0]), netip.MustParseAddr(addrs[1])
			routes, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{Iif: insideName,
				SrcAddr: from.AsSlice()})
			if err != nil || len(routes) != 1 || routes[0].Type != unix.RTN_LOCAL {
				t.Errorf("packets from %s to %s: %v, %v", from, to, routes, err)
			}
		}
		return nil
	}))
}
