package parse

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"myelin/policy"
	"myelin/policy/ciliumv2"
	"myelin/policy/identity"
)

// ciliumPeers is nil where the rule names no peers. A list that is there and
// empty matches no peer, whatever else the rule has; so is a rule that only requires.
// Peers that are not understood are left out, and noted in gap.
func (r *reader) ciliumPeers(c *ciliumRule, gap *gaps) []policy.Peer {
	lists := []struct {
		name  string
		n     int
		there bool
	}{
		{"Endpoints", len(c.endpoints), c.endpoints != nil},
		{"CIDR", len(c.cidr), c.cidr != nil},
		{"CIDRSet", len(c.cidrSet), c.cidrSet != nil},
		{"Entities", len(c.entities), c.entities != nil},
		{"Nodes", len(c.nodes), c.nodes != nil},
		{"Services", len(c.services), c.services != nil},
		{"Groups", len(c.groups), c.groups != nil},
		{"FQDNs", len(c.fqdns), c.fqdns != nil},
	}
	var used []string
	none := false
	for _, l := range lists {
		if l.n > 0 {
			used = append(used, c.side+l.name)
		}
		none = none || l.there && l.n == 0
	}
	if len(used) > 1 {
		// All of them may be meant to match, or one.
		r.add(c.path, "%s can't stand in one rule", strings.Join(used, " and "))
		gap.rule = true
	}
	if len(c.groups) > 0 {
		r.notSupported(c.path + "." + c.side + "Groups")
		gap.peers = true
	}
	peers := slices.Concat(
		r.endpointPeers(c, gap), r.prefixPeers(c, gap), r.entityPeers(c, gap), r.nodePeers(c, gap),
		r.servicePeers(c, gap), r.namesPeers(c, gap),
	)
	switch {
	case none:
		return []policy.Peer{}
	case len(used) == 0 && len(c.requires) == 0:
		return nil
	case peers == nil:
		return []policy.Peer{}
	}
	return peers
}

func (r *reader) endpointPeers(c *ciliumRule, gap *gaps) (out []policy.Peer) {
	for i := range c.endpoints {
		var s policy.Selector
		at := item(c.path, c.side+"Endpoints", i)
		if r.sound(at, func() { s = r.ciliumEndpoints(at, &c.endpoints[i], c.init, false) }) {
			out = append(out, policy.Peer{Endpoints: &s})
		} else {
			gap.peers = true
		}
	}
	return out
}

// ciliumEndpoints reads a selector of endpoints. Where it says nothing of
// namespaces, a policy of one namespace means that one, and a policy of the
// cluster any pod. Selectors of reserved identities, which have no namespace, say
// it themselves, but not where a label is required.
func (r *reader) ciliumEndpoints(at string, s *metav1.LabelSelector, init, required bool) policy.Selector {
	out := r.selector(at, s, sourceKeys())
	if !required && hasKey(*s, func(source, _ string) bool { return source == sourceReserved }) {
		return out
	}
	ours := func(source string) bool { return source == sourceKubernetes || source == policy.AnySource }
	named := hasKey(*s, func(source, key string) bool { return ours(source) && key == identity.NamespaceKey })
	labelled := hasKey(*s, func(source, key string) bool {
		return ours(source) && strings.HasPrefix(key, identity.NamespaceLabelsKey)
	})
	switch {
	case named:
	case !r.namespaced:
		if !init {
			out = append(out, inSomeNamespace())
		}
	case !labelled:
		out = append(out, inNamespace(r.ref.Namespace))
	}
	return out
}

func (r *reader) nodePeers(c *ciliumRule, gap *gaps) (out []policy.Peer) {
	for i := range c.nodes {
		var s policy.Selector
		at := item(c.path, c.side+"Nodes", i)
		if r.sound(at, func() { s = r.selector(at, &c.nodes[i], sourceKeys()) }) {
			out = append(out, policy.Peer{Nodes: &s})
		} else {
			gap.peers = true
		}
	}
	return out
}

// prefixPeers makes one peer of all prefixes that have no exceptions: lists are
// long.
func (r *reader) prefixPeers(c *ciliumRule, gap *gaps) (out []policy.Peer) {
	plain := &policy.Prefixes{}
	for i, text := range c.cidr {
		at := item(c.path, c.side+"CIDR", i)
		if p, ok := r.prefix(at, text, true); ok && !r.lostIn(at) {
			plain.Include = append(plain.Include, p)
		} else {
			gap.peers = true
		}
	}
	for i := range c.cidrSet {
		var set *policy.Prefixes
		at := item(c.path, c.side+"CIDRSet", i)
		switch sound := r.sound(at, func() { set = r.cidrRule(at, &c.cidrSet[i]) }); {
		case !sound:
			gap.peers = true
		case set.Group == "" && set.GroupSelector == nil && len(set.Except) == 0:
			plain.Include = append(plain.Include, set.Include...)
		default:
			out = append(out, policy.Peer{Prefixes: set})
		}
	}
	if plain.Include = policy.SortLong(plain.Include); len(plain.Include) > 0 {
		out = slices.Insert(out, 0, policy.Peer{Prefixes: plain})
	}
	return out
}

func (r *reader) cidrRule(at string, c *ciliumv2.CIDRRule) *policy.Prefixes {
	out := &policy.Prefixes{}
	set := 0
	if c.CIDR != "" {
		set++
		if p, ok := r.prefix(at+".cidr", c.CIDR, false); ok {
			out.Include = append(out.Include, p)
		}
	}
	if c.CIDRGroupRef != "" {
		set++
		r.valid(at+".cidrGroupRef", c.CIDRGroupRef, validation.IsDNS1123Subdomain)
		out.Group = c.CIDRGroupRef
	}
	if c.CIDRGroupSelector != nil {
		set++
		s := r.selector(at+".cidrGroupSelector", c.CIDRGroupSelector, plainKeys())
		out.GroupSelector = &s
	}
	if set != 1 {
		r.add(at, "exactly one of cidr, cidrGroupRef and cidrGroupSelector must be set")
	}
	for i, text := range c.Except {
		p, ok := r.prefix(item(at, "except", i), text, false)
		switch {
		case !ok:
		case len(out.Include) == 1 && !within(p, out.Include[0], false):
			r.add(item(at, "except", i), "%s is not part of %s", p, out.Include[0])
		default:
			out.Except = append(out.Except, p)
		}
	}
	return out
}

func (r *reader) entityPeers(c *ciliumRule, gap *gaps) (out []policy.Peer) {
	for i, name := range c.entities {
		at := item(c.path, c.side+"Entities", i)
		selectors, ok := entity(name)
		if !ok {
			r.add(at, "%q is none of %s", name, strings.Join(entities(), ", "))
		}
		if !ok || r.lostIn(at) {
			gap.peers = true
			continue
		}
		for _, s := range selectors {
			out = append(out, policy.Peer{Endpoints: &s, Entity: name})
		}
	}
	return out
}

// entities are the names that Cilium has for peers without labels.
func entities() []string {
	return []string{
		"all", "world", "world-ipv4", "world-ipv6", "cluster", "cluster-mesh", "host", "init", "ingress", "unmanaged",
		"remote-node", "health",
		"none", "kube-apiserver",
	}
}

// entity is what selects an entity. One cluster is all of the mesh that there
// is.
func entity(name string) (selectors []policy.Selector, ok bool) {
	reserved := func(names ...string) (out []policy.Selector) {
		for _, n := range names {
			out = append(out, policy.Selector{{Source: sourceReserved, Key: n, Op: policy.Exists}})
		}
		return out
	}
	switch name {
	case "all":
		return []policy.Selector{{}}, true
	case "none":
		return nil, true
	case "world":
		return reserved("world", "world-ipv4", "world-ipv6"), true
	case "cluster", "cluster-mesh":
		return append(reserved("host", "remote-node", "init", "ingress", "health", "unmanaged", "kube-apiserver"),
			policy.Selector{inSomeNamespace()}), true
	}
	return reserved(name), slices.Contains(entities(), name)
}

func (r *reader) servicePeers(c *ciliumRule, gap *gaps) (out []policy.Peer) {
	for i := range c.services {
		var peer *policy.ServicePeer
		at := item(c.path, "toServices", i)
		if r.sound(at, func() { peer = r.servicePeer(at, &c.services[i]) }) {
			out = append(out, policy.Peer{Service: peer})
		} else {
			gap.peers = true
		}
	}
	return out
}

func (r *reader) servicePeer(at string, s *ciliumv2.Service) *policy.ServicePeer {
	peer := &policy.ServicePeer{}
	switch {
	case (s.K8sService == nil) == (s.K8sServiceSelector == nil):
		r.add(at, "exactly one of k8sService and k8sServiceSelector must be set")
	case s.K8sService != nil:
		peer.Name, peer.Namespace = s.K8sService.ServiceName, s.K8sService.Namespace
		r.name(at+".k8sService.serviceName", peer.Name, validation.IsDNS1123Label)
		r.optional(at+".k8sService.namespace", peer.Namespace)
	default:
		selector := r.selector(at+".k8sServiceSelector.selector", &s.K8sServiceSelector.Selector, plainKeys())
		peer.Selector, peer.Namespace = &selector, s.K8sServiceSelector.Namespace
		r.optional(at+".k8sServiceSelector.namespace", peer.Namespace)
	}
	return peer
}

// optional checks the name of a namespace that need not be there.
func (r *reader) optional(field, namespace string) {
	if namespace != "" {
		r.valid(field, namespace, validation.IsDNS1123Label)
	}
}
