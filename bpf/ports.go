package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// followPorts makes the index of NAT ports, if it is new, and the flag of borrowed ports what the adopted entries need.
func (d *Datapath) followPorts(s *Settings) error {
	var failed error
	borrowed := func(port, low, high uint16) bool {
		if failed == nil && (port < low || port > high) {
			failed = d.PortsBorrowed.Set(uint32(1))
		}
		return failed == nil
	}
	err := Each(d.Flows, func(k *DatapathFlowKey, r *DatapathFlow) bool {
		if DatapathFlowFlag(r.Flags)&DatapathFlowFlagFLOW_NAT == 0 {
			return true
		}
		key, row := masqueradePort(k, r)
		if !d.adopted("port_indexes") {
			failed = d.PortIndexes.Update(key, row, ebpf.UpdateAny)
		}
		return borrowed(row.Port, s.NatPortMin, s.NatPortMax)
	})
	if err == nil && failed == nil {
		err = Each(d.NatEntries, func(_ *DatapathNatTuple, r *DatapathNatEntry) bool {
			return DatapathNatEntryFlag(r.Flags)&DatapathNatEntryFlagNAT_ENTRY_SNAT == 0 ||
				borrowed(Port(r.NatPort), s.LbPortMin, s.LbPortMax)
		})
	}
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("index NAT ports: %w", err)
	}
	return nil
}

func (d *Datapath) adopted(name string) bool {
	for _, m := range d.Maps {
		if m.Name == name {
			return m.Adopted
		}
	}
	return false
}

// masqueradePort is what the index of ports has of an entry with FLOW_NAT, if
// its port is none of the connection's candidates.
func masqueradePort(k *DatapathFlowKey, r *DatapathFlow) (DatapathNatTuple, DatapathPortIndex) {
	pod := r.PodSide & 1
	return DatapathNatTuple{Src: r.Pod, Sport: r.PodPort, Dst: k.Addr[1-pod], Dport: k.Port[1-pod],
			Proto: k.Proto},
		DatapathPortIndex{Snat: k.Addr[pod], Port: Port(k.Port[pod])}
}

// PortIndexed reports whether the entry that the index speaks of is there.
func (d *Datapath) PortIndexed(k *DatapathNatTuple, i *DatapathPortIndex) (bool, error) {
	var r DatapathFlow
	pod, err := FindFlow(d.Flows, End{i.Snat, Port(i.Port)}, End{k.Dst, k.Dport}, k.Proto, &r)
	return pod >= 0 && err == nil && int(r.PodSide&1) == pod && r.Pod == k.Src && r.PodPort == k.Sport, err
}
