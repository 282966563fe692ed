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

// labels are what Cilium's selectors see of somebody. Only pods have labels of
// their own; all others have reserved ones.
func (w *World) labels(who party) labelSet {
	var s labelSet
	switch {
	case who.pod != nil:
		for k, v := range who.pod.Labels {
			// A pod can't say of itself what is derived.
			if k != namespaceKey && !strings.HasPrefix(k, namespaceLabelsKey) && !strings.HasPrefix(k, derivedKey) {
				s = append(s, label{"k8s", k, v})
			}
		}
		s = append(s, label{"k8s", namespaceKey, who.pod.Namespace}, label{"k8s", derivedKey + "cluster", w.Cluster})
		if account := who.pod.Spec.ServiceAccountName; account != "" {
			s = append(s, label{"k8s", derivedKey + "serviceaccount", account})
		}
		for k, v := range w.namespaceLabels(who.pod.Namespace) {
			s = append(s, label{"k8s", namespaceLabelsKey + k, v})
		}
		return s
	case who.node != nil && who.node.Name == w.Node:
		s = append(s, label{"reserved", "host", ""})
	case who.node != nil:
		s = append(s, label{"reserved", "remote-node", ""})
	case who.addr.Unmap().Is4():
		s = append(s, label{"reserved", "world-ipv4", ""})
	default:
		s = append(s, label{"reserved", "world-ipv6", ""})
	}
	if w.apiServer(who) {
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
func (w *World) apiServer(who party) bool {
	return who.pod == nil && w.behind(who, metav1.NamespaceDefault, "kubernetes")
}

// behind is true for who is an endpoint of a Service, ready or not.
func (w *World) behind(who party, namespace, name string) bool {
	for _, slice := range w.EndpointSlices {
		if slice.Namespace != namespace || slice.Labels[discoveryv1.LabelServiceName] != name {
			continue
		}
		for _, e := range slice.Endpoints {
			for _, address := range e.Addresses {
				if same(address, who.addr) {
					return true
				}
			}
		}
	}
	return false
}

// ciliumPeer says by which of a rule's peers somebody matches; empty: by none.
func (w *World) ciliumPeer(who party, r rule, others []rule) string {
	what := first("endpoints", r.endpoints, func(s metav1.LabelSelector) string {
		if w.ciliumEndpoint(who, s, r.scope, false) && w.required(who, others) {
			return "selector"
		}
		return ""
	})
	if what == "" {
		what = first("nodes", r.nodes, func(s metav1.LabelSelector) string {
			if who.node != nil && selects(&s, w.nodeLabels(who.node).find) {
				return "selector"
			}
			return ""
		})
	}
	if what == "" {
		what = first("entities", r.entities, func(e string) string { return w.entity(who, e) })
	}
	if what == "" && w.byCIDR(who) {
		what = first("cidr", r.cidr, func(cidr string) string {
			if who.within(cidr) {
				return "prefix"
			}
			return ""
		})
	}
	if what == "" && w.byCIDR(who) {
		what = first("cidrSet", r.cidrSet, func(c ciliumv2.CIDRRule) string { return w.ciliumCIDR(who, c) })
	}
	if what == "" {
		what = first("services", r.services, func(s ciliumv2.Service) string { return w.ciliumService(who, s) })
	}
	return what
}

// byCIDR is true for who may be selected by address: those outside of the
// cluster, and nodes if policyCIDRMatchMode has them.
func (w *World) byCIDR(who party) bool { return who.outside() || w.CIDRNodes && who.node != nil }

// ciliumEndpoint is true if a selector of endpoints selects somebody. One in a
// CiliumNetworkPolicy is about the policy's namespace, unless it asks for a
// namespace, for labels of a namespace, or for a reserved label. One in a
// clusterwide policy is about pods of all namespaces, and about others only if
// it asks for a reserved label.
func (w *World) ciliumEndpoint(who party, s metav1.LabelSelector, scope string, requirement bool) bool {
	labels := w.labels(who).find
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
		return who.pod != nil
	case derived:
		return true
	}
	return who.pod != nil && who.pod.Namespace == scope
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

// required is true for who meets all that fromRequires or toRequires of a list
// of rules ask for.
func (w *World) required(who party, rules []rule) bool {
	for _, r := range rules {
		for _, s := range r.requires {
			if !w.ciliumEndpoint(who, s, r.scope, true) {
				return false
			}
		}
	}
	return true
}

// entity says whether somebody is an entity, by its name; empty: no. Nobody is
// init, health, ingress, unmanaged or none: there are no such endpoints here.
func (w *World) entity(who party, name string) string {
	here := who.node != nil && who.node.Name == w.Node
	entities := map[string]bool{
		"all":            true,
		"host":           here,
		"remote-node":    who.node != nil && !here,
		"cluster":        !who.outside() || w.apiServer(who),
		"cluster-mesh":   !who.outside() || w.apiServer(who), // of which there is one cluster
		"world":          who.outside(),
		"world-ipv4":     who.outside() && who.addr.Unmap().Is4(),
		"world-ipv6":     who.outside() && !who.addr.Unmap().Is4(),
		"kube-apiserver": w.apiServer(who),
	}
	if entities[name] {
		return name
	}
	return ""
}

// ciliumCIDR says by what an entry of a cidrSet matches somebody; empty: it doesn't. A group that isn't there is as
// good as an empty one.
func (w *World) ciliumCIDR(who party, c ciliumv2.CIDRRule) string {
	for _, except := range c.Except {
		if who.within(except) {
			return ""
		}
	}
	if c.CIDR != "" && who.within(c.CIDR) {
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
			if what != "" && who.within(cidr) {
				return what
			}
		}
	}
	return ""
}

// ciliumService says by what somebody is a Service's; empty: it isn't. Of a
// Service with a selector it is the pods that the selector selects, of one
// without it is the endpoints that CIDRs may select
// (Services based). Without a namespace it is the Services of all namespaces.
func (w *World) ciliumService(who party, s ciliumv2.Service) string {
	for _, svc := range w.Services {
		what := ""
		if n := s.K8sService; n != nil && n.ServiceName == svc.Name && (n.Namespace == "" || n.Namespace == svc.Namespace) {
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
			if w.byCIDR(who) && w.behind(who, svc.Namespace, svc.Name) {
				return what + "/endpoints"
			}
			continue
		}
		pods := metav1.LabelSelector{MatchLabels: svc.Spec.Selector}
		if who.pod != nil && who.pod.Namespace == svc.Namespace && selects(&pods, w.labels(who).find) {
			return what + "/pods"
		}
	}
	return ""
}
