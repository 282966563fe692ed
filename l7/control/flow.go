package control

import "net/netip"

// Flow is the connection that a record is about. Source opened it.
type Flow struct {
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	Proto       uint8          `json:"proto"`
	// Rules are the numbers of the rules that the conntrack entry has, by direction (ingress, egress).
	Rules [2]uint32 `json:"rules"`
}
