package bpf

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The netdev family of linux/netdev.h.
const (
	netdevGet         = 1 // NETDEV_CMD_DEV_GET
	netdevIndex       = 1 // NETDEV_A_DEV_IFINDEX
	netdevXDPFeatures = 3 // NETDEV_A_DEV_XDP_FEATURES
)

// XDPFeatures is what a driver does of XDP, in bits of linux/netdev.h.
type XDPFeatures uint64

// Native: the driver runs programs, and sends frames to other devices.
func (f XDPFeatures) Native() bool { return f&3 == 3 } // NETDEV_XDP_ACT_BASIC and _REDIRECT

// Takes: the device sends frames that other drivers brought.
func (f XDPFeatures) Takes() bool { return f&4 != 0 } // NETDEV_XDP_ACT_NDO_XMIT

// ReadXDPFeatures asks the kernel about a device of this network namespace. Kernel 6.3 or later; ENOENT or EOPNOTSUPP
// before.
func ReadXDPFeatures(index int) (XDPFeatures, error) {
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return 0, fmt.Errorf("find netlink family netdev: %w", err)
	}
	request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	request.AddData(&nl.Genlmsg{Command: netdevGet, Version: 1})
	request.AddData(nl.NewRtAttr(netdevIndex, nl.Uint32Attr(uint32(index))))
	messages, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return 0, fmt.Errorf("ask for XDP features: %w", err)
	}
	for _, m := range messages {
		if len(m) < nl.SizeofGenlmsg {
			continue
		}
		attributes, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
		if err != nil {
			return 0, fmt.Errorf("read XDP features: %w", err)
		}
		for _, a := range attributes {
			if a.Attr.Type == netdevXDPFeatures && len(a.Value) >= 8 {
				return XDPFeatures(nl.NativeEndian().Uint64(a.Value)), nil
			}
		}
	}
	return 0, fmt.Errorf("read XDP features: %w", unix.ENOENT)
}
