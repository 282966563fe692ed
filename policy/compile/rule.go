package compile

import (
	"net/netip"
	"slices"
	"strings"

	"myelin/policy"
	"myelin/policy/identity"
)

// rule is a Rule ready to be compiled into sets.
type rule struct {
	*policy.Rule
	id    uint32
	key   ruleKey
	spec  *policy.Spec
	place int    // in the object
	name  string // of the object, as rules are ordered by
	ports []PortPrefix
	names []portName
	peers peerSpec
	// variants are the rule with what other policies require of its peers, by
	// that as text, which is required in the variant.
	variants map[string]*rule
	required string

	// The rest is there while some set has the rule.
	sets       map[*Set]struct{}
	selections []*peerSelection
	addresses  []addressPeer
	named      []*namedPort
}

// withRequired is the rule with what all policies of an endpoint require of its peers:
// fromRequires and toRequires.
func (r *rule) withRequired(required []policy.Selector, find finder) *rule {
	if r.spec.Tier != policy.TierDefault || len(required) == 0 {
		return r
	}
	texts := make([]string, len(required))
	for i, s := range required {
		texts[i] = s.Key()
	}
	slices.Sort(texts)
	asked := strings.Join(slices.Compact(texts), "\x07")
	v := r.variants[asked]
	if v == nil {
		v = &rule{id: r.id, key: r.key, place: r.place, name: r.name, ports: r.ports, names: r.names, required: asked,
			sets: map[*Set]struct{}{}}
		if r.variants == nil {
			r.variants = map[string]*rule{}
		}
		r.variants[asked] = v
	}
	if v.Rule != r.Rule {
		v.Rule, v.spec = r.Rule, r.spec
		peers := slices.Clone(r.Peers)
		for i := range peers {
			if p := &peers[i]; p.Endpoints != nil && p.Entity == "" {
				p.Required = slices.Concat(p.Required, required)
			}
		}
		v.peers = newPeers(peers, r.listPlace(), find)
	}
	return v
}

// listPlace names the rule for lists that are known by their place.
func (r *rule) listPlace() string { return r.spec.Ref.String() + " " + r.Origin.Path }

// addressPeer is peers by address, and by labels too where required is not nil.
type addressPeer struct {
	set      *addressSet
	required *peerSelection
}

// peerSpec is the peers of a rule, before any are selected.
type peerSpec struct {
	// any says, by family, that all peers match.
	any       [2]bool
	selectors []policy.Selector
	addresses []addressSpec
	nodes     bool // as finder has it
	deny      bool // the same
}

// addressSpec is an address set to be made, and what its addresses must have
// beside.
type addressSpec struct {
	source   addressSource
	required policy.Selector
}

// families are the indexes of IPv4 and IPv6.
func Family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// world selects what is outside, by one family.
func world(family int) policy.Selector {
	key := [...]string{"world-ipv4", "world-ipv6"}[family]
	return policy.Selector{{Source: "reserved", Key: key, Op: policy.Exists}}
}

// finder is what peers are worked out with.
type finder struct {
	// services are what the engine knows of Services: the labels of the pods
	// behind one, or that it has none, and its name stands for addresses.
	services func(policy.ServicePeer) []service
	// nodes: addresses select nodes, too.
	nodes bool
	// deny: the rule denies. A group of which something is not understood means all
	// that is outside then.
	deny bool
}

func (c *Compiler) finder(a policy.Action) finder {
	return finder{c.resolveService, c.Config.CIDRNodes, a == policy.Deny}
}

// service is what a Service leads to: pods by labels, or, with nil, the
// addresses of its EndpointSlices.
type service struct {
	key      string // "namespace/name"
	selector policy.Selector
}

// newPeers computes selectors and address sources. place names the rule, for its lists that
// are too long to be known by what is in them.
func newPeers(peers []policy.Peer, place string, find finder) peerSpec {
	s := peerSpec{nodes: find.nodes, deny: find.deny}
	if peers == nil {
		return peerSpec{any: [2]bool{true, true}}
	}
	var lists [2]policy.Prefixes // those without conditions, by Pods: one list costs less than many
	for i, p := range peers {
		required := slices.Concat(p.Required...)
		switch {
		case p.Prefixes != nil && len(required)+len(p.Prefixes.Except) == 0 && p.Prefixes.Group == "" &&
			p.Prefixes.GroupSelector == nil:
			list := &lists[boolIndex(p.Prefixes.Pods)]
			if list.Include == nil {
				list.Include = p.Prefixes.Include[:len(p.Prefixes.Include):len(p.Prefixes.Include)]
			} else {
				list.Include = append(list.Include, p.Prefixes.Include...)
			}
		case p.Prefixes != nil:
			s.addPrefixes(*p.Prefixes, required, listPlace(place, i))
		case p.Nodes != nil:
			s.addresses = append(s.addresses, addressSpec{nodesSource(*p.Nodes), required})
		case p.Service != nil:
			for _, b := range find.services(*p.Service) {
				if b.selector == nil {
					s.addresses = append(s.addresses, addressSpec{serviceSource(b.key), required})
				} else {
					s.addSelector(slices.Concat(b.selector, required))
				}
			}
		case p.Names != nil:
			s.addresses = append(s.addresses, addressSpec{namesSource(p.Names), required})
		case p.Endpoints != nil:
			s.addSelector(slices.Concat(*p.Endpoints, required))
		default:
			s.addSelector(required)
		}
	}
	for i, list := range lists {
		if list.Pods = i == 1; len(list.Include) > 0 {
			s.addPrefixes(list, nil, listPlace(place, -i))
		}
	}
	return s
}

func (s *peerSpec) addSelector(sel policy.Selector) {
	if len(sel) == 0 {
		s.any = [2]bool{true, true}
		return
	}
	s.selectors = append(s.selectors, sel)
}

// addPrefixes takes addresses. A whole family needs no rows: it is all peers of
// that family, or all that is outside.
func (s *peerSpec) addPrefixes(p policy.Prefixes, required policy.Selector, place string) {
	p.Include, p.Except = policy.Canonical(p.Include), policy.Canonical(p.Except)
	for family, whole := range [2]netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0),
		netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		of := func(q netip.Prefix) bool { return Family(q.Addr()) == family }
		if _, has := slices.BinarySearchFunc(p.Include, whole, netip.Prefix.Compare); !has ||
			slices.ContainsFunc(p.Except,
				of) || p.Pods && len(required) > 0 {
			continue
		}
		p.Include = slices.DeleteFunc(slices.Clone(p.Include), of)
		if p.Pods {
			s.any[family] = true
		} else {
			s.selectors = append(s.selectors, slices.Concat(world(family), required))
			if s.nodes {
				s.addresses = append(s.addresses, addressSpec{allNodesSource(family), required})
			}
		}
	}
	if len(p.Include) > 0 || p.Group != "" || p.GroupSelector != nil {
		s.addresses = append(s.addresses, addressSpec{prefixSource(p, place, s.deny), required})
	}
}

func boolIndex(b bool) int {
	if b {
		return 1
	}
	return 0
}

// WorldIdentity is the identity of what is outside.
func WorldIdentity(a netip.Addr) uint32 {
	return [...]uint32{identity.WorldIPv4, identity.WorldIPv6}[Family(a)]
}
