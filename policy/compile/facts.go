package compile

import (
	"maps"
	"net/netip"
	"slices"

	"myelin/cluster"
	"myelin/policy"
)

// podFacts are what rules match of a pod besides its labels.
type podFacts struct {
	addresses []netip.Addr
	bindings  []PortBinding
}

// NodeFacts are what rules match of a node.
type NodeFacts struct {
	Labels    policy.LabelSet
	Addresses []netip.Addr
	PodCIDRs  []netip.Prefix
}

// GroupFacts are a CiliumCIDRGroup.
type GroupFacts struct {
	Labels   policy.LabelSet
	Prefixes []netip.Prefix
	// unclear: the group may have other prefixes.
	unclear bool
}

// FactsOf are those of a group.
func FactsOf(g *policy.Group) *GroupFacts {
	return &GroupFacts{Labels: PlainLabels("k8s", g.Labels), Prefixes: g.Prefixes, unclear: g.InForce == policy.Closed}
}

// ServiceFacts are what is behind a Service: pods, by the selector, or else
// addresses.
type ServiceFacts struct {
	Known     bool // the Service itself, not only addresses of its slices
	Labels    policy.LabelSet
	Namespace string
	Name      string
	Selector  map[string]string
	Addresses []netip.Addr
}

func PlainLabels(source string, labels map[string]string) policy.LabelSet {
	texts := make([]string, 0, len(labels))
	for k, v := range labels {
		texts = append(texts, source+":"+k+"="+v)
	}
	return policy.ParseLabels(texts)
}

func singles(addresses []netip.Addr) []netip.Prefix {
	out := make([]netip.Prefix, len(addresses))
	for i, a := range addresses {
		out[i] = netip.PrefixFrom(a, a.BitLen())
	}
	return policy.Canonical(out)
}

// SetPod learns which ports have names at a pod that has its own addresses.
func (c *Compiler) SetPod(key cluster.Key, addresses []netip.Addr, ports []cluster.Port) {
	next := podFacts{addresses: addresses, bindings: PortBindings(ports)}
	have := c.pods[key]
	if slices.Equal(have.addresses, next.addresses) && slices.Equal(have.bindings, next.bindings) {
		return
	}
	each := func(p podFacts, on bool) {
		for _, b := range p.bindings {
			for _, a := range p.addresses {
				c.markPort(b, a, on)
			}
		}
	}
	each(have, false)
	if len(next.bindings) == 0 {
		delete(c.pods, key)
		return
	}
	c.pods[key] = next
	each(next, true)
}

// SetNode learns of a node: nil, that it is gone.
func (c *Compiler) SetNode(name string, n *NodeFacts) {
	if n == nil {
		delete(c.nodes, name)
	} else {
		c.nodes[name] = n
	}
	var all []netip.Prefix
	for _, n := range c.nodes {
		all = append(all, n.PodCIDRs...)
	}
	// Errors of sets that no rule names are reported nowhere: pods whose
	// prefix doesn't fit are not known to be pods until their address is.
	c.space.fillSet(c.space.sets[podCIDRs], policy.Canonical(all), nil)
	c.refillAll(func(s *addressSource) bool { return s.nodes != nil })
}

// SetGroup learns of a CiliumCIDRGroup, or with nil that it is gone.
func (c *Compiler) SetGroup(name string, g *GroupFacts) {
	if g == nil {
		delete(c.groups, name)
	} else {
		g.Prefixes = policy.Canonical(g.Prefixes)
		c.groups[name] = *g
	}
	c.refillAll(func(s *addressSource) bool { return s.group == name || s.groups != nil })
}

// SetService learns of a Service and what is behind it.
func (c *Compiler) SetService(key cluster.Key, f ServiceFacts) {
	text := key.String()
	before := c.services[text]
	if !f.Known && len(f.Addresses) == 0 {
		delete(c.services, text)
	} else {
		c.services[text] = f
	}
	if key.Namespace == "default" && key.Name == "kubernetes" {
		c.space.fillSet(c.space.sets[apiServers], singles(f.Addresses), nil)
	}
	c.refillAll(func(s *addressSource) bool { return s.service == text })
	if before.Known != f.Known || !slices.Equal(before.Labels, f.Labels) || !maps.Equal(before.Selector, f.Selector) {
		for _, ref := range slices.Collect(maps.Keys(c.withServices)) {
			c.SetPolicy(ref, c.objects[ref].specsGiven)
		}
	}
}

// resolveService finds the Services that a peer names.
func (c *Compiler) resolveService(p policy.ServicePeer) (out []service) {
	one := func(key string, f ServiceFacts) {
		b := service{key: key}
		if len(f.Selector) > 0 {
			b.selector = policy.Selector{{Source: "k8s", Key: "io.kubernetes.pod.namespace", Op: policy.In,
				Values: []string{f.Namespace}}}
			for _, k := range slices.Sorted(maps.Keys(f.Selector)) {
				b.selector = append(b.selector, policy.Requirement{Source: "k8s", Key: k, Op: policy.In,
					Values: []string{f.Selector[k]}})
			}
		}
		out = append(out, b)
	}
	if p.Selector == nil {
		key := cluster.Key{Namespace: p.Namespace, Name: p.Name}.String()
		if f := c.services[key]; f.Known {
			one(key, f)
		}
		return out
	}
	for _, key := range slices.Sorted(maps.Keys(c.services)) {
		f := c.services[key]
		if f.Known && (p.Namespace == "" || p.Namespace == f.Namespace) && p.Selector.MatchesSet(f.Labels) {
			one(key, f)
		}
	}
	return out
}

// fill makes an address set hold what its source says now.
func (c *Compiler) fill(set *addressSet) {
	if set.source.names != nil {
		c.fillNames(set)
		return
	}
	c.space.fillSet(set, c.included(&set.source), set.source.except)
}

// included are the prefixes of a source, without its exceptions. They are tidy.
func (c *Compiler) included(s *addressSource) []netip.Prefix {
	switch {
	case s.nodes != nil:
		var addresses []netip.Addr
		for _, n := range c.nodes {
			if s.nodes.MatchesSet(n.Labels) {
				for _, a := range n.Addresses {
					if s.family < 0 || s.family == Family(a) {
						addresses = append(addresses, a)
					}
				}
			}
		}
		return singles(addresses)
	case s.service != "":
		return singles(c.services[s.service].Addresses)
	}
	include, tidied := s.include, true
	for name, g := range c.groups {
		switch {
		case !(name == s.group || s.groups != nil && (g.unclear && s.deny || s.groups.MatchesSet(g.Labels))):
		case g.unclear && s.deny:
			include, tidied = slices.Concat(include, allAddresses()), false
		case len(include) == 0:
			include = g.Prefixes
		default:
			include, tidied = slices.Concat(include, g.Prefixes), false
		}
	}
	if tidied {
		return include
	}
	return policy.Canonical(include)
}

// allAddresses is all addresses.
func allAddresses() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
}

// refillAll fills the sets again whose source matches.
func (c *Compiler) refillAll(meant func(*addressSource) bool) {
	for _, set := range c.space.bySet {
		if meant(&set.source) {
			c.fill(set)
		}
	}
}
