package bpf

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
)

// XDPDevice is a wire as XDP must know it.
type XDPDevice struct {
	Name  string
	Index int
	Type  string // as "ip -d link" names it
	Ports []int  // of a bond: indexes of its devices, by which frames come in
	L3    bool   // it has no link-layer header
}

// errL3 is a device whose packets the XDP program can't parse.
var errL3 = errors.New("it has no link-layer header")

// errNoTaker is a veth whose peer would not receive what XDP sends.
var errNoTaker = errors.New("its other end takes no frames of XDP: switch gro on there (ethtool -K DEVICE gro on), " +
	"or attach an XDP program")

// sends reports whether what XDP sends by the device arrives, as far as one can know. A driver that sends back what it
// brought (XDP_TX) is always possible; a veth needs a peer that takes frames, which is asked about by kernels since
// 6.3.
func (d XDPDevice) sends() error {
	if d.Type != "veth" {
		return nil
	}
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
	f, err := ReadXDPFeatures(d.Index)
	return err == nil && f.Takes()
}

// note is what must be so for native XDP on the device to work, and what we can't see.
func (d XDPDevice) note() string {
	if d.Type == "veth" {
		return d.Name + " is a veth: senders at its other end must fill checksums in (ethtool -K DEVICE tx off), for " +
			"XDP sees packets before they would be"
	}
	return ""
}

// tellXDP has the datapath know the device as its state says. The caller holds a.mu.
func (a *Attacher) tellXDP(d XDPDevice, s XDPState) error {
	index := uint32(d.Index)
	if s.Takes {
		if err := a.d.XdpWires.Put(index, index); err != nil {
			return fmt.Errorf("have %s take frames of XDP: %w", d.Name, err)
		}
	} else if err := a.d.XdpWires.Delete(index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("have %s take no frames of XDP: %w", d.Name, err)
	}
	if err := a.tellPorts(d, s); err != nil {
		return err
	}
	var bonds, byMap uint32
	all := uint32(1)
	for _, other := range a.xdp {
		if other.Mode == XDPNone {
			all = 0
			continue
		}
		if other.device.Type == "bond" {
			bonds = 1
		}
		if other.Mode == XDPNative && other.device.Type == "veth" {
			byMap = 1
		}
	}
	return errors.Join(setVariable(a.d.XdpBonds, bonds), setVariable(a.d.XdpByMap, byMap),
		setVariable(a.d.Prefiltered, all))
}

// tellPorts writes the bond's ports, and removes those that it has no more.
func (a *Attacher) tellPorts(d XDPDevice, s XDPState) error {
	ports := map[uint32]bool{}
	if s.Mode != XDPNone {
		for _, p := range d.Ports {
			ports[uint32(p)] = true
		}
	}
	var port, bond uint32
	rows := a.d.XdpPorts.Iterate()
	var gone []uint32
	for rows.Next(&port, &bond) {
		if bond == uint32(d.Index) && !ports[port] {
			gone = append(gone, port)
		}
	}
	err := rows.Err()
	for _, port := range gone {
		err = errors.Join(err, a.d.XdpPorts.Delete(port))
	}
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		err = errors.Join(err, a.d.XdpPorts.Put(port, uint32(d.Index)))
	}
	if err != nil {
		return fmt.Errorf("write ports of bond %s: %w", d.Name, err)
	}
	return nil
}

// setVariable writes a variable of the datapath where it is another.
func setVariable(v *ebpf.Variable, want uint32) error {
	var has uint32
	err := v.Get(&has)
	if err == nil && has != want {
		err = v.Set(want)
	}
	return err
}
