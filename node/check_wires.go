package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/doctor/check"
)

// Checks are the doctor's checks of the node's wires and of its network stack.
func Checks() []check.Check {
	return []check.Check{
		{Area: "devices", Devices: true, Run: checkWires},
		{Area: "mtu", Devices: true, Run: checkMTU},
		{Area: "mtu", Devices: true, Run: checkRouteMTU},
		{Area: "sysctls", Devices: true, Run: checkSysctls},
	}
}

func checkWires(m *check.Machine) {
	if len(m.Wires) == 0 {
		m.Warn("no device leads to other nodes", "none has a default route, a global address, or is named by devices",
			"name them in the configuration's devices")
	}
	for _, l := range m.Wires {
		a := l.Attrs()
		if a.RawFlags&unix.IFF_UP == 0 || a.RawFlags&unix.IFF_LOWER_UP == 0 {
			m.Fail(a.Name+" is down, or has no carrier", "it is a wire, and nothing leaves by it",
				"ip link set "+a.Name+" up; look at its cable or peer")
		}
		offloads(m, l)
		xdp(m, l)
	}
}

// offloads that are off cost most for large transfers.
func offloads(m *check.Machine, l netlink.Link) {
	name := l.Attrs().Name
	driver := driverOf(name, l.Type())
	off, err := offloadsOff(name)
	if err != nil {
		m.Info(fmt.Sprintf("%s (%s): offloads are not known: %v", name, driver, err), "", "")
		return
	}
	lro := slices.Contains(off, "")
	// What comes out of a veth is as large as its sender made it.
	off = slices.DeleteFunc(off, func(s string) bool { return s == "" || s == "gro" && driver == "veth" })
	if len(off) > 0 {
		m.Warn(fmt.Sprintf("%s (%s) has %s off", name, driver, strings.Join(off, ", ")),
			"each packet of a stream is then handled by itself: a multiple of the CPU time",
			"ethtool -K "+name+" "+strings.Join(off, " on ")+" on")
	} else {
		m.OK("%s (%s): offloads are on", name, driver)
	}
	if lro {
		m.Warn(name+" has lro on", "packets that it merges can't be forwarded", "ethtool -K "+name+" lro off")
	}
}

// ethtool commands of linux/ethtool.h that read one flag.
const (
	ethtoolRxCsum = 0x14
	ethtoolTxCsum = 0x16
	ethtoolTSO    = 0x1e
	ethtoolGSO    = 0x23
	ethtoolFlags  = 0x25
	ethtoolGRO    = 0x2b
	flagLRO       = 1 << 15 // ETH_FLAG_LRO
)

// offloadsOff names what is off, in the words of ethtool(8). An empty name says
// that LRO is on.
func offloadsOff(name string) (off []string, err error) {
	for _, o := range []struct {
		name    string
		command uint32
	}{{"rx", ethtoolRxCsum}, {"tx", ethtoolTxCsum}, {"tso", ethtoolTSO}, {"gso", ethtoolGSO}, {"gro", ethtoolGRO}} {
		on, err := bpf.Ethtool(name, o.command)
		if err != nil {
			return nil, err
		}
		if on == 0 {
			off = append(off, o.name)
		}
	}
	flags, err := bpf.Ethtool(name, ethtoolFlags)
	if err == nil && flags&flagLRO != 0 {
		off = append(off, "")
	}
	return off, nil
}

// xdp tells what the driver can do, which kernels say since 6.3.
func xdp(m *check.Machine, l netlink.Link) {
	name := l.Attrs().Name
	found, err := bpf.ReadXDPFeatures(l.Attrs().Index)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		m.Info("the kernel does not say what XDP "+name+" can do (kernel 6.3)",
			"load balancing in the driver will be tried", "")
	case err != nil:
		m.Info(name+": XDP features are not known: "+err.Error(), "", "")
	case !found.Native():
		m.Info(name+" has no XDP in its driver",
			"load balancing will run later on a packet's way, or in generic XDP, at half the rate or less", "")
	case l.Type() == "veth" && !found.Takes():
		m.Info(name+" is a veth whose other end takes no frames of XDP",
			"load balancing will run later on a packet's way",
			"ethtool -K DEVICE gro on, tx off for its other end, if the load balancer is to run in the driver")
	default:
		m.OK("%s has XDP in its driver", name)
	}
}

// driverOf asks the device; those that don't know are named by their type.
func driverOf(name, kind string) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return kind
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	if err != nil {
		return kind
	}
	return unix.ByteSliceToString(info.Driver[:])
}
