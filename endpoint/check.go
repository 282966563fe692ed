package endpoint

import (
	"github.com/vishvananda/netlink"

	"myelin/doctor/check"
)

// Checks are the doctor's checks of the kinds of pod links.
func Checks() []check.Check {
	return []check.Check{{Area: "devices", Devices: true, Privileged: true, Run: checkKinds}}
}

func checkKinds(m *check.Machine) {
	m.Kind(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "probe"}, PeerName: "probe1"}, check.Fail,
		"pods are attached by it")
	m.Kind(&netlink.Netkit{LinkAttrs: netlink.LinkAttrs{Name: "probe"}, Mode: netlink.NETKIT_MODE_L3}, check.Info,
		"pods on it are a few percent faster than on veth (kernel 6.7)")
}
