package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// xdpEntries are the entries of the maps by which XDP knows devices.
type xdpEntries struct {
	wires map[uint32]uint32          // xdp_wires
	ports map[DatapathXdpPort]uint32 // xdp_ports
	vids  map[uint32]uint32          // xdp_vids
	// mapPorts: frames arrive on other devices than the wires, or with tags.
	mapPorts bool
	byMap    bool // XDP runs on a veth
	all      bool // XDP runs on all wires
}

// rowsOf returns the entries for devices in their states.
func xdpEntriesOf(states map[string]XDPState) xdpEntries {
	r := xdpEntries{wires: map[uint32]uint32{}, ports: map[DatapathXdpPort]uint32{}, vids: map[uint32]uint32{},
		all: len(states) > 0}
	for _, s := range states {
		d := s.device
		on, index := d.below(), uint32(d.Index)
		if s.Takes {
			r.wires[index] = uint32(on.Index)
		}
		if s.Mode == XDPNone {
			r.all = false
			continue
		}
		r.byMap = r.byMap || s.Mode == XDPNative && on.Type == "veth"
		r.mapPorts = r.mapPorts || on.Type == "bond" || d.VLAN.Below != nil
		if d.VLAN.Below != nil {
			r.vids[index] = uint32(d.VLAN.ID)
		}
		ports := on.Ports
		if on.Type != "bond" {
			ports = []int{on.Index}
		}
		for _, p := range ports {
			r.ports[DatapathXdpPort{Ifindex: uint32(p), Vid: uint32(d.VLAN.ID)}] = index
		}
	}
	return r
}

// writeXDP updates the maps by which XDP knows devices. The caller holds a.mu.
func (a *Attacher) writeXDP() error {
	r := xdpEntriesOf(a.xdp)
	if !r.mapPorts { // before the entries go
		if err := setVariable(a.d.XdpMapPorts, 0); err != nil {
			return err
		}
	}
	return errors.Join(
		replace(a.d.XdpWires, r.wires), replace(a.d.XdpVids, r.vids), replace(a.d.XdpPorts, r.ports),
		setVariable(a.d.XdpMapPorts, number(r.mapPorts)), setVariable(a.d.XdpByMap, number(r.byMap)),
		setVariable(a.d.Prefiltered, number(r.all)))
}

// replace makes a map have the given entries and no others.
func replace[K comparable, V comparable](m *ebpf.Map, want map[K]V) error {
	var key K
	var value V
	var obsolete []K
	present := map[K]V{}
	rows := m.Iterate()
	for rows.Next(&key, &value) {
		present[key] = value
		if _, ok := want[key]; !ok {
			obsolete = append(obsolete, key)
		}
	}
	err := rows.Err()
	for k, v := range want {
		if old, ok := present[k]; !ok || old != v {
			err = errors.Join(err, m.Put(k, v))
		}
	}
	for _, k := range obsolete {
		err = errors.Join(err, m.Delete(k))
	}
	if err != nil {
		return fmt.Errorf("write %v: %w", m, err)
	}
	return nil
}

func number(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// setVariable writes a variable of the datapath if it has another value.
func setVariable(v *ebpf.Variable, want uint32) error {
	var has uint32
	err := v.Get(&has)
	if err == nil && has != want {
		err = v.Set(want)
	}
	return err
}
