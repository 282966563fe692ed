package service

import (
	"net/netip"

	"myelin/cluster"
)

// hostPorts is appended to a Pod's name in the name of its Service. Names of objects contain no colon.
const hostPorts = ":host-ports"

// podKey is the key of the Service of a Pod's host ports.
func podKey(pod cluster.Key) cluster.Key {
	return cluster.Key{Namespace: pod.Namespace, Name: pod.Name + hostPorts}
}

// pod computes the plan of a Pod's host ports; nil if it has none on this node.
func (b *builder) pod(pod *cluster.Pod) *plan {
	if pod.NodeName != b.node.Name || !pod.OwnsAddresses() || len(pod.HostPorts) == 0 || len(pod.Addresses) == 0 {
		return nil
	}
	p := &plan{service: Service{Namespace: pod.Namespace, Name: pod.Name + hostPorts, Type: HostPort,
		Source: pod.Source}}
	for _, hp := range pod.HostPorts {
		for _, addr := range pod.Addresses {
			on := AnyAddress(addr.Is6())
			if hp.Address.IsValid() {
				on = hp.Address
			}
			if on.Is6() != addr.Is6() {
				continue
			}
			p.hostPort(b.node, on, addr, hp)
		}
	}
	p.sortAndDeduplicate()
	return p
}

func (p *plan) hostPort(node facts, on, addr netip.Addr, hp cluster.HostPort) {
	proto := protocolOf(hp.Protocol)
	target := endpoint{L4Addr: L4(addr, hp.Target, proto), Weight: DefaultWeight, Node: node.Name, Zone: node.Zone}
	to := &set{members: []member{{L4Addr: target.L4Addr, weight: target.Weight}}}
	p.endpoints = append(p.endpoints, target)
	p.frontends = append(p.frontends, plannedFrontend{
		L4Addr: L4(on, hp.Port, proto), kind: HostPort, scopes: Internal | External, internal: to, external: to,
	})
}
