package bpf

import (
	"errors"
	"fmt"
)

// Of linux/ethtool.h.
const (
	ethtoolFlags = 0x25   // ETHTOOL_GFLAGS
	flagRxVLAN   = 1 << 8 // ETH_FLAG_RXVLAN
)

// XDPDevice is a wire as XDP must know it.
type XDPDevice struct {
	Name  string
	Index int
	Type  string // as "ip -d link" names it
	Ports []int  // of a bond: indexes of the devices by which frames arrive
	L3    bool   // it has no link-layer header
	VLAN  VLAN
}

// VLAN is where frames of a VLAN device arrive.
type VLAN struct {
	Below *XDPDevice // nil: the device is no VLAN device
	ID    uint16
	QinQ  bool // its tag is one of 802.1ad
}

// below is the device whose driver runs the program.
func (d XDPDevice) below() XDPDevice {
	if d.VLAN.Below != nil {
		return *d.VLAN.Below
	}
	return d
}

// errL3 is a device whose packets the XDP program can't parse.
var errL3 = errors.New("it has no link-layer header")

// errQinQ is a VLAN device whose tags the XDP program can't parse.
var errQinQ = errors.New("its tag is one of 802.1ad")

// errNoParent is a VLAN device in another network namespace than the device that its frames arrive on.
var errNoParent = errors.New("the device below it is not in this network namespace")

// errNoTaker is a veth whose peer would not receive what XDP sends.
var errNoTaker = errors.New("its other end takes no frames of XDP: switch gro on there (ethtool -K DEVICE gro on), " +
	"or attach an XDP program")

// supports reports why the XDP program can't translate frames of the device in the mode, as far as that can be known.
func (d XDPDevice) supports(mode XDPMode) error {
	on := d.below()
	switch {
	case d.L3 || on.L3:
		return errL3
	case d.Type == "vlan" && d.VLAN.Below == nil:
		return errNoParent
	case d.VLAN.QinQ:
		return errQinQ
	case mode != XDPNative:
		return nil
	case on.Type == "veth":
		return on.sends()
	case d.VLAN.Below != nil:
		return on.keepsTags()
	}
	return nil
}

// keepsTags reports whether the XDP program sees VLAN tags: most drivers move them out of the frame if they may.
func (d XDPDevice) keepsTags() error {
	flags, err := Ethtool(d.Name, ethtoolFlags)
	if err != nil {
		return err
	}
	if flags&flagRxVLAN != 0 {
		return fmt.Errorf("%s removes VLAN tags from frames: ethtool -K %s rxvlan off", d.Name, d.Name)
	}
	return nil
}

// sends reports whether a frame that XDP sends by the veth arrives: its peer must receive such frames, which kernels
// tell since 6.3.
func (d XDPDevice) sends() error {
	f, err := ReadXDPFeatures(d.Index)
	if err != nil {
		return fmt.Errorf("whether its other end takes frames of XDP is not known (kernel 6.3): %w", err)
	}
	if !f.Takes() {
		return errNoTaker
	}
	return nil
}

// takes reports whether the device, whose XDP is in the mode, takes frames that others brought. Generic XDP asks no
// driver. Where that is unknown (before 6.3), it doesn't: what a driver refuses would be lost.
func (d XDPDevice) takes(mode XDPMode) bool {
	if mode != XDPNative {
		return mode == XDPGeneric
	}
	f, err := ReadXDPFeatures(d.below().Index)
	return err == nil && f.Takes()
}

// note says what native XDP on the device depends on and can't be checked.
func (d XDPDevice) note() string {
	on := d.below()
	switch {
	case on.Type != "veth":
		return ""
	case d.VLAN.Below != nil:
		return on.Name + " is a veth: senders at its other end must write VLAN tags and checksums into frames " +
			"(ethtool -K DEVICE tx off txvlan off), for XDP sees frames as they were sent"
	}
	return d.Name + " is a veth: senders at its other end must fill checksums in (ethtool -K DEVICE tx off), for " +
		"XDP sees packets before they would be"
}
