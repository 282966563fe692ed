package reference

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"myelin/policy/ciliumv2"
)

// Keys of labels that Cilium derives.
const (
	namespaceKey       = "io.kubernetes.pod.namespace"
	namespaceLabelsKey = "io.cilium.k8s.namespace.labels."
	derivedKey         = "io.cilium.k8s.policy."
)

// label is a label as Cilium has it: with the source that it is from.
type label struct{ source, key, value string }

type labelSet []label

// find finds a label by a selector's key: SOURCE:KEY, where "any" is each source,
// and so is none.
func (s labelSet) find(key string) (string, bool) {
	source, name, found := strings.Cut(key, ":")
	if !found {
		source, name = "any", key
	}
	for _, l := range s {
		if l.key == name && (source == "any" || source == l.source) {
			return l.value, true
		}
	}
	return "", false
}

// labels are the labels of a peer for Cilium's selectors. Only pods have labels of their own; all others have reserved
// ones.
func (w *World) labels(peer party) labelSet {
	var s labelSet
	switch {
	case peer.pod != nil:
		for k, v := range peer.pod.Labels {
			// A pod can't say of itself what is derived.
			if k != namespaceKey && !strings.HasPrefix(k, namespaceLabelsKey) && !strings.HasPrefix(k, derivedKey) {
				s = append(s, label{"k8s", k, v})
			}
		}
		s = append(s, label{"k8s", namespaceKey, peer.pod.Namespace}, label{"k8s", derivedKey + "cluster", w.Cluster})
		if account := peer.pod.Spec.ServiceAccountName; account != "" {
			s = append(s, label{"k8s", derivedKey + "serviceaccount", account})
		}
		for k, v := range w.namespaceLabels(peer.pod.Namespace) {
			s = append(s, label{"k8s", namespaceLabelsKey + k, v})
		}
		return s
	case peer.node != nil && peer.node.Name == w.Node:
		s = append(s, label{"reserved", "host", ""})
	case peer.node != nil:
		s = append(s, label{"reserved", "remote-node", ""})
	case peer.addr.Unmap().Is4():
		s = append(s, label{"reserved", "world-ipv4", ""})
	default:
		s = append(s, label{"reserved", "world-ipv6", ""})
	}
	if w.apiServer(peer) {
		s = append(s, label{"reserved", "kube-apiserver", ""})
	}
	return s
}

// nodeLabels are what nodeSelector, fromNodes and toNodes see.
func (w *World) nodeLabels(node *corev1.Node) labelSet {
	var s labelSet
	for k, v := range node.Labels {
		s = append(s, label{"k8s", k, v})
	}
	return s
}

// apiServer is true for nodes and for those outside that are an endpoint of the
// Service default/kubernetes.
func (w *World) apiServer(peer party) bool {
	return peer.pod == nil && w.behind(peer, metav1.NamespaceDefault, "kubernetes")
}

// behind reports whether a peer is an endpoint of a Service, ready or not.
func (w *World) behind(peer party, namespace, name string) bool {
	for _, slice := range w.EndpointSlices {
		if slice.Namespace != namespace || slice.Labels[discoveryv1.LabelServiceName] != name {
			continue
		}
		for _, e := range slice.Endpoints {
			for _, address := range e.Addresses {
				if same(address, peer.addr) {
					return true
				}
			}
		}
	}
	return false
}

// ciliumPeer returns which of a rule's peers the peer matches; empty: none.
func (w *World) ciliumPeer(f flow, r rule, others []rule) string {
	peer := f.peer
	what := first("endpoints", r.endpoints, func(s metav1.LabelSelector) string {
		if w.ciliumEndpoint(peer, s, r.scope, false) && w.required(peer, others) {
			return "selector"
		}
		return ""
	})
	if what == "" {
		what = first("nodes", r.nodes, func(s metav1.LabelSelector) string {
			if peer.node != nil && selects(&s, w.nodeLabels(peer.node).find) {
				return "selector"
			}
			return ""
		})
	}
	if what == "" {
		what = first("entities", r.entities, func(e string) string { return w.entity(peer, e) })
	}
	if what == "" && w.byCIDR(peer) {
		what = first("cidr", r.cidr, func(cidr string) string {
			if peer.within(cidr) {
				return "prefix"
			}
			return ""
		})
	}
	if what == "" && w.byCIDR(peer) {
		what = first("cidrSet", r.cidrSet, func(c ciliumv2.CIDRRule) string { return w.ciliumCIDR(peer, c) })
	}
	if what == "" {
		what = first("services", r.services, func(s ciliumv2.Service) string { return w.ciliumService(peer, s) })
	}
	if what == "" && peer.outside() {
		what = first("fqdns", r.fqdns, func(of ciliumv2.FQDN) string { return w.ciliumName(f, of) })
	}
	return what
}

// byCIDR reports whether a peer may be selected by address: if it is outside of the cluster, or a node and
// policyCIDRMatchMode has nodes.
func (w *World) byCIDR(peer party) bool { return peer.outside() || w.CIDRNodes && peer.node != nil }

// ciliumEndpoint reports whether a selector of endpoints selects the peer. One in a
// CiliumNetworkPolicy is about the policy's namespace, unless it asks for a
// namespace, for labels of a namespace, or for a reserved label. One in a
// clusterwide policy is about pods of all namespaces, and about others only if
// it asks for a reserved label.
func (w *World) ciliumEndpoint(peer party, s metav1.LabelSelector, scope string, requirement bool) bool {
	labels := w.labels(peer).find
	if !selects(&s, labels) {
		return false
	}
	namespace, derived, reserved := false, false, false
	for _, key := range keys(s) {
		source, name, found := strings.Cut(key, ":")
		if !found {
			source, name = "any", key
		}
		k8s := source == "any" || source == "k8s"
		namespace = namespace || k8s && name == namespaceKey
		derived = derived || k8s && strings.HasPrefix(name, namespaceLabelsKey)
		reserved = reserved || source == "reserved"
	}
	switch {
	case reserved && !requirement, namespace:
		return true
	case scope == "":
		return peer.pod != nil
	case derived:
		return true
	}
	return peer.pod != nil && peer.pod.Namespace == scope
}

func keys(s metav1.LabelSelector) []string {
	var all []string
	for key := range s.MatchLabels {
		all = append(all, key)
	}
	for _, e := range s.MatchExpressions {
		all = append(all, e.Key)
	}
	return all
}

// required reports whether a peer meets all that fromRequires or toRequires of a list of rules ask for.
func (w *World) required(peer party, rules []rule) bool {
	for _, r := range rules {
		for _, s := range r.requires {
			if !w.ciliumEndpoint(peer, s, r.scope, true) {
				return false
			}
		}
	}
	return true
}

// entity returns the name of an entity if the peer belongs to it, otherwise nothing. No peer belongs to init, health,
// ingress, unmanaged or none: there are no such endpoints here.
func (w *World) entity(peer party, name string) string {
	here := peer.node != nil && peer.node.Name == w.Node
	entities := map[string]bool{
		"all":            true,
		"host":           here,
		"remote-node":    peer.node != nil && !here,
		"cluster":        !peer.outside() || w.apiServer(peer),
		"cluster-mesh":   !peer.outside() || w.apiServer(peer), // of which there is one cluster
		"world":          peer.outside(),
		"world-ipv4":     peer.outside() && peer.addr.Unmap().Is4(),
		"world-ipv6":     peer.outside() && !peer.addr.Unmap().Is4(),
		"kube-apiserver": w.apiServer(peer),
	}
	if entities[name] {
		return name
	}
	return ""
}

// ciliumCIDR returns by what an entry of a cidrSet matches the peer; empty: it doesn't. A group that doesn't exist is
// like an empty one.
func (w *World) ciliumCIDR(peer party, c ciliumv2.CIDRRule) string {
	for _, except := range c.Except {
		if peer.within(except) {
			return ""
		}
	}
	if c.CIDR != "" && peer.within(c.CIDR) {
		return "prefix"
	}
	for _, group := range w.CIDRGroups {
		what := ""
		if c.CIDRGroupRef == group.Name {
			what = "group"
		} else if selects(c.CIDRGroupSelector, in(group.Labels)) {
			what = "groupSelector"
		}
		for _, cidr := range group.Spec.ExternalCIDRs {
			if what != "" && peer.within(cidr) {
				return what
			}
		}
	}
	return ""
}

// ciliumService returns by what the peer belongs to a Service; empty: it doesn't. Of a
// Service with a selector it is the pods that the selector selects, of one
// without it is the endpoints that CIDRs may select
// (Services based). Without a namespace it is the Services of all namespaces.
func (w *World) ciliumService(peer party, s ciliumv2.Service) string {
	for _, svc := range w.Services {
		what := ""
		if n := s.K8sService; n != nil && n.ServiceName == svc.Name &&
			(n.Namespace == "" || n.Namespace == svc.Namespace) {
			what = "name"
		}
		if n := s.K8sServiceSelector; n != nil && (n.Namespace == "" || n.Namespace == svc.Namespace) {
			var labels labelSet
			for k, v := range svc.Labels {
				labels = append(labels, label{"k8s", k, v})
			}
			if selects(&n.Selector, labels.find) {
				what = "serviceSelector"
			}
		}
		if what == "" {
			continue
		}
		if len(svc.Spec.Selector) == 0 {
			if w.byCIDR(peer) && w.behind(peer, svc.Namespace, svc.Name) {
				return what + "/endpoints"
			}
			continue
		}
		pods := metav1.LabelSelector{MatchLabels: svc.Spec.Selector}
		if peer.pod != nil && peer.pod.Namespace == svc.Namespace && selects(&pods, w.labels(peer).find) {
			return what + "/pods"
		}
	}
	return ""
}
