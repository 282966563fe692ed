package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// followPorts makes the index of NAT ports, if it is new, and the flag of
// borrowed ports what the adopted entries need.
func (d *Datapath) followPorts(s *Settings) error {
	var failed error
	index := func(k DatapathPortKey, i DatapathPortIndex) bool {
		if !d.adopted("port_indexes") {
			failed = d.PortIndexes.Update(k, i, ebpf.UpdateAny)
		}
		if failed == nil && !inHalf(s, i) {
			failed = d.PortsBorrowed.Set(uint32(1))
		}
		return failed == nil
	}
	err := Each(d.Flows, func(k *DatapathFlowKey, r *DatapathFlow) bool {
		return DatapathFlowFlag(r.Flags)&DatapathFlowFlagFLOW_NAT == 0 || index(masqueradePort(k, r))
	})
	if err == nil && failed == nil {
		err = Each(d.NatEntries, func(k *DatapathNatEntryKey, r *DatapathNatEntry) bool {
			return DatapathNatEntryFlag(r.Flags)&DatapathNatEntryFlagNAT_ENTRY_SNAT == 0 ||
				index(servicePort(k, r))
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

// inHalf reports whether a port is of the half in which the entry's kind begins.
func inHalf(s *Settings, i DatapathPortIndex) bool {
	if DatapathPortIndexFlag(i.Flags)&DatapathPortIndexFlagPORT_INDEX_SERVICE != 0 {
		return s.LbPortMin <= i.Port && i.Port <= s.LbPortMax
	}
	return s.NatPortMin <= i.Port && i.Port <= s.NatPortMax
}

// masqueradePort is what the index of ports has of an entry with FLOW_NAT, if
// its port is none of the connection's candidates.
func masqueradePort(k *DatapathFlowKey, r *DatapathFlow) (DatapathPortKey, DatapathPortIndex) {
	pod := r.PodSide & 1
	return DatapathPortKey{Client: r.Pod, ClientPort: r.PodPort, Server: k.Addr[1-pod], ServerPort: k.Port[1-pod],
			Proto: k.Proto},
		DatapathPortIndex{Snat: k.Addr[pod], Port: Port(k.Port[pod])}
}

func servicePort(k *DatapathNatEntryKey, r *DatapathNatEntry) (DatapathPortKey, DatapathPortIndex) {
	i := DatapathPortIndex{Snat: r.Snat, Port: Port(k.Port), Flags: uint16(DatapathPortIndexFlagPORT_INDEX_SERVICE)}
	if r.Snat == r.Client {
		i.Flags |= uint16(DatapathPortIndexFlagPORT_INDEX_OWN)
	}
	return DatapathPortKey{
		Client: r.Client, ClientPort: r.ClientPort, Server: r.Frontend, ServerPort: r.FrontendPort, Proto: k.Proto,
	}, i
}

// PortIndexed reports whether the entry that the index speaks of is there.
func (d *Datapath) PortIndexed(k *DatapathPortKey, i *DatapathPortIndex) (bool, error) {
	if DatapathPortIndexFlag(i.Flags)&DatapathPortIndexFlagPORT_INDEX_SERVICE == 0 {
		return d.masqueradeIndexed(k, i)
	}
	at := DatapathNatEntryKey{Port: Port(i.Port), Proto: k.Proto}
	if DatapathPortIndexFlag(i.Flags)&DatapathPortIndexFlagPORT_INDEX_OWN != 0 {
		at.Addr = k.Client
	}
	for at.Slot = 0; at.Slot < uint8(DatapathNatEntryBoundNAT_ENTRY_SLOTS); at.Slot++ {
		var r DatapathNatEntry
		found, err := Get(d.NatEntries, &at, &r)
		if err != nil {
			return false, err
		}
		if found && r.Client == k.Client && r.ClientPort == k.ClientPort && r.Frontend == k.Server &&
			r.FrontendPort == k.ServerPort {
			return true, nil
		}
	}
	return false, nil
}

func (d *Datapath) masqueradeIndexed(k *DatapathPortKey, i *DatapathPortIndex) (bool, error) {
	var r DatapathFlow
	pod, err := FindFlow(d.Flows, End{i.Snat, Port(i.Port)}, End{k.Server, k.ServerPort}, k.Proto, &r)
	return pod >= 0 && err == nil && int(r.PodSide&1) == pod && r.Pod == k.Client && r.PodPort == k.ClientPort, err
}
