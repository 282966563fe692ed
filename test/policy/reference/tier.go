package reference

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// tier asks the ClusterNetworkPolicies of a tier: lower priorities first, then
// by name (the API leaves that open), rules as they are written. The first rule
// that matches decides. Pass means that the tier has no opinion.
func (w *World) tier(tier policyv1.Tier, f flow) (Verdict, bool) {
	ordered := slices.Clone(w.ClusterNetworkPolicies)
	slices.SortFunc(ordered, func(a, b *policyv1.ClusterNetworkPolicy) int {
		if a.Spec.Priority != b.Spec.Priority {
			return int(a.Spec.Priority - b.Spec.Priority)
		}
		return strings.Compare(a.Name, b.Name)
	})
	for _, p := range ordered {
		if p.Spec.Tier != tier || !w.clusterSubject(f.subject, p.Spec.Subject) {
			continue
		}
		why, action := w.clusterRules(f, p)
		switch action {
		case policyv1.ClusterNetworkPolicyRuleActionAccept:
			return Verdict{Allowed: true, Why: why}, true
		case policyv1.ClusterNetworkPolicyRuleActionDeny:
			return Verdict{Allowed: false, Why: why}, true
		case policyv1.ClusterNetworkPolicyRuleActionPass:
			return Verdict{}, false
		}
	}
	return Verdict{}, false
}

// clusterRules is the first rule that matches, and what it says; empty: none.
func (w *World) clusterRules(f flow, p *policyv1.ClusterNetworkPolicy) (string,
	policyv1.ClusterNetworkPolicyRuleAction) {
	name := fmt.Sprintf("ClusterNetworkPolicy %s %s", p.Name, p.Spec.Tier)
	if f.ingress {
		for i, rule := range p.Spec.Ingress {
			peer := first("from", rule.From, func(from policyv1.ClusterNetworkPolicyIngressPeer) string {
				return w.clusterPods(f.peer, from.Namespaces, from.Pods)
			})
			port, action := f.clusterProtocols(rule.Protocols), rule.Action
			if slices.ContainsFunc(rule.From, func(from policyv1.ClusterNetworkPolicyIngressPeer) bool {
				return from.Namespaces == nil && from.Pods == nil
			}) {
				peer, port, action = failClosed(action)
			}
			if peer != "" && port != "" {
				return fmt.Sprintf("%s spec.ingress[%d] %s %s %s", name, i, action, peer, port), action
			}
		}
		return "", ""
	}
	for i, rule := range p.Spec.Egress {
		peer := first("to", rule.To, func(to policyv1.ClusterNetworkPolicyEgressPeer) string {
			return w.clusterDestination(f.peer, to)
		})
		port, action := f.clusterProtocols(rule.Protocols), rule.Action
		if slices.ContainsFunc(rule.To, func(to policyv1.ClusterNetworkPolicyEgressPeer) bool {
			return to.Namespaces == nil && to.Pods == nil && to.Nodes == nil && to.Networks == nil
		}) {
			peer, port, action = failClosed(action)
		}
		if peer != "" && port != "" {
			return fmt.Sprintf("%s spec.egress[%d] %s %s %s", name, i, action, peer, port), action
		}
	}
	return "", ""
}

// failClosed is what the API says of a rule with a peer that is not known, or not
// enforced: "For 'Accept' rules, 'fail closed' means: 'treat the rule as matching no
// traffic'. For 'Deny' and 'Pass' rules, 'fail closed' means: 'treat the rule as a
// 'Deny all' rule'."
func failClosed(action policyv1.ClusterNetworkPolicyRuleAction) (peer, port string,
	does policyv1.ClusterNetworkPolicyRuleAction) {
	if action == policyv1.ClusterNetworkPolicyRuleActionAccept {
		return "", "", action
	}
	return "all", "ports=all", policyv1.ClusterNetworkPolicyRuleActionDeny
}

func (w *World) clusterSubject(peer party, s policyv1.ClusterNetworkPolicySubject) bool {
	return w.clusterPods(peer, s.Namespaces, s.Pods) != ""
}

// clusterPods says by what a pod is selected; empty: it isn't, or it is no pod.
func (w *World) clusterPods(peer party, namespaces *metav1.LabelSelector, pods *policyv1.NamespacedPod) string {
	if peer.pod == nil {
		return ""
	}
	labels := in(w.namespaceLabels(peer.pod.Namespace))
	if namespaces != nil && selects(namespaces, labels) {
		return "namespaces"
	}
	if pods != nil && selects(&pods.NamespaceSelector, labels) && selects(&pods.PodSelector, in(peer.pod.Labels)) {
		return "pods"
	}
	return ""
}

// clusterDestination says by what a destination matches; empty: it doesn't.
// Networks are about addresses, also of pods and nodes.
func (w *World) clusterDestination(peer party, to policyv1.ClusterNetworkPolicyEgressPeer) string {
	if what := w.clusterPods(peer, to.Namespaces, to.Pods); what != "" {
		return what
	}
	if peer.node != nil && to.Nodes != nil && selects(to.Nodes, in(peer.node.Labels)) {
		return "nodes"
	}
	for _, network := range to.Networks {
		if peer.within(string(network)) {
			return "networks"
		}
	}
	return ""
}

// clusterProtocols says by what the flow's protocol matches; empty: it doesn't.
func (f flow) clusterProtocols(protocols []policyv1.ClusterNetworkPolicyProtocol) string {
	if len(protocols) == 0 {
		return "protocols=all"
	}
	return first("protocols", protocols, f.clusterProtocol)
}

func (f flow) clusterProtocol(p policyv1.ClusterNetworkPolicyProtocol) string {
	switch {
	case p.TCP != nil:
		return f.clusterPort(corev1.ProtocolTCP, p.TCP.DestinationPort)
	case p.UDP != nil:
		return f.clusterPort(corev1.ProtocolUDP, p.UDP.DestinationPort)
	case p.SCTP != nil:
		return f.clusterPort(corev1.ProtocolSCTP, p.SCTP.DestinationPort)
	case p.DestinationNamedPort != "" && f.named(p.DestinationNamedPort):
		return "named"
	}
	return ""
}

func (f flow) clusterPort(proto corev1.Protocol, port *policyv1.Port) string {
	switch {
	case number(proto) != f.proto:
		return ""
	case port == nil:
		return "protocol"
	case port.Range != nil:
		if port.Range.Start <= int32(f.port) && int32(f.port) <= port.Range.End {
			return "range"
		}
	case port.Number == int32(f.port):
		return "number"
	}
	return ""
}
