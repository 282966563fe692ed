package route

import (
	"net/netip"
	"testing"
)

// Pods of nodes with a key are reached by the WireGuard device, whatever the routing mode; with strict encryption those
// of others are not reached.
func TestDeriveEncryption(t *testing.T) {
	self, wires := n1()
	n2 := stateNode("n2", []string{"192.168.7.2", "fd07::2"}, []string{"10.7.2.0/24", "fd70:2::/64"})
	n2.Encrypted = true
	n3 := stateNode("n3", []string{"192.168.7.3"}, []string{"10.7.3.0/24", "10.8.3.0/24"})
	encrypted := []string{
		"10.7.2.0/24 dev myelin_wg0 src 192.168.7.1", "fd70:2::/64 dev myelin_wg0 src fd07::1",
	}
	config := Config{Node: "n1", IPv4: true, IPv6: true, Encryption: "myelin_wg0", AutoDirectNodeRoutes: true}
	tunnel := config
	tunnel.AutoDirectNodeRoutes, tunnel.Tunnel = false, "myelin_vxlan"
	strict := config
	strict.Strict = []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}
	nodes := []peerNode{self, n2, n3}
	for _, c := range []routeCase{
		{"native", input{Config: config, Nodes: nodes, Devices: wires}, append([]string{encrypted[0],
			"10.7.3.0/24 via 192.168.7.3 dev eth0 src 192.168.7.1",
			"10.8.3.0/24 via 192.168.7.3 dev eth0 src 192.168.7.1"}, encrypted[1])},
		{"tunnel", input{Config: tunnel, Nodes: nodes, Devices: wires}, append([]string{encrypted[0],
			"10.7.3.0/24 dev myelin_vxlan src 192.168.7.1",
			"10.8.3.0/24 dev myelin_vxlan src 192.168.7.1"}, encrypted[1])},
		{"strict", input{Config: strict, Nodes: nodes, Devices: wires}, append([]string{encrypted[0],
			"10.8.3.0/24 via 192.168.7.3 dev eth0 src 192.168.7.1"}, encrypted[1])},
	} {
		t.Run(c.name, c.run)
	}
	var unreachable []string
	for _, r := range derive(input{Config: strict, Nodes: nodes, Devices: wires}).Routes {
		if r.Unreachable && r.Owner != "self" {
			unreachable = append(unreachable, r.Prefix.String())
		}
	}
	if len(unreachable) != 2 || unreachable[0] != "10.7.3.0/24" || unreachable[1] != "10.7.0.0/16" {
		t.Errorf("unreachable are %v", unreachable)
	}
}
