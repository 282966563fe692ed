package route

import "fmt"

// Bytes that VXLAN puts in front of a packet of layer 3: inner Ethernet 14,
// VXLAN 8, UDP 8, and the outer IP header (RFC 7348, section 5).
const (
	vxlanOverhead4 = 50
	vxlanOverhead6 = 70
)

// EncryptionOverhead is what WireGuard adds: its header 16, authentication tag 16, UDP 8, and IPv6 40, which may be the
// underlay's on some way. IPsec adds up to 77: ESP's header and IV 16, trailer and padding 5, tag 16, and IPv6 40.
// Encrypted packets are not in VXLAN, which adds less.
const EncryptionOverhead = 80

const (
	minMTU4 = 576  // what every IPv4 host must be able to receive (RFC 791, section 3.1)
	minMTU6 = 1280 // the least link MTU of IPv6 (RFC 8200, section 5)
	maxMTU  = 65535
	noWire  = 1500 // with no wire there is no other node: the MTU of Ethernet
)

// MTU is the size of packets of layer 3 in bytes, in each place.
type MTU struct {
	Wire     int    `json:"wire"`     // largest packet that every wire takes
	Overhead int    `json:"overhead"` // what encapsulation adds
	Pod      int    `json:"pod"`      // largest packet of a pod: Wire - Overhead
	Why      string `json:"why"`
}

// findMTU computes the MTU of pods: the configured MTU of the wires, or the
// smallest of theirs, minus what encapsulation adds.
func findMTU(c Config, devices []*Device) (MTU, error) {
	m := MTU{Wire: c.MTU, Why: "MTU: configured"}
	if m.Wire == 0 {
		m.Wire, m.Why = noWire, "no wire"
		found := false
		for _, d := range devices {
			if d.Kind == Wire && (!found || d.MTU < m.Wire) {
				found = true
				m.Wire, m.Why = d.MTU, "smallest of the wires, "+d.Name
			}
		}
	}
	switch {
	case c.Encryption != "":
		m.Overhead = EncryptionOverhead
	case c.Tunnel != "" && c.TunnelIPv6:
		m.Overhead = vxlanOverhead6
	case c.Tunnel != "":
		m.Overhead = vxlanOverhead4
	}
	m.Pod = min(m.Wire, maxMTU) - m.Overhead
	least, family := minMTU4, "IPv4"
	if c.IPv6 {
		least, family = minMTU6, "IPv6"
	}
	if m.Pod < least {
		return m, fmt.Errorf("MTU of pods is %d (%d of the wires (%s) - %d of encapsulation): %s needs at least %d",
			m.Pod, m.Wire, m.Why, m.Overhead, family, least)
	}
	return m, nil
}
