package random

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

func (m *maker) clusterPolicy(name string) {
	p := &policyv1.ClusterNetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "policy.networking.k8s.io/v1alpha2", Kind: "ClusterNetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}
	p.Spec.Tier = pick(m.r, []policyv1.Tier{policyv1.AdminTier, policyv1.AdminTier, policyv1.BaselineTier})
	p.Spec.Priority = int32(m.r.IntN(4)) // so that some are equal
	namespaces, pods := m.clusterPods()
	p.Spec.Subject = policyv1.ClusterNetworkPolicySubject{Namespaces: namespaces, Pods: pods}
	actions := []policyv1.ClusterNetworkPolicyRuleAction{
		policyv1.ClusterNetworkPolicyRuleActionAccept, policyv1.ClusterNetworkPolicyRuleActionAccept,
		policyv1.ClusterNetworkPolicyRuleActionDeny, policyv1.ClusterNetworkPolicyRuleActionPass,
	}
	if m.odds(75) {
		p.Spec.Ingress = several(m, 3, func() policyv1.ClusterNetworkPolicyIngressRule {
			return policyv1.ClusterNetworkPolicyIngressRule{
				Action: pick(m.r, actions), Protocols: m.clusterProtocols(true),
				From: several(m, 2, func() policyv1.ClusterNetworkPolicyIngressPeer {
					namespaces, pods := m.clusterPods()
					return policyv1.ClusterNetworkPolicyIngressPeer{Namespaces: namespaces, Pods: pods}
				}),
			}
		})
	}
	if m.odds(60) || p.Spec.Ingress == nil {
		p.Spec.Egress = several(m, 3, func() policyv1.ClusterNetworkPolicyEgressRule {
			return m.clusterEgress(pick(m.r,
				actions))
		})
	}
	m.w.ClusterNetworkPolicies = append(m.w.ClusterNetworkPolicies, p)
}

// clusterEgress names ports only where all destinations are pods: others have no
// names, and the API refuses such rules.
func (m *maker) clusterEgress(action policyv1.ClusterNetworkPolicyRuleAction) policyv1.ClusterNetworkPolicyEgressRule {
	rule, named := policyv1.ClusterNetworkPolicyEgressRule{Action: action}, true
	rule.To = several(m, 2, func() policyv1.ClusterNetworkPolicyEgressPeer {
		var to policyv1.ClusterNetworkPolicyEgressPeer
		switch m.r.IntN(4) {
		case 0:
			s := m.selector(plain)
			to.Nodes, named = &s, false
		case 1:
			// The list is a set.
			to.Networks, named = []policyv1.CIDR{policyv1.CIDR(m.spelled(m.prefix()))}, false
			if other := policyv1.CIDR(m.spelled(m.prefix())); other != to.Networks[0] {
				to.Networks = append(to.Networks, other)
			}
		default:
			to.Namespaces, to.Pods = m.clusterPods()
		}
		return to
	})
	rule.Protocols = m.clusterProtocols(named)
	return rule
}

// clusterPods is often all pods, so that policies of one tier meet.
func (m *maker) clusterPods() (*metav1.LabelSelector, *policyv1.NamespacedPod) {
	namespaces := m.namespaceSelector()
	if m.odds(40) {
		namespaces = metav1.LabelSelector{}
	}
	if m.odds(50) {
		return &namespaces, nil
	}
	return nil, &policyv1.NamespacedPod{NamespaceSelector: namespaces, PodSelector: m.selector(plain)}
}

func (m *maker) clusterProtocols(named bool) []policyv1.ClusterNetworkPolicyProtocol {
	if m.odds(40) {
		return nil
	}
	return several(m, 2, func() policyv1.ClusterNetworkPolicyProtocol {
		var p policyv1.ClusterNetworkPolicyProtocol
		switch n := m.r.IntN(100); {
		case named && n < 30:
			p.DestinationNamedPort = pick(m.r, portNames())
		case n < 70:
			p.TCP = &policyv1.ClusterNetworkPolicyProtocolTCP{DestinationPort: m.clusterPort()}
		case n < 88:
			p.UDP = &policyv1.ClusterNetworkPolicyProtocolUDP{DestinationPort: m.clusterPort()}
		default:
			p.SCTP = &policyv1.ClusterNetworkPolicyProtocolSCTP{DestinationPort: m.clusterPort()}
		}
		return p
	})
}

// clusterPort is never absent: {tcp: {}} has fewer fields than the API wants.
func (m *maker) clusterPort() *policyv1.Port {
	first := m.port()
	if m.odds(40) && first < 65535 {
		return &policyv1.Port{Range: &policyv1.PortRange{Start: int32(first), End: int32(m.last(first))}}
	}
	return &policyv1.Port{Number: int32(first)}
}
