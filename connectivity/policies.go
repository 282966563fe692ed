package connectivity

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// role selects pods of the test by their role.
func role(name string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchLabels: map[string]string{roleLabel: name}}
}

// ingress is a NetworkPolicy for the servers that allows ingress from peers only.
func ingress(namespace, name string, peers ...networkingv1.NetworkPolicyPeer) object {
	spec := networkingv1.NetworkPolicySpec{PodSelector: role(serverLabel),
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}
	if len(peers) > 0 {
		spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: peers}}
	}
	return networkPolicy(namespace, name, spec)
}

func networkPolicy(namespace, name string, spec networkingv1.NetworkPolicySpec) object {
	return object{"/apis/networking.k8s.io/v1/namespaces/" + namespace + "/networkpolicies", name,
		&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}}
}

// ciliumPolicy is a CiliumNetworkPolicy for pods of a role. Its types would bring a module.
func ciliumPolicy(namespace, name, of string, rules map[string]any) object {
	spec := map[string]any{"endpointSelector": role(of)}
	for k, v := range rules {
		spec[k] = v
	}
	return object{"/apis/cilium.io/v2/namespaces/" + namespace + "/ciliumnetworkpolicies", name, map[string]any{
		"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": map[string]any{"name": name},
		"spec": spec,
	}}
}

// governed adds a test of one policy: with it checks hold, and without it everybody
// reaches the servers again.
func (p *planner) governed(name, about, skip string, policy object, with ...check) {
	var lifted []check
	for _, c := range with {
		c.deny, c.probe.Timeout = false, answerTime
		lifted = append(lifted, c)
	}
	p.add("policy/"+name, about, skip,
		step{what: "with the policy", apply: []object{policy}, checks: with},
		step{what: "after the policy is deleted", remove: []object{policy}, checks: lifted})
}

// asks are a client's requests by http to servers, over all families.
func (p *planner) asks(client *pod, servers ...*pod) (list []check) {
	for _, server := range servers {
		for _, a := range server.addrs {
			list = append(list, p.http(client, server, a))
		}
	}
	return list
}

func (p *planner) policies() {
	ns := p.client.namespace
	both := []*pod{p.server, p.distant}
	clients := role(clientLabel)
	p.governed("deny-all", "A NetworkPolicy without rules allows no ingress.", "", ingress(ns, "deny-all"),
		denied(p.asks(p.client, both...))...)
	p.governed("allow-by-label", "A NetworkPolicy lets pods in by their labels, and no others.", "",
		ingress(ns, "allow-by-label", networkingv1.NetworkPolicyPeer{PodSelector: &clients}),
		slices.Concat(p.asks(p.client, both...), denied(p.asks(p.stranger, both...)))...)
	p.governed("allow-by-namespace", "A NetworkPolicy lets a namespace in, and no other.", "",
		ingress(ns, "allow-by-namespace",
			networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{corev1.LabelMetadataName: p.other.namespace},
			}}),
		slices.Concat(p.asks(p.other, both...), denied(p.asks(p.client, both...)))...)
	p.byCIDR()
	skip := p.noCilium
	p.governed("egress-to-entity", "A CiliumNetworkPolicy lets a pod out to nodes, and to no pod.", skip,
		ciliumPolicy(ns, "egress-to-entity", clientLabel,
			map[string]any{"egress": []any{map[string]any{"toEntities": []string{"host", "remote-node"}}}}),
		slices.Concat(p.asks(p.client, p.nearHost), p.farAsks(), denied(p.asks(p.client, both...)))...)
	p.governed("deny-beats-allow", "What a CiliumNetworkPolicy denies stays denied, whatever else allows it.", skip,
		ciliumPolicy(ns, "deny-beats-allow", serverLabel, map[string]any{
			"ingress":     []any{map[string]any{"fromEntities": []string{"cluster"}}},
			"ingressDeny": []any{map[string]any{"fromEndpoints": []any{role("stranger")}}},
		}),
		slices.Concat(p.asks(p.client, both...), denied(p.asks(p.stranger, both...)))...)
}

// farAsks are requests to the other node, if there is one.
func (p *planner) farAsks() []check {
	if p.oneNode() != "" {
		return nil
	}
	return p.asks(p.client, p.farHost)
}

// byCIDR lets the client out to the distant server's addresses alone.
func (p *planner) byCIDR() {
	var to []networkingv1.NetworkPolicyPeer
	for _, a := range p.distant.addrs {
		to = append(to, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: netip.PrefixFrom(a,
			a.BitLen()).String()}})
	}
	policy := networkPolicy(p.client.namespace, "allow-by-cidr", networkingv1.NetworkPolicySpec{
		PodSelector: role(clientLabel), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		Egress: []networkingv1.NetworkPolicyEgressRule{{To: to}},
	})
	p.governed("allow-by-cidr", "A NetworkPolicy lets a pod out to addresses that it names, and to no others.", "",
		policy, slices.Concat(p.asks(p.client, p.distant), denied(p.asks(p.client, p.server)))...)
}
