package doctor

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/config"
	"myelin/route"
	"myelin/status"
	"myelin/tunnel"
)

// kinds tries to make a device of each kind that is needed, in a network
// namespace that lasts as long as the trial.
func (x *examination) kinds() {
	level := Info
	if x.Config.RoutingMode == "tunnel" {
		level = Fail
	}
	for _, k := range []struct {
		link  netlink.Link
		level Level
		why   string
	}{
		{&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "probe"}, PeerName: "probe1"}, Fail,
			"pods are attached by it"},
		{&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "probe"}, FlowBased: true, VxlanId: 0, Port: 8472}, level,
			"routingMode tunnel needs it"},
		{&netlink.Netkit{LinkAttrs: netlink.LinkAttrs{Name: "probe"}, Mode: netlink.NETKIT_MODE_L3}, Info,
			"pods on it are a few percent faster than on veth (kernel 6.7)"},
		{&netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{Name: "probe"}}, Info, "encryption will need it"},
	} {
		err := inNewNamespace(func(h *netlink.Handle) error { return h.LinkAdd(k.link) })
		if err == nil {
			x.ok("devices of type %s can be made", k.link.Type())
			continue
		}
		text := "no device of type " + k.link.Type() + " can be made: " + err.Error()
		x.add(k.level, text, k.why, "load the module "+k.link.Type()+", or boot a kernel that has it")
	}
}

// inNewNamespace calls try with netlink in a namespace of its own.
func inNewNamespace(try func(*netlink.Handle) error) error {
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and the namespace
		// with the thread.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("make a network namespace: %w", err)
			return
		}
		h, err := netlink.NewHandle()
		if err != nil {
			done <- err
			return
		}
		defer h.Close()
		done <- try(h)
	}()
	return <-done
}

// isWire guesses as the agent does: what the configuration names, else what has
// a default route; where nothing has, what has a global address.
func (x *examination) isWire(l netlink.Link) bool {
	a := l.Attrs()
	if x.Agent != nil {
		return slices.ContainsFunc(x.Agent.Devices, func(d status.Device) bool {
			return d.Index == a.Index && d.Kind == string(route.Wire)
		})
	}
	if isPod(l) || a.Name == "lo" || a.Name == tunnel.DeviceName {
		return false
	}
	if len(x.Config.Devices) > 0 {
		return slices.ContainsFunc(x.Config.Devices, func(p string) bool { return config.MatchDevice(p, a.Name) })
	}
	if len(x.defaults) > 0 {
		return x.defaults[a.Index]
	}
	addresses, err := x.netlink.AddrList(l, netlink.FAMILY_ALL)
	return err == nil && a.MasterIndex == 0 && slices.ContainsFunc(addresses, func(a netlink.Addr) bool {
		return a.IP.IsGlobalUnicast()
	})
}

func isPod(l netlink.Link) bool {
	return strings.HasPrefix(l.Attrs().Name, route.PodPrefix) && (l.Type() == "veth" || l.Type() == "netkit")
}

func (x *examination) wireLinks() []netlink.Link {
	return slices.DeleteFunc(slices.Clone(x.links), func(l netlink.Link) bool { return !x.isWire(l) })
}

func (x *examination) wires() {
	wires := x.wireLinks()
	if len(wires) == 0 {
		x.warn("no device leads to other nodes", "none has a default route, a global address, or is named by devices",
			"name them in the configuration's devices")
	}
	for _, l := range wires {
		a := l.Attrs()
		if a.RawFlags&unix.IFF_UP == 0 || a.RawFlags&unix.IFF_LOWER_UP == 0 {
			x.fail(a.Name+" is down, or has no carrier", "it is a wire, and nothing leaves by it",
				"ip link set "+a.Name+" up; look at its cable or peer")
		}
		x.offloads(l)
		x.xdp(l)
	}
}

// offloads that are off cost most for large transfers.
func (x *examination) offloads(l netlink.Link) {
	name := l.Attrs().Name
	driver := driverOf(name, l.Type())
	off, err := offloadsOff(name)
	if err != nil {
		x.info(fmt.Sprintf("%s (%s): offloads are not known: %v", name, driver, err), "", "")
		return
	}
	lro := slices.Contains(off, "")
	// What comes out of a veth is as large as its sender made it.
	off = slices.DeleteFunc(off, func(s string) bool { return s == "" || s == "gro" && driver == "veth" })
	if len(off) > 0 {
		x.warn(fmt.Sprintf("%s (%s) has %s off", name, driver, strings.Join(off, ", ")),
			"each packet of a stream is then handled by itself: a multiple of the CPU time",
			"ethtool -K "+name+" "+strings.Join(off, " on ")+" on")
	} else {
		x.ok("%s (%s): offloads are on", name, driver)
	}
	if lro {
		x.warn(name+" has lro on", "packets that it merges can't be forwarded", "ethtool -K "+name+" lro off")
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
func (x *examination) xdp(l netlink.Link) {
	name := l.Attrs().Name
	found, err := bpf.ReadXDPFeatures(l.Attrs().Index)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		x.info("the kernel does not say what XDP "+name+" can do (kernel 6.3)",
			"load balancing in the driver will be tried", "")
	case err != nil:
		x.info(name+": XDP features are not known: "+err.Error(), "", "")
	case !found.Native():
		x.info(name+" has no XDP in its driver",
			"load balancing will run later on a packet's way, or in generic XDP, at half the rate or less", "")
	case l.Type() == "veth" && !found.Takes():
		x.info(name+" is a veth whose other end takes no frames of XDP",
			"load balancing will run later on a packet's way",
			"ethtool -K DEVICE gro on, tx off for its other end, if the load balancer is to run in the driver")
	default:
		x.ok("%s has XDP in its driver", name)
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
