package tunnel

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"myelin/doctor/check"
)

// Checks are the doctor's checks of the tunnel device.
func Checks() []check.Check {
	return []check.Check{
		{Area: "devices", Devices: true, Privileged: true, Run: checkKind},
		{Area: "cni", Devices: true, Run: checkPort},
	}
}

// checkKind tries to create a VXLAN device.
func checkKind(m *check.Machine) {
	level := check.Info
	if m.Config.RoutingMode == "tunnel" {
		level = check.Fail
	}
	m.Kind(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "probe"}, FlowBased: true, VxlanId: 0, Port: 8472}, level,
		"routingMode tunnel needs it")
}

func checkPort(m *check.Machine) {
	for _, l := range m.Links {
		portTaken(m, l)
	}
}

// portTaken: the kernel lets two VXLAN devices share a port only if they differ
// in what they carry.
func portTaken(m *check.Machine, l netlink.Link) {
	v, ok := l.(*netlink.Vxlan)
	if !ok || m.Config.RoutingMode != "tunnel" || v.Name == DeviceName || v.Port != int(m.Config.TunnelPort) {
		return
	}
	level, why := check.Warn, "packets of its network number go to it"
	if v.FlowBased {
		level, why = check.Fail, "the kernel refuses a second device that carries all networks on one port"
	}
	m.Add(level, fmt.Sprintf("%s has UDP port %d as well", v.Name, v.Port), why,
		"remove it, or choose another tunnelPort")
}
