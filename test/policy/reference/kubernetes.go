package reference

import (
	"fmt"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// kubernetes asks all NetworkPolicies. A policy is for the pods of its namespace
// that its podSelector selects, never for nodes or pods on the host's network.
func (w *World) kubernetes(f flow, o *opinion) {
	limits, _ := w.ciliumRules(f, &opinion{})
	for _, p := range w.NetworkPolicies {
		if f.subject.pod == nil || f.subject.pod.Namespace != p.Namespace ||
			!selects(&p.Spec.PodSelector, in(f.subject.pod.Labels)) || !isolates(p, f.ingress) {
			continue
		}
		name := "NetworkPolicy " + p.Namespace + "/" + p.Name
		o.isolates(name)
		if f.ingress {
			for i, rule := range p.Spec.Ingress {
				w.kubernetesRule(f, o, fmt.Sprintf("%s spec.ingress[%d] from", name, i), p.Namespace, rule.From,
					rule.Ports, limits)
			}
			continue
		}
		for i, rule := range p.Spec.Egress {
			w.kubernetesRule(f, o, fmt.Sprintf("%s spec.egress[%d] to", name, i), p.Namespace, rule.To,
				rule.Ports, limits)
		}
	}
}

// isolates says for which directions a policy is. Where policyTypes is absent it
// is for ingress, and for egress if it has rules for that.
func isolates(p *networkingv1.NetworkPolicy, ingress bool) bool {
	if len(p.Spec.PolicyTypes) == 0 {
		return ingress || len(p.Spec.Egress) > 0
	}
	for _, t := range p.Spec.PolicyTypes {
		if ingress && t == networkingv1.PolicyTypeIngress || !ingress && t == networkingv1.PolicyTypeEgress {
			return true
		}
	}
	return false
}

// kubernetesRule allows a flow if one of the peers and one of the ports match.
// No peers means all, and no ports means all. Peers that selectors select must also meet what Cilium's rules require of
// peers.
func (w *World) kubernetesRule(f flow, o *opinion, name, namespace string, peers []networkingv1.NetworkPolicyPeer,
	ports []networkingv1.NetworkPolicyPort, limits []rule,
) {
	peer, port := "=all", "ports=all"
	if len(peers) > 0 {
		peer = first("", peers, func(p networkingv1.NetworkPolicyPeer) string {
			if p.IPBlock == nil && !w.required(f.peer, limits) {
				return ""
			}
			return w.kubernetesPeer(f.peer, namespace, p)
		})
	}
	if len(ports) > 0 {
		port = first("ports", ports, f.kubernetesPort)
	}
	if peer != "" && port != "" {
		o.allows(name + peer + " " + port)
	}
}

// kubernetesPeer says by what a peer matches; empty: it doesn't. An ipBlock is
// about addresses, whatever has them; pods and namespaces select pods alone.
func (w *World) kubernetesPeer(peer party, namespace string, p networkingv1.NetworkPolicyPeer) string {
	if p.IPBlock != nil {
		if !peer.within(p.IPBlock.CIDR) {
			return ""
		}
		for _, except := range p.IPBlock.Except {
			if peer.within(except) {
				return ""
			}
		}
		return "ipBlock"
	}
	if peer.pod == nil {
		return ""
	}
	if p.NamespaceSelector == nil {
		if peer.pod.Namespace == namespace && selects(p.PodSelector, in(peer.pod.Labels)) {
			return "podSelector"
		}
		return ""
	}
	if !selects(p.NamespaceSelector, in(w.namespaceLabels(peer.pod.Namespace))) {
		return ""
	}
	if p.PodSelector == nil {
		return "namespaceSelector"
	}
	if selects(p.PodSelector, in(peer.pod.Labels)) {
		return "namespaceSelector+podSelector"
	}
	return ""
}

// kubernetesPort says by what a port matches; empty: it doesn't.
func (f flow) kubernetesPort(p networkingv1.NetworkPolicyPort) string {
	proto := uint8(protoTCP)
	if p.Protocol != nil {
		proto = number(*p.Protocol)
	}
	switch {
	case f.proto != proto:
		return ""
	case p.Port == nil:
		return "protocol"
	case p.Port.Type == intstr.String:
		if f.named(p.Port.StrVal) {
			return "named"
		}
	case p.EndPort != nil:
		if p.Port.IntVal <= int32(f.port) && int32(f.port) <= *p.EndPort {
			return "range"
		}
	case p.Port.IntVal == int32(f.port):
		return "number"
	}
	return ""
}
