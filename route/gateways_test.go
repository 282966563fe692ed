package route

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestGateways: the host holds the gateways that pods have, and those of all podCIDRs, once each.
func TestGateways(t *testing.T) {
	self, wires := n1()
	for name, c := range map[string]struct{ podCIDRs, gateways, want, unreachable string }{
		"of podCIDRs": {"10.7.1.0/24 fd70:1::/64", "", "10.7.1.1/32 fd70:1::1/128", "10.7.1.0/24 fd70:1::/64"},
		"the same": {"10.7.1.0/24 fd70:1::/64", "10.7.1.1 fd70:1::1", "10.7.1.1/32 fd70:1::1/128",
			"10.7.1.0/24 fd70:1::/64"},
		"of former ones": {"10.7.9.0/24 fd70:9::/64", "10.7.1.1 fd70:1::1",
			"10.7.1.1/32 10.7.9.1/32 fd70:1::1/128 fd70:9::1/128", "10.7.9.0/24 fd70:9::/64"},
		"podCIDRs are gone": {"", "10.7.1.1 fd70:1::1", "10.7.1.1/32 fd70:1::1/128", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := input{Config: dual("n1"), Devices: wires,
				Nodes: []peerNode{stateNode("n1", []string{"192.168.7.1", "fd07::1"}, strings.Fields(c.podCIDRs))}}
			s.Nodes[0].Addresses = self.Addresses
			for _, g := range strings.Fields(c.gateways) {
				s.Gateways = append(s.Gateways, netip.MustParseAddr(g))
			}
			d := derive(s)
			var have, unreachable []string
			for _, a := range d.Addresses {
				have = append(have, a.Prefix.String())
			}
			for _, r := range d.Routes {
				unreachable = append(unreachable, r.Prefix.String())
			}
			slices.Sort(have)
			slices.Sort(unreachable)
			if strings.Join(have, " ") != c.want || strings.Join(unreachable, " ") != c.unreachable {
				t.Errorf("addresses %v, unreachable %v, want %s, %s", have, unreachable, c.want, c.unreachable)
			}
		})
	}
}
