package policy

import (
	"maps"
	"net/netip"
	"slices"

	"myelin/cluster"
)

// podFacts are what rules ask of a pod beside its labels.
type podFacts struct {
	addresses []netip.Addr
	bindings  []binding
}

// nodeFacts are what rules ask of a node.
type nodeFacts struct {
	labels    labelSet
	addresses []netip.Addr
	podCIDRs  []netip.Prefix
}

// groupFacts are a CiliumCIDRGroup.
type groupFacts struct {
	labels   labelSet
	prefixes []netip.Prefix
	// unclear: the group may have other prefixes.
	unclear bool
}

// serviceFacts are what is behind a Service: pods, by the selector, or else
// addresses.
type serviceFacts struct {
	known     bool // the Service itself, not only addresses of its slices
	labels    labelSet
	namespace string
	name      string
	selector  map[string]string
	addresses []netip.Addr
}

func plainLabels(source string, labels map[string]string) labelSet {
	texts := make([]string, 0, len(labels))
	for k, v := range labels {
		texts = append(texts, source+":"+k+"="+v)
	}
	return parseLabels(texts)
}

func singles(addresses []netip.Addr) []netip.Prefix {
	out := make([]netip.Prefix, len(addresses))
	for i, a := range addresses {
		out[i] = netip.PrefixFrom(a, a.BitLen())
	}
	return tidy(out)
}

// setPod learns which ports have names at a pod that has its own addresses.
func (c *compiler) setPod(key cluster.Key, addresses []netip.Addr, ports []cluster.Port) {
	next := podFacts{addresses: addresses, bindings: bindingsOf(ports)}
	have := c.pods[key]
	if slices.Equal(have.addresses, next.addresses) && slices.Equal(have.bindings, next.bindings) {
		return
	}
	each := func(p podFacts, on bool) {
		for _, b := range p.bindings {
			for _, a := range p.addresses {
				c.bind(b, a, on)
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

// setNode learns of a node: nil, that it is gone.
func (c *compiler) setNode(name string, n *nodeFacts) {
	if n == nil {
		delete(c.nodes, name)
	} else {
		c.nodes[name] = n
	}
	var all []netip.Prefix
	for _, n := range c.nodes {
		all = append(all, n.podCIDRs...)
	}
	// Errors of sets that no rule names have nobody to tell: pods whose
	// prefix doesn't fit are not known to be pods until their address is.
	c.space.fillSet(c.space.sets[podCIDRs], tidy(all), nil)
	c.refillAll(func(s *addressSource) bool { return s.nodes != nil })
}

// setGroup learns of a CiliumCIDRGroup, or with nil that it is gone.
func (c *compiler) setGroup(name string, g *groupFacts) {
	if g == nil {
		delete(c.groups, name)
	} else {
		g.prefixes = tidy(g.prefixes)
		c.groups[name] = *g
	}
	c.refillAll(func(s *addressSource) bool { return s.group == name || s.groups != nil })
}

// setService learns of a Service and what is behind it.
func (c *compiler) setService(key cluster.Key, f serviceFacts) {
	text := key.String()
	before := c.behind[text]
	if !f.known && len(f.addresses) == 0 {
		delete(c.behind, text)
	} else {
		c.behind[text] = f
	}
	if key.Namespace == "default" && key.Name == "kubernetes" {
		c.space.fillSet(c.space.sets[apiServers], singles(f.addresses), nil)
	}
	c.refillAll(func(s *addressSource) bool { return s.service == text })
	if before.known != f.known || !slices.Equal(before.labels, f.labels) || !maps.Equal(before.selector, f.selector) {
		for _, ref := range slices.Collect(maps.Keys(c.asking)) {
			c.setPolicy(ref, c.objects[ref].given)
		}
	}
}

// resolve finds the Services that a peer names.
func (c *compiler) resolve(p ServicePeer) (out []behind) {
	one := func(key string, f serviceFacts) {
		b := behind{key: key}
		if len(f.selector) > 0 {
			b.selector = Selector{{Source: "k8s", Key: "io.kubernetes.pod.namespace", Op: In, Values: []string{f.namespace}}}
			for _, k := range slices.Sorted(maps.Keys(f.selector)) {
				b.selector = append(b.selector, Requirement{Source: "k8s", Key: k, Op: In, Values: []string{f.selector[k]}})
			}
		}
		out = append(out, b)
	}
	if p.Selector == nil {
		key := cluster.Key{Namespace: p.Namespace, Name: p.Name}.String()
		if f := c.behind[key]; f.known {
			one(key, f)
		}
		return out
	}
	for _, key := range slices.Sorted(maps.Keys(c.behind)) {
		f := c.behind[key]
		if f.known && (p.Namespace == "" || p.Namespace == f.namespace) && p.Selector.MatchesSet(f.labels) {
			one(key, f)
		}
	}
	return out
}

// fill makes an address set hold what its source says now.
func (c *compiler) fill(set *addressSet) {
	c.space.fillSet(set, c.included(&set.source), set.source.except)
}

// included are the prefixes of a source, without its exceptions. They are tidy.
func (c *compiler) included(s *addressSource) []netip.Prefix {
	switch {
	case s.nodes != nil:
		var addresses []netip.Addr
		for _, n := range c.nodes {
			if s.nodes.MatchesSet(n.labels) {
				for _, a := range n.addresses {
					if s.family < 0 || s.family == familyOf(a) {
						addresses = append(addresses, a)
					}
				}
			}
		}
		return singles(addresses)
	case s.service != "":
		return singles(c.behind[s.service].addresses)
	}
	include, tidied := s.include, true
	for name, g := range c.groups {
		switch {
		case !(name == s.group || s.groups != nil && (g.unclear && s.deny || s.groups.MatchesSet(g.labels))):
		case g.unclear && s.deny:
			include, tidied = slices.Concat(include, everywhere()), false
		case len(include) == 0:
			include = g.prefixes
		default:
			include, tidied = slices.Concat(include, g.prefixes), false
		}
	}
	if tidied {
		return include
	}
	return tidy(include)
}

// everywhere is all addresses.
func everywhere() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}
}

// refillAll fills the sets again whose source is meant.
func (c *compiler) refillAll(meant func(*addressSource) bool) {
	for _, set := range c.space.bySet {
		if meant(&set.source) {
			c.fill(set)
		}
	}
}
