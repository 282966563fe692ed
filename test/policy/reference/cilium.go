package reference

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"myelin/policy/ciliumv2"
)

// spec is one spec of a Cilium policy, and whose it is.
type spec struct {
	name string // as in "CiliumNetworkPolicy shop/web spec"
	// scope is the namespace of a CiliumNetworkPolicy, empty for clusterwide ones.
	scope string
	rule  *ciliumv2.Rule
}

// specs are the specs of all Cilium policies.
func (w *World) specs() []spec {
	var all []spec
	add := func(name, scope string, one *ciliumv2.Rule, several []ciliumv2.Rule) {
		if one != nil {
			all = append(all, spec{name + " spec", scope, one})
		}
		for i := range several {
			all = append(all, spec{fmt.Sprintf("%s specs[%d]", name, i), scope, &several[i]})
		}
	}
	for _, p := range w.CiliumNetworkPolicies {
		add("CiliumNetworkPolicy "+p.Namespace+"/"+p.Name, p.Namespace, p.Spec, p.Specs)
	}
	for _, p := range w.CiliumClusterwideNetworkPolicies {
		add("CiliumClusterwideNetworkPolicy "+p.Name, "", p.Spec, p.Specs)
	}
	return all
}

// selected is true if the spec is for an endpoint. A nodeSelector selects nodes
// by their labels, an endpointSelector pods: those of its own namespace, if the
// policy has one.
func (w *World) selected(s spec, endpoint party) bool {
	switch {
	case s.rule.NodeSelector != nil:
		return endpoint.node != nil && selects(s.rule.NodeSelector, w.nodeLabels(endpoint.node).find)
	case endpoint.pod == nil || s.scope != "" && s.scope != endpoint.pod.Namespace:
		return false
	}
	return selects(s.rule.EndpointSelector, w.labels(endpoint).find)
}

// cilium asks all Cilium policies that are for the endpoint.
func (w *World) cilium(f flow, o *opinion) {
	allow, deny := w.ciliumRules(f, o)
	for _, r := range deny {
		if what := w.ciliumRule(f, r, deny, f.ciliumLayer4); what != "" {
			o.denies(r.name + " " + what)
		}
	}
	for _, r := range allow {
		if what := w.ciliumRule(f, r, allow, f.ciliumLayer4); what != "" {
			o.allows(r.name + " " + what)
		}
		for i := range r.ports {
			if what := w.ciliumRule(f, r, allow, func(r rule) string { return f.ciliumItem(r, i, true) }); what != "" {
				o.proxied = append(o.proxied, fmt.Sprintf("%s.toPorts[%d]", r.name, i))
			}
		}
	}
}

// ciliumRules are all rules that Cilium policies have for the endpoint, in the
// flow's direction. A spec isolates it in directions that it has rules for,
// unless enableDefaultDeny says otherwise.
func (w *World) ciliumRules(f flow, o *opinion) (allow, deny []rule) {
	for _, s := range w.specs() {
		if !w.selected(s, f.subject) {
			continue
		}
		proxy := w.Proxy && s.rule.NodeSelector == nil
		allows, denies, isolate := s.egress(proxy)
		if f.ingress {
			allows, denies, isolate = s.ingress(proxy)
		}
		if isolate == nil && len(allows)+len(denies) > 0 || isolate != nil && *isolate {
			o.isolates(s.name)
		}
		allow, deny = append(allow, allows...), append(deny, denies...)
	}
	return allow, deny
}

// rule is a rule of any of a spec's four lists.
type rule struct {
	name  string
	scope string // of the spec

	// The peers of the rule: nil lists are absent, those that are empty but not nil are present and match no peer.
	endpoints, nodes []metav1.LabelSelector
	cidr             []string
	cidrSet          []ciliumv2.CIDRRule
	entities         []string
	services         []ciliumv2.Service
	fqdns            []ciliumv2.FQDN

	// requires limits endpoints, of this rule and of all others that are for the
	// same endpoint.
	requires []metav1.LabelSelector

	ports []portItem
	icmps []ciliumv2.ICMPRule

	// none is an allow rule whose peers are not enforced, everybody such a deny rule.
	none, everybody bool
}

// portItem is an item of toPorts. proxied: the proxy enforces more on it, where it can read the protocol.
type portItem struct {
	ports   []ciliumv2.PortProtocol
	proxied bool
	reads   []uint8
}

func (s spec) ingress(proxy bool) (allows, denies []rule, isolate *bool) {
	from := func(list string, i int, p ciliumv2.FromPeers) rule {
		return rule{
			name: fmt.Sprintf("%s.%s[%d]", s.name, list, i), scope: s.scope, endpoints: p.FromEndpoints,
			nodes: p.FromNodes,
			cidr:  p.FromCIDR, cidrSet: p.FromCIDRSet, entities: p.FromEntities, requires: p.FromRequires,
		}
	}
	for i, in := range s.rule.Ingress {
		r := from("ingress", i, in.FromPeers)
		r.ports, r.icmps = allowPorts(in.ToPorts, proxy), in.ICMPs
		r.none = len(in.FromGroups) > 0 || asksAuthentication(in.Authentication)
		allows = append(allows, r)
	}
	for i, in := range s.rule.IngressDeny {
		r := from("ingressDeny", i, in.FromPeers)
		r.ports, r.icmps = denyPorts(in.ToPorts), in.ICMPs
		r.everybody = len(in.FromGroups) > 0
		denies = append(denies, r)
	}
	if s.rule.EnableDefaultDeny == nil {
		return allows, denies, nil
	}
	return allows, denies, s.rule.EnableDefaultDeny.Ingress
}

func (s spec) egress(proxy bool) (allows, denies []rule, isolate *bool) {
	to := func(list string, i int, p ciliumv2.ToPeers) rule {
		return rule{
			name: fmt.Sprintf("%s.%s[%d]", s.name, list, i), scope: s.scope, endpoints: p.ToEndpoints, nodes: p.ToNodes,
			cidr: p.ToCIDR, cidrSet: p.ToCIDRSet, entities: p.ToEntities, services: p.ToServices,
			requires: p.ToRequires,
		}
	}
	for i, out := range s.rule.Egress {
		r := to("egress", i, out.ToPeers)
		r.ports, r.icmps, r.fqdns = allowPorts(out.ToPorts, proxy), out.ICMPs, out.ToFQDNs
		r.none = len(out.ToGroups) > 0 || len(out.ToFQDNs) > 0 && !proxy || asksAuthentication(out.Authentication)
		allows = append(allows, r)
	}
	for i, out := range s.rule.EgressDeny {
		r := to("egressDeny", i, out.ToPeers)
		r.ports, r.icmps = denyPorts(out.ToPorts), out.ICMPs
		r.everybody = len(out.ToGroups) > 0
		denies = append(denies, r)
	}
	if s.rule.EnableDefaultDeny == nil {
		return allows, denies, nil
	}
	return allows, denies, s.rule.EnableDefaultDeny.Egress
}

// asksAuthentication reports whether a rule requires authentication, which no peer has.
func asksAuthentication(a *ciliumv2.Authentication) bool { return a != nil && a.Mode != "disabled" }

// allowPorts leaves out ports where what would have to look further is not there: nothing is allowed there.
func allowPorts(rules []ciliumv2.PortRule, proxy bool) (items []portItem) {
	for _, r := range rules {
		item := portItem{ports: r.Ports, reads: []uint8{protoTCP}}
		unknown := r.Listener != nil
		if l7 := r.Rules; l7 != nil {
			unknown = unknown || len(l7.Kafka)+len(l7.L7)+len(l7.L7Proto) > 0
			item.proxied = len(l7.HTTP)+len(l7.DNS) > 0
			if len(l7.DNS) > 0 {
				item.reads = append(item.reads, protoUDP)
			}
		}
		item.proxied = item.proxied || r.TerminatingTLS != nil || r.OriginatingTLS != nil || len(r.ServerNames) > 0
		if unknown || item.proxied && !proxy {
			item = portItem{}
		}
		items = append(items, item)
	}
	return items
}

func denyPorts(rules []ciliumv2.PortDenyRule) (items []portItem) {
	for _, r := range rules {
		items = append(items, portItem{ports: r.Ports})
	}
	return items
}

// ciliumRule returns by what a rule matches; empty: it doesn't. A rule without peers matches all peers if it has ports
// or ICMP types, and none if it is empty ("Ingress/Egress Default Deny": such a rule only isolates).
// byPort says by which port a flow matches.
func (w *World) ciliumRule(f flow, r rule, others []rule, byPort func(rule) string) string {
	layer4 := len(r.ports) > 0 || len(r.icmps) > 0
	noPeers := r.endpoints == nil && r.nodes == nil && r.cidr == nil && r.cidrSet == nil && r.entities == nil &&
		r.services == nil && r.fqdns == nil
	switch {
	case r.none:
		return ""
	case r.everybody:
	case noPeers && (!layer4 || r.requires != nil):
		return ""
	}
	peer, port := "peers=all", "ports=all"
	if !noPeers && !r.everybody {
		peer = w.ciliumPeer(f, r, others)
	}
	if layer4 {
		port = byPort(r)
	}
	if peer == "" || port == "" {
		return ""
	}
	return peer + " " + port
}

// ciliumItem says by which port of an item of toPorts a flow matches; empty: by none.
func (f flow) ciliumItem(r rule, i int, proxied bool) string {
	item := r.ports[i]
	if item.proxied != proxied || proxied && !slices.Contains(item.reads, f.proto) {
		return ""
	}
	if what := first("ports", item.ports, f.ciliumPort); what != "" {
		return fmt.Sprintf("toPorts[%d].%s", i, what)
	}
	return ""
}

// ciliumLayer4 says by which port or ICMP type a flow matches without the proxy; empty: by none.
func (f flow) ciliumLayer4(r rule) string {
	for i := range r.ports {
		if what := f.ciliumItem(r, i, false); what != "" {
			return what
		}
	}
	for i, icmp := range r.icmps {
		if what := first("fields", icmp.Fields, f.ciliumICMP); what != "" {
			return fmt.Sprintf("icmps[%d].%s", i, what)
		}
	}
	return ""
}

// ciliumPort says by what a port matches; empty: it doesn't. No protocol, or ANY,
// is each that has ports: where there are ports, ICMP is not allowed (Layer 4
// Policies). Port 0 is all ports. Names of ports are not case-sensitive.
func (f flow) ciliumPort(p ciliumv2.PortProtocol) string {
	kind := cmp.Or(strings.ToUpper(p.Protocol), "ANY")
	protocols := map[string][]uint8{
		"ANY": {protoTCP, protoUDP, protoSCTP}, "TCP": {protoTCP}, "UDP": {protoUDP}, "SCTP": {protoSCTP},
	}
	if !slices.Contains(protocols[kind], f.proto) {
		return ""
	}
	port, err := strconv.Atoi(p.Port)
	switch {
	case err != nil && f.named(strings.ToLower(p.Port)):
		return "named/" + kind
	case err != nil:
		return ""
	case port == 0:
		return "all/" + kind
	case int(p.EndPort) > port && port <= int(f.port) && int(f.port) <= int(p.EndPort):
		return "range/" + kind
	case port == int(f.port):
		return "number/" + kind
	}
	return ""
}
