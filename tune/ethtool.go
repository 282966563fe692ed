package tune

import (
	"fmt"
	"io/fs"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Cards are the network cards of this network namespace, by the ioctl of linux/ethtool.h, which every kernel has.
type Cards struct{}

// word is a number in a structure of linux/ethtool.h.
type word struct {
	get, set uint32 // commands; set 0: read only
	words    int    // of the structure, with the command
	at       int
	flag     bool // "on" or "off"
}

// words are the settings: struct ethtool_ringparam has 9 numbers, ethtool_coalesce 23, and ethtool_value 2.
func words() map[string]word {
	return map[string]word{
		"rx-ring": {0x10, 0x11, 9, 5, false}, "tx-ring": {0x10, 0x11, 9, 8, false},
		"rx-ring-max": {0x10, 0, 9, 1, false}, "tx-ring-max": {0x10, 0, 9, 4, false},
		"rx-usecs": {0x0e, 0x0f, 23, 1, false}, "adaptive-rx": {0x0e, 0x0f, 23, 10, true},
		"rx": {0x14, 0x15, 2, 1, true}, "tx": {0x16, 0x17, 2, 1, true}, "tso": {0x1e, 0x1f, 2, 1, true},
		"gso": {0x23, 0x24, 2, 1, true}, "gro": {0x2b, 0x2c, 2, 1, true},
	}
}

// LRO is a bit of the flags.
const (
	getFlags = 0x25
	setFlags = 0x26
	flagLRO  = 1 << 15
)

// Read implements Store.
func (Cards) Read(key string) (string, error) {
	device, name, _ := strings.Cut(key, " ")
	switch name {
	case "mtu-max":
		return mtuMax(device)
	case "qdisc":
		return qdiscOf(device)
	}
	if err := fixed(device, name); err != nil {
		return "", err
	}
	if name == "lro" {
		flags, err := ethtool(device, getFlags, make([]uint32, 2))
		if err != nil {
			return "", err
		}
		return onOff(flags[1]&flagLRO != 0), nil
	}
	w, ok := words()[name]
	if !ok {
		return "", fmt.Errorf("no setting %q: %w", name, fs.ErrNotExist)
	}
	values, err := ethtool(device, w.get, make([]uint32, w.words))
	if err != nil {
		return "", err
	}
	if w.flag {
		return onOff(values[w.at] != 0), nil
	}
	return strconv.FormatUint(uint64(values[w.at]), 10), nil
}

// Write implements Store. Other values of the same structure stay as they are.
func (Cards) Write(key, value string) error {
	device, name, _ := strings.Cut(key, " ")
	w, ok := words()[name]
	if name == "lro" {
		w, ok = word{getFlags, setFlags, 2, 1, true}, true
	}
	if !ok || w.set == 0 {
		return fmt.Errorf("setting %q can't be written", name)
	}
	values, err := ethtool(device, w.get, make([]uint32, w.words))
	if err != nil {
		return err
	}
	switch {
	case name == "lro":
		values[1] &^= flagLRO
		if value == "on" {
			values[1] |= flagLRO
		}
	case w.flag:
		values[w.at] = 0
		if value == "on" {
			values[w.at] = 1
		}
	default:
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil {
			return err
		}
		values[w.at] = uint32(n)
	}
	_, err = ethtool(device, w.set, values)
	return err
}

// Command implements Store.
func (Cards) Command(key, value string) string {
	device, name, _ := strings.Cut(key, " ")
	option := "-K"
	switch name {
	case "rx-ring", "tx-ring":
		option, name = "-G", strings.TrimSuffix(name, "-ring")
	case "rx-usecs", "adaptive-rx":
		option = "-C"
	}
	return fmt.Sprintf("ethtool %s %s %s %s", option, device, name, value)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// ifreq is struct ifreq of linux/if.h with a pointer as its data.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte // the kernel copies the whole union
}

// ethtool runs a command on a device. values are its structure, the first one is the command. A device or a driver
// without the setting is fs.ErrNotExist.
func ethtool(device string, command uint32, values []uint32) ([]uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open socket: %w", err)
	}
	defer unix.Close(fd)
	values[0] = command
	request := ifreq{data: unsafe.Pointer(&values[0])}
	copy(request.name[:unix.IFNAMSIZ-1], device)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	runtime.KeepAlive(values)
	switch errno {
	case 0:
		return values, nil
	case unix.EOPNOTSUPP, unix.ENODEV, unix.ENOTTY:
		return nil, fmt.Errorf("ethtool command %#x of %s: %w: %w", command, device, errno, fs.ErrNotExist)
	}
	return nil, fmt.Errorf("ethtool command %#x of %s: %w", command, device, errno)
}

// mtuMax is the largest MTU that a driver takes.
func mtuMax(device string) (string, error) {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return "", err
	}
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	info := nl.NewIfInfomsg(unix.AF_UNSPEC)
	info.Index = int32(link.Attrs().Index)
	request.AddData(info)
	messages, err := request.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", device, err)
	}
	for _, m := range messages {
		attributes, err := nl.ParseRouteAttr(m[info.Len():])
		if err != nil {
			return "", fmt.Errorf("read %s: %w", device, err)
		}
		for _, a := range attributes {
			if a.Attr.Type == unix.IFLA_MAX_MTU && len(a.Value) >= 4 && nl.NativeEndian().Uint32(a.Value) > 0 {
				return strconv.FormatUint(uint64(nl.NativeEndian().Uint32(a.Value)), 10), nil
			}
		}
	}
	return "", fmt.Errorf("largest MTU of %s: %w", device, fs.ErrNotExist)
}

// qdiscOf is the kind of a device's root qdisc.
func qdiscOf(device string) (string, error) {
	link, err := netlink.LinkByName(device)
	if err != nil {
		return "", err
	}
	list, err := netlink.QdiscList(link)
	if err != nil {
		return "", fmt.Errorf("list qdiscs of %s: %w", device, err)
	}
	for _, q := range list {
		if q.Attrs().Parent == netlink.HANDLE_ROOT {
			return q.Type(), nil
		}
	}
	return "", fmt.Errorf("root qdisc of %s: %w", device, fs.ErrNotExist)
}
