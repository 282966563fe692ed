package random

import (
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"myelin/policy/ciliumv2"
	"myelin/test/policy/reference"
)

// removals take something away from a world, wherever it is.
func removals() map[string]func(*reference.World) {
	all := map[string]func(*reference.World){
		"ipBlock.except": func(w *reference.World) {
			peers(w,
				func(p *networkingv1.NetworkPolicyPeer) { block(p).Except = nil })
		},
		"policyTypes": func(w *reference.World) {
			each(w.NetworkPolicies, func(p *networkingv1.NetworkPolicy) { p.Spec.PolicyTypes = nil })
		},
		"enableDefaultDeny": func(w *reference.World) {
			rules(w, func(r *ciliumv2.Rule) { r.EnableDefaultDeny = nil })
		},
		"fromRequires": func(w *reference.World) {
			from(w, func(p *ciliumv2.FromPeers) { p.FromRequires = nil })
		},
		"toRequires": func(w *reference.World) { to(w, func(p *ciliumv2.ToPeers) { p.ToRequires = nil }) },
		"fromCIDRSet.except": func(w *reference.World) {
			from(w, func(p *ciliumv2.FromPeers) { noExcept(p.FromCIDRSet) })
		},
		"toCIDRSet.except": func(w *reference.World) { to(w, func(p *ciliumv2.ToPeers) { noExcept(p.ToCIDRSet) }) },
		"nodeSelector":     func(w *reference.World) { rules(w, func(r *ciliumv2.Rule) { r.NodeSelector = nil }) },
		"priority": func(w *reference.World) {
			each(w.ClusterNetworkPolicies, func(p *policyv1.ClusterNetworkPolicy) { p.Spec.Priority = 0 })
		},
		"Pass": func(w *reference.World) {
			each(w.ClusterNetworkPolicies, func(p *policyv1.ClusterNetworkPolicy) {
				p.Spec.Ingress = slices.DeleteFunc(p.Spec.Ingress,
					func(r policyv1.ClusterNetworkPolicyIngressRule) bool { return r.Action == "Pass" })
				p.Spec.Egress = slices.DeleteFunc(p.Spec.Egress,
					func(r policyv1.ClusterNetworkPolicyEgressRule) bool { return r.Action == "Pass" })
			})
		},
	}
	for _, op := range []metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"} {
		all[string(op)] = func(w *reference.World) {
			selectors(w, func(s *metav1.LabelSelector) {
				s.MatchExpressions = slices.DeleteFunc(s.MatchExpressions,
					func(e metav1.LabelSelectorRequirement) bool { return e.Operator == op })
			})
		}
	}
	for _, key := range []string{"reserved:", "io.kubernetes.pod.namespace", "io.cilium.k8s.namespace.labels.", "k8s:",
		"any:"} {
		all[key] = func(w *reference.World) {
			selectors(w, func(s *metav1.LabelSelector) {
				for k := range s.MatchLabels {
					if strings.Contains(k, key) {
						delete(s.MatchLabels, k)
					}
				}
			})
		}
	}
	return all
}

func each[T any](list []*T, f func(*T)) {
	for _, item := range list {
		f(item)
	}
}

func peers(w *reference.World, f func(*networkingv1.NetworkPolicyPeer)) {
	for _, p := range w.NetworkPolicies {
		for _, rule := range p.Spec.Ingress {
			for i := range rule.From {
				f(&rule.From[i])
			}
		}
		for _, rule := range p.Spec.Egress {
			for i := range rule.To {
				f(&rule.To[i])
			}
		}
	}
}

func block(p *networkingv1.NetworkPolicyPeer) *networkingv1.IPBlock {
	if p.IPBlock == nil {
		return &networkingv1.IPBlock{}
	}
	return p.IPBlock
}

func noExcept(list []ciliumv2.CIDRRule) {
	for i := range list {
		list[i].Except = nil
	}
}

func rules(w *reference.World, f func(*ciliumv2.Rule)) {
	for _, p := range w.CiliumNetworkPolicies {
		if p.Spec != nil {
			f(p.Spec)
		}
		for i := range p.Specs {
			f(&p.Specs[i])
		}
	}
	for _, p := range w.CiliumClusterwideNetworkPolicies {
		f(p.Spec)
	}
}

func from(w *reference.World, f func(*ciliumv2.FromPeers)) {
	rules(w, func(r *ciliumv2.Rule) {
		for i := range r.Ingress {
			f(&r.Ingress[i].FromPeers)
		}
		for i := range r.IngressDeny {
			f(&r.IngressDeny[i].FromPeers)
		}
	})
}

func to(w *reference.World, f func(*ciliumv2.ToPeers)) {
	rules(w, func(r *ciliumv2.Rule) {
		for i := range r.Egress {
			f(&r.Egress[i].ToPeers)
		}
		for i := range r.EgressDeny {
			f(&r.EgressDeny[i].ToPeers)
		}
	})
}

// selectors calls f for the selectors of subjects, and of peers by labels.
func selectors(w *reference.World, f func(*metav1.LabelSelector)) {
	for _, p := range w.NetworkPolicies {
		f(&p.Spec.PodSelector)
	}
	peers(w, func(p *networkingv1.NetworkPolicyPeer) {
		for _, s := range []*metav1.LabelSelector{p.PodSelector, p.NamespaceSelector} {
			if s != nil {
				f(s)
			}
		}
	})
	rules(w, func(r *ciliumv2.Rule) {
		for _, s := range []*metav1.LabelSelector{r.EndpointSelector, r.NodeSelector} {
			if s != nil {
				f(s)
			}
		}
	})
	several := func(list []metav1.LabelSelector) {
		for i := range list {
			f(&list[i])
		}
	}
	from(w, func(p *ciliumv2.FromPeers) { several(p.FromEndpoints); several(p.FromNodes) })
	to(w, func(p *ciliumv2.ToPeers) { several(p.ToEndpoints); several(p.ToNodes) })
}
