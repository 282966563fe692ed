package encryption

import (
	"fmt"

	"myelin/doctor/check"
	"myelin/route"
)

// checkMTU compares the devices that encrypt with what the wires leave them.
func checkMTU(m *check.Machine) {
	if !m.Config.Encryption.Enabled {
		return
	}
	wire, name := m.Config.MTU, "MTU"
	for _, l := range m.Wires {
		if mtu := l.Attrs().MTU; wire == 0 || mtu < wire {
			wire, name = mtu, l.Attrs().Name
		}
	}
	if wire == 0 {
		return
	}
	room := wire - route.EncryptionOverhead
	sum := fmt.Sprintf("%d of %s - %d of encryption", wire, name, route.EncryptionOverhead)
	for _, l := range m.Links {
		device, mtu := l.Attrs().Name, l.Attrs().MTU
		if device != DeviceOf(m.Config.Encryption.Type) && device != RotationDevice {
			continue
		}
		switch {
		case mtu > room:
			m.Warn(fmt.Sprintf("%s has an MTU of %d, and packets of %d fit (%s)", device, mtu, room, sum),
				"what it encrypts is too large for the wire: it leaves in fragments, which may be lost, or not at all",
				"start the agent, which sets it, or raise the MTU of the wire")
		case mtu < room:
			m.Warn(fmt.Sprintf("%s has an MTU of %d, and packets of %d fit (%s)", device, mtu, room, sum),
				"what nodes and pods send is refused if it is larger, or fragmented", "start the agent, which sets it")
		default:
			m.OK("%s takes packets of %d bytes (%s)", device, mtu, sum)
		}
	}
}
