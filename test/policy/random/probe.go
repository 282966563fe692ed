package random

import (
	"math/rand/v2"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"myelin/test/policy/reference"
)

// Probes makes up n probes for a world. One end at least is on the node that the
// world is seen from. Most are such that a policy decides.
func Probes(r *rand.Rand, w *reference.World, n int) []reference.Probe {
	m := &maker{r: r, w: w}
	var probes []reference.Probe
	for len(probes) < n {
		p := m.probe()
		for try := 0; try < 5 && !m.decided(p); try++ {
			p = m.probe()
		}
		probes = append(probes, p)
	}
	return probes
}

func (m *maker) probe() reference.Probe {
	for {
		four := m.odds(50)
		p := reference.Probe{Src: m.end(four), Dst: m.end(four)}
		if p.Src != p.Dst && (m.here(p.Src) || m.here(p.Dst)) {
			m.layer(&p, four)
			return p
		}
	}
}

// decided is true if a rule of a policy says something of a probe, or one more
// could.
func (m *maker) decided(p reference.Probe) bool {
	return strings.Contains(m.w.Egress(p).Why, "Policy ") || strings.Contains(m.w.Ingress(p).Why, "Policy ")
}

// end is a pod's address in two of three cases.
func (m *maker) end(four bool) netip.Addr {
	if m.odds(60) {
		for _, ip := range pick(m.r, m.w.Pods).Status.PodIPs {
			if addr := netip.MustParseAddr(ip.IP); addr.Is4() == four {
				return addr
			}
		}
	}
	return m.address(four)
}

// here is true for addresses of pods of the node, and of the node itself.
func (m *maker) here(a netip.Addr) bool {
	for _, pod := range m.w.Pods {
		for _, ip := range pod.Status.PodIPs {
			if ip.IP == a.String() && pod.Spec.NodeName == m.w.Node {
				return true
			}
		}
	}
	for _, node := range m.w.Nodes {
		if node.Name == m.w.Node && (nodeAddress(node, true) == a.String() || nodeAddress(node, false) == a.String()) {
			return true
		}
	}
	return false
}

// layer makes up protocol and port: those that policies know, or one beside.
func (m *maker) layer(p *reference.Probe, four bool) {
	if m.odds(12) {
		p.Proto, p.Port = 58, pick(m.r, []uint16{128, 128, 139})
		if four {
			p.Proto, p.Port = 1, pick(m.r, []uint16{8, 8, 13})
		}
		return
	}
	p.Proto = pick(m.r, []uint8{6, 6, 6, 17, 132})
	port := m.port()
	if m.odds(40) && m.container(p) {
		return
	}
	if m.odds(10) {
		port = max(1, min(port+1-2*m.r.IntN(2), 65535))
	}
	p.Port = uint16(port)
}

// container makes it a port that a pod at the destination has a name for. It is
// false if there is none.
func (m *maker) container(p *reference.Probe) bool {
	for _, pod := range m.w.Pods {
		for _, ip := range pod.Status.PodIPs {
			ports := pod.Spec.Containers[0].Ports
			if ip.IP == p.Dst.String() && !pod.Spec.HostNetwork && len(ports) > 0 {
				port := pick(m.r, ports)
				p.Proto = map[corev1.Protocol]uint8{corev1.ProtocolTCP: 6, corev1.ProtocolUDP: 17,
					corev1.ProtocolSCTP: 132}[port.Protocol]
				p.Port = uint16(port.ContainerPort)
				return true
			}
		}
	}
	return false
}
