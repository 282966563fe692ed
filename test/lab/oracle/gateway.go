package oracle

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"myelin/test/policy/reference"
)

// withGateways gives the nodes the addresses of their gateways, too: nodes send from them.
func (m *Model) withGateways(w *reference.World) *reference.World {
	out := *w
	out.Nodes = slices.Clone(w.Nodes)
	for i, node := range w.Nodes {
		node = node.DeepCopy()
		for _, a := range m.Gateways[node.Name] {
			node.Status.Addresses = append(node.Status.Addresses,
				corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
		}
		out.Nodes[i] = node
	}
	return &out
}

// nodeAddress is the node's own address of the same family for that of its gateway, and any other address itself.
func (m *Model) nodeAddress(a netip.Addr) netip.Addr {
	for name, gateways := range m.Gateways {
		if !slices.Contains(gateways, a) || m.node(name) == nil {
			continue
		}
		for _, own := range m.node(name).Addrs {
			if own.Is4() == a.Is4() && !slices.Contains(gateways, own) && !own.IsLinkLocalUnicast() {
				return own
			}
		}
	}
	return a
}
