package parse

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"myelin/policy"
	"myelin/policy/ciliumv2"
)

// CiliumNetworkPolicy makes rules of a cilium.io/v2 CiliumNetworkPolicy, a Spec
// for each of its specs. An error says all that is wrong with it, and then the rules are those that
// are understood, closed.
func CiliumNetworkPolicy(o *ciliumv2.CiliumNetworkPolicy, source string, lines Lines) ([]policy.Spec, error) {
	r := newReader("CiliumNetworkPolicy", &o.ObjectMeta, true, source, lines)
	return r.ciliumSpecs(o.Spec, o.Specs), r.err()
}

// CiliumClusterwideNetworkPolicy makes rules of a cilium.io/v2
// CiliumClusterwideNetworkPolicy as CiliumNetworkPolicy does.
func CiliumClusterwideNetworkPolicy(o *ciliumv2.CiliumClusterwideNetworkPolicy, source string,
	lines Lines) ([]policy.Spec, error) {
	r := newReader("CiliumClusterwideNetworkPolicy", &o.ObjectMeta, false, source, lines)
	return r.ciliumSpecs(o.Spec, o.Specs), r.err()
}

func (r *reader) ciliumSpecs(one *ciliumv2.Rule, more []ciliumv2.Rule) []policy.Spec {
	var specs []policy.Spec
	if one == nil && more == nil {
		r.add("spec", "one of spec and specs must be set")
	}
	if one != nil {
		specs = append(specs, r.ciliumSpec("spec", one)...)
	}
	for i := range more {
		specs = append(specs, r.ciliumSpec(fmt.Sprintf("specs[%d]", i), &more[i])...)
	}
	if r.lostAll("spec") || r.lostAll("specs") || one == nil && more == nil {
		// Neither its subject nor its direction is known.
		spec := policy.Spec{Ref: r.ref, Tier: policy.TierDefault, Subject: r.anyPod(), Isolates: [2]bool{true, true}}
		spec.Narrow(append(r.reasons(r.mark(), "spec"), "spec: is not understood"))
		specs = append(specs, spec)
	}
	return specs
}

// anyPod selects all pods that the object may be for.
func (r *reader) anyPod() policy.Selector {
	if r.namespaced {
		return policy.Selector{inNamespace(r.ref.Namespace)}
	}
	return policy.Selector{inSomeNamespace()}
}

// ciliumRule is a rule of any of a spec's four lists, with the fields that all
// of them have.
type ciliumRule struct {
	path      string
	direction policy.Direction
	action    policy.Action
	side      string // "from" or "to": how the names of peers begin

	endpoints, requires, nodes []metav1.LabelSelector
	cidr, entities             []string
	cidrSet                    []ciliumv2.CIDRRule
	groups                     []ciliumv2.Groups
	services                   []ciliumv2.Service
	fqdns                      []ciliumv2.FQDN
	ports                      []ciliumv2.PortRule
	icmps                      []ciliumv2.ICMPRule
	authentication             *ciliumv2.Authentication
	// init: the subject is pods that are not known yet. host: it is nodes.
	init, host bool
	// unclear says what of the rule is not understood beside its lists' items.
	unclear []string
}

// ciliumSpec reads a spec, of which there are two where it has both selectors.
func (r *reader) ciliumSpec(at string, s *ciliumv2.Rule) []policy.Spec {
	spec := policy.Spec{Ref: r.ref, Tier: policy.TierDefault}
	if s.Log != nil {
		spec.Log = s.Log.Value
	}
	rules := ciliumRules(at, s)
	unclear := r.ciliumIsolates(&spec, at, s, rules)
	r.ciliumRequired(&spec, at, rules)
	for i := range rules {
		for _, rule := range r.ciliumRule(&rules[i]) {
			for j := range rule.Peers {
				if p := &rule.Peers[j]; p.Endpoints != nil && p.Entity == "" {
					p.Required = spec.Required[rule.Direction][rule.Action]
				}
			}
			spec.Rules = append(spec.Rules, rule)
		}
	}
	for _, l := range r.lostLists(at, ciliumLists()) {
		spec.Isolates[l.direction] = true
		if l.action == policy.Deny {
			spec.Rules = append(spec.Rules, r.denyAll(&spec, at+"."+l.name, l.direction))
		} else {
			spec.Unenforced = append(spec.Unenforced, at+"."+l.name+": is not understood")
		}
	}
	mark := r.mark()
	subjects := r.ciliumSubjects(at, s)
	for _, field := range []string{at + ".endpointSelector", at + ".nodeSelector"} {
		if r.lostIn(field) {
			unclear = append(unclear, field+": is not understood")
		}
	}
	if unclear = append(unclear, r.reasons(mark, "?")...); len(unclear) > 0 {
		spec.Narrow(unclear)
	}
	var specs []policy.Spec
	for _, subject := range subjects {
		one := spec
		one.Subject, one.Nodes = subject.selector, subject.nodes
		specs = append(specs, one)
	}
	return specs
}

func ciliumLists() []ruleList {
	return []ruleList{
		{"ingress", policy.Ingress, policy.Allow}, {"ingressDeny", policy.Ingress, policy.Deny},
		{"egress", policy.Egress, policy.Allow}, {"egressDeny", policy.Egress, policy.Deny},
	}
}

// ciliumIsolates says which directions a spec isolates, both where that is not
// understood, and why its subject and its rules may not be what they seem.
func (r *reader) ciliumIsolates(spec *policy.Spec, at string, s *ciliumv2.Rule, rules []ciliumRule) (unclear []string) {
	both := [2]bool{true, true}
	if len(rules) == 0 && len(r.lostLists(at, ciliumLists())) == 0 {
		r.add(at, "must have a rule in one of ingress, ingressDeny, egress, egressDeny")
		spec.Isolates = both
		spec.Unenforced = append(spec.Unenforced, at+": has no rules")
	}
	for i := range rules {
		rules[i].init, rules[i].host = selectsInit(s.EndpointSelector), s.NodeSelector != nil
		spec.Isolates[rules[i].direction] = true
	}
	if d := s.EnableDefaultDeny; d != nil {
		for direction, says := range [...]*bool{policy.Ingress: d.Ingress, policy.Egress: d.Egress} {
			if says != nil {
				spec.Isolates[direction] = *says
			}
		}
	}
	if r.lostIn(at + ".enableDefaultDeny") {
		spec.Isolates = both
		spec.Unenforced = append(spec.Unenforced, at+".enableDefaultDeny: is not understood")
	}
	unclear = r.lostSpec(at, "endpointSelector", "nodeSelector", "ingress", "ingressDeny", "egress", "egressDeny",
		"enableDefaultDeny", "description", "labels", "log")
	if len(unclear) > 0 {
		spec.Isolates = both
	}
	return unclear
}

// ciliumRequired reads what peers must have. What is not understood, no peer has
// for allow rules, and every peer for deny rules.
func (r *reader) ciliumRequired(spec *policy.Spec, at string, rules []ciliumRule) {
	for i := range rules {
		rule := &rules[i]
		if rule.action == policy.Allow && r.lostAll(rule.path+"."+rule.side+"Requires") {
			require(spec, rule.direction, rule.action, policy.Selector{noPeer()})
		}
		for j := range rule.requires {
			field := item(rule.path, rule.side+"Requires", j)
			var selector policy.Selector
			sound := r.sound(field, func() { selector = r.ciliumEndpoints(field, &rule.requires[j], rule.init, true) })
			if !sound {
				rule.unclear = append(rule.unclear, field+": is not understood")
				if rule.action == policy.Deny {
					continue
				}
				selector = append(selector, noPeer())
			}
			require(spec, rule.direction, rule.action, selector)
		}
	}
	for _, l := range r.lostLists(at, ciliumLists()) {
		if l.action == policy.Allow {
			require(spec, l.direction, l.action, policy.Selector{noPeer()})
		}
	}
}

func require(spec *policy.Spec, d policy.Direction, a policy.Action, s policy.Selector) {
	spec.Required[d][a] = append(spec.Required[d][a], s)
}

// noPeer is a requirement that no label set meets: entity none.
func noPeer() policy.Requirement {
	return policy.Requirement{Source: sourceReserved, Key: "none", Op: policy.Exists}
}

// subject selects the endpoints of a spec.
type subject struct {
	selector policy.Selector
	nodes    bool
}

// ciliumSubjects are those of a spec: both where it has two selectors, and all
// pods that it may be for where it has none. Nodes are isolated only by a selector
// of which some requirement is understood, or that has none: an agent without its
// node's connections would never learn of a mended policy.
func (r *reader) ciliumSubjects(at string, s *ciliumv2.Rule) (out []subject) {
	namespaced := r.namespaced
	switch {
	case s.EndpointSelector != nil && s.NodeSelector != nil:
		r.add(at, "only one of endpointSelector and nodeSelector may be set")
	case s.NodeSelector != nil && namespaced:
		r.add(at+".nodeSelector", "must not be set in a CiliumNetworkPolicy: CiliumClusterwideNetworkPolicy has it")
	case s.EndpointSelector == nil && s.NodeSelector == nil && namespaced:
		r.add(at+".endpointSelector", "must be set")
	case s.EndpointSelector == nil && s.NodeSelector == nil:
		r.add(at, "one of endpointSelector and nodeSelector must be set")
	}
	if s.NodeSelector != nil && !namespaced {
		mark := r.mark()
		selector := r.selector(at+".nodeSelector", s.NodeSelector, sourceKeys())
		if len(selector) > 0 || r.mark() == mark && !r.lostIn(at+".nodeSelector") {
			out = append(out, subject{selector, true})
		}
	}
	switch {
	case s.EndpointSelector != nil && !namespaced:
		out = append(out, subject{selector: r.selector(at+".endpointSelector", s.EndpointSelector, sourceKeys())})
	case s.EndpointSelector != nil:
		out = append(out, subject{selector: r.ownEndpoints(at, s.EndpointSelector)})
	case s.NodeSelector == nil || namespaced:
		out = append(out, subject{selector: r.anyPod()})
	}
	return out
}

// ownEndpoints selects endpoints of the policy's own namespace. Another one can't
// be a policy's, whatever the selector says: Cilium takes that out.
func (r *reader) ownEndpoints(at string, s *metav1.LabelSelector) policy.Selector {
	own := inNamespace(r.ref.Namespace)
	all := r.selector(at+".endpointSelector", s, sourceKeys())
	fromLabels := *s
	fromLabels.MatchExpressions = nil
	quiet := &reader{lost: r.lost}
	labels := len(quiet.selector(at+".endpointSelector", &fromLabels, sourceKeys()))
	kept := policy.Selector{}
	for i, req := range all {
		if i >= labels || req.Source != own.Source || req.Key != own.Key {
			kept = append(kept, req)
		}
	}
	return append(kept, own)
}

// selectsInit reports whether a selector asks for pods whose labels are not
// known yet, which have no namespace either.
func selectsInit(s *metav1.LabelSelector) bool {
	return s != nil && hasKey(*s, func(source, key string) bool { return source == sourceReserved && key == "init" })
}

// hasKey reports whether a selector has a key.
func hasKey(s metav1.LabelSelector, is func(source, key string) bool) bool {
	r := &reader{}
	for k := range s.MatchLabels {
		if is(r.key("", k, sourceKeys())) {
			return true
		}
	}
	for _, e := range s.MatchExpressions {
		if is(r.key("", e.Key, sourceKeys())) {
			return true
		}
	}
	return false
}

// ciliumRules are the rules of all four lists.
func ciliumRules(at string, s *ciliumv2.Rule) []ciliumRule {
	var out []ciliumRule
	for i, o := range s.Ingress {
		rule := fromPeers(item(at, "ingress", i), policy.Allow, &o.FromPeers)
		rule.ports, rule.icmps, rule.authentication = o.ToPorts, o.ICMPs, o.Authentication
		out = append(out, rule)
	}
	for i, o := range s.IngressDeny {
		rule := fromPeers(item(at, "ingressDeny", i), policy.Deny, &o.FromPeers)
		rule.ports, rule.icmps = denyPorts(o.ToPorts), o.ICMPs
		out = append(out, rule)
	}
	for i, o := range s.Egress {
		rule := toPeers(item(at, "egress", i), policy.Allow, &o.ToPeers)
		rule.ports, rule.icmps, rule.authentication, rule.fqdns = o.ToPorts, o.ICMPs, o.Authentication, o.ToFQDNs
		out = append(out, rule)
	}
	for i, o := range s.EgressDeny {
		rule := toPeers(item(at, "egressDeny", i), policy.Deny, &o.ToPeers)
		rule.ports, rule.icmps = denyPorts(o.ToPorts), o.ICMPs
		out = append(out, rule)
	}
	return out
}

func fromPeers(at string, action policy.Action, p *ciliumv2.FromPeers) ciliumRule {
	return ciliumRule{
		path: at, direction: policy.Ingress, action: action, side: "from",
		endpoints: p.FromEndpoints, requires: p.FromRequires, nodes: p.FromNodes, cidr: p.FromCIDR,
		cidrSet: p.FromCIDRSet, entities: p.FromEntities, groups: p.FromGroups,
	}
}

func toPeers(at string, action policy.Action, p *ciliumv2.ToPeers) ciliumRule {
	return ciliumRule{
		path: at, direction: policy.Egress, action: action, side: "to",
		endpoints: p.ToEndpoints, requires: p.ToRequires, nodes: p.ToNodes, cidr: p.ToCIDR,
		cidrSet: p.ToCIDRSet, entities: p.ToEntities, groups: p.ToGroups, services: p.ToServices,
	}
}

func denyPorts(list []ciliumv2.PortDenyRule) []ciliumv2.PortRule {
	var out []ciliumv2.PortRule
	for _, p := range list {
		out = append(out, ciliumv2.PortRule{Ports: p.Ports})
	}
	return out
}

// ciliumRule makes rules of one: the first is for what needs no proxy, and each item of toPorts that does has its own.
func (r *reader) ciliumRule(c *ciliumRule) []policy.Rule {
	out := policy.Rule{Origin: r.origin(c.path), Direction: c.direction, Action: c.action}
	mark := r.mark()
	gap := gaps{rule: r.lostRule(c.path) || !r.authenticated(c)}
	peers := r.ciliumPeers(c, &gap)
	ports, items := r.ciliumPorts(c, &gap)
	out.Peers, out.Ports = peers, ports
	switch {
	case len(c.ports)+len(c.icmps) > 0 && len(ports) == 0:
		// Ports are asked for, and there is none.
		out.Peers, out.Ports = []policy.Peer{}, nil
	case peers == nil && ports == nil:
		// An empty rule matches no peer: it isolates.
		out.Peers = []policy.Peer{}
	}
	if gap.any() {
		if out.Action == policy.Deny { // what is understood of it narrows what it denies
			out.Peers, out.Ports = peers, ports
		}
		gap.close(&out)
	}
	if gap.any() || len(c.unclear) > 0 {
		out.Unenforced = append(r.reasons(mark, c.path), c.unclear...)
	}
	var rules []policy.Rule
	if len(items) == 0 || len(ports) > 0 || len(out.Unenforced) > 0 {
		rules = append(rules, out)
	}
	for _, i := range items {
		if !gap.rule {
			rules = append(rules, policy.Rule{Origin: r.origin(i.path), Direction: c.direction, Action: c.action,
				Peers: slices.Clone(peers), Ports: i.ports, L7: i.l7})
		}
	}
	return rules
}

// authenticated reports whether a rule asks for no authentication.
func (r *reader) authenticated(c *ciliumRule) bool {
	a := c.authentication
	if a == nil || a.Mode == "disabled" {
		return true
	}
	switch a.Mode {
	case "required", "test-always-fail":
		r.unenforced(c.path+".authentication.mode", "%s is not supported", a.Mode)
	default:
		r.add(c.path+".authentication.mode", "%q is none of disabled, required, test-always-fail", a.Mode)
	}
	return false
}
