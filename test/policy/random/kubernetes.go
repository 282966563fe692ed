package random

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// protocols are those that have ports, TCP more often.
func protocols() []corev1.Protocol {
	return []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP,
		corev1.ProtocolSCTP}
}

// port is one of ten.
func (m *maker) port() int {
	return pick(m.r, []int{53, 80, 81, 443, 1024, 8080, 8081, 9090, 30000, 65535})
}

// last is the end of a range that begins with a port: larger, and not always one
// of the ten.
func (m *maker) last(first int) int {
	if end := m.port(); end > first && m.odds(70) {
		return end
	}
	return min(first+1+m.r.IntN(3000), 65535)
}

func (m *maker) networkPolicy(name string) {
	p := &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: pick(m.r, m.w.Namespaces).Name, Name: name},
	}
	p.Spec.PodSelector = m.selector(plain)
	if m.odds(70) {
		p.Spec.Ingress = several(m, 2, func() networkingv1.NetworkPolicyIngressRule {
			return networkingv1.NetworkPolicyIngressRule{From: m.peers(), Ports: m.policyPorts()}
		})
	}
	if m.odds(50) {
		p.Spec.Egress = several(m, 2, func() networkingv1.NetworkPolicyEgressRule {
			return networkingv1.NetworkPolicyEgressRule{To: m.peers(), Ports: m.policyPorts()}
		})
	}
	p.Spec.PolicyTypes = pick(m.r, [][]networkingv1.PolicyType{
		nil, nil, {networkingv1.PolicyTypeIngress}, {networkingv1.PolicyTypeEgress},
		{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
	})
	m.w.NetworkPolicies = append(m.w.NetworkPolicies, p)
}

func (m *maker) peers() []networkingv1.NetworkPolicyPeer {
	if m.odds(20) {
		return nil
	}
	return several(m, 3, func() networkingv1.NetworkPolicyPeer {
		var p networkingv1.NetworkPolicyPeer
		kind := m.r.IntN(4)
		if kind == 3 {
			prefix := m.prefix()
			p.IPBlock = &networkingv1.IPBlock{CIDR: m.spelled(prefix)}
			if m.odds(50) {
				p.IPBlock.Except = m.excepts(prefix)
			}
			return p
		}
		if kind != 1 {
			s := m.selector(plain)
			p.PodSelector = &s
		}
		if kind != 0 {
			s := m.namespaceSelector()
			p.NamespaceSelector = &s
		}
		return p
	})
}

func (m *maker) policyPorts() []networkingv1.NetworkPolicyPort {
	if m.odds(35) {
		return nil
	}
	return several(m, 3, func() networkingv1.NetworkPolicyPort {
		var p networkingv1.NetworkPolicyPort
		if m.odds(75) {
			proto := pick(m.r, protocols())
			p.Protocol = &proto
		}
		switch n := m.r.IntN(100); {
		case n < 25:
		case n < 45:
			name := intstr.FromString(pick(m.r, portNames()))
			p.Port = &name
		case n < 65:
			first := m.port()
			number, end := intstr.FromInt32(int32(first)), int32(m.last(first))
			p.Port, p.EndPort = &number, &end
		default:
			number := intstr.FromInt32(int32(m.port()))
			p.Port = &number
		}
		return p
	})
}
