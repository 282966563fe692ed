package parse

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"myelin/policy"
	"myelin/policy/ciliumv2"
)

// CiliumNetworkPolicy makes rules of a cilium.io/v2 CiliumNetworkPolicy, a Spec
// for each of its specs. An error is an *Error.
func CiliumNetworkPolicy(o *ciliumv2.CiliumNetworkPolicy, source string, lines Lines) ([]policy.Spec, error) {
	r := newReader("CiliumNetworkPolicy", &o.ObjectMeta, true, source, lines)
	specs := r.ciliumSpecs(o.Spec, o.Specs)
	return specs, r.err()
}

// CiliumClusterwideNetworkPolicy makes rules of a cilium.io/v2
// CiliumClusterwideNetworkPolicy, a Spec for each of its specs. An error is an
// *Error.
func CiliumClusterwideNetworkPolicy(o *ciliumv2.CiliumClusterwideNetworkPolicy, source string, lines Lines) ([]policy.Spec, error) {
	r := newReader("CiliumClusterwideNetworkPolicy", &o.ObjectMeta, false, source, lines)
	specs := r.ciliumSpecs(o.Spec, o.Specs)
	return specs, r.err()
}

func (r *reader) ciliumSpecs(one *ciliumv2.Rule, more []ciliumv2.Rule) []policy.Spec {
	var specs []policy.Spec
	if one == nil && more == nil {
		r.add("spec", "one of spec and specs must be set")
	}
	if one != nil {
		specs = append(specs, r.ciliumSpec("spec", one))
	}
	for i := range more {
		specs = append(specs, r.ciliumSpec(item("", "specs", i)[1:], &more[i]))
	}
	return specs
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
	// init: the subject is pods that are not known yet.
	init bool
}

func (r *reader) ciliumSpec(at string, s *ciliumv2.Rule) policy.Spec {
	spec := policy.Spec{Ref: r.ref, Tier: policy.TierDefault}
	if s.Log != nil {
		spec.Log = s.Log.Value
	}
	r.ciliumSubject(&spec, at, s)
	rules := ciliumRules(at, s)
	if len(rules) == 0 {
		r.add(at, "must have a rule in one of ingress, ingressDeny, egress, egressDeny")
	}
	for i := range rules {
		rules[i].init = selectsInit(s.EndpointSelector)
		spec.Isolates[rules[i].direction] = true
	}
	if d := s.EnableDefaultDeny; d != nil {
		for direction, says := range [...]*bool{policy.Ingress: d.Ingress, policy.Egress: d.Egress} {
			if says != nil {
				spec.Isolates[direction] = *says
			}
		}
	}
	for i := range rules {
		rule := &rules[i]
		for j := range rule.requires {
			field := item(rule.path, rule.side+"Requires", j)
			required := &spec.Required[rule.direction][rule.action]
			*required = append(*required, r.ciliumEndpoints(field, &rule.requires[j], rule.init, true))
		}
	}
	for i := range rules {
		rule := r.ciliumRule(&rules[i])
		for j := range rule.Peers {
			if p := &rule.Peers[j]; p.Endpoints != nil && p.Entity == "" {
				p.Required = spec.Required[rule.Direction][rule.Action]
			}
		}
		spec.Rules = append(spec.Rules, rule)
	}
	return spec
}

func (r *reader) ciliumSubject(spec *policy.Spec, at string, s *ciliumv2.Rule) {
	namespaced := r.ref.Namespace != ""
	switch {
	case s.EndpointSelector != nil && s.NodeSelector != nil:
		r.add(at, "only one of endpointSelector and nodeSelector may be set")
	case s.NodeSelector != nil && namespaced:
		r.add(at+".nodeSelector", "must not be set in a CiliumNetworkPolicy: CiliumClusterwideNetworkPolicy has it")
	case s.NodeSelector != nil:
		spec.Nodes = true
		spec.Subject = r.selector(at+".nodeSelector", s.NodeSelector, sourceKeys())
	case s.EndpointSelector == nil && namespaced:
		r.add(at+".endpointSelector", "must be set")
	case s.EndpointSelector == nil:
		r.add(at, "one of endpointSelector and nodeSelector must be set")
	default:
		spec.Subject = r.selector(at+".endpointSelector", s.EndpointSelector, sourceKeys())
		if namespaced {
			// Another namespace than its own can't be a policy's, whatever the
			// selector says: Cilium takes that out.
			own := inNamespace(r.ref.Namespace)
			kept := policy.Selector{}
			for i, req := range spec.Subject {
				if i >= len(s.EndpointSelector.MatchLabels) || req.Source != own.Source || req.Key != own.Key {
					kept = append(kept, req)
				}
			}
			spec.Subject = append(kept, own)
		}
	}
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

func (r *reader) ciliumRule(c *ciliumRule) policy.Rule {
	out := policy.Rule{Origin: r.origin(c.path), Direction: c.direction, Action: c.action}
	peers, ports := r.ciliumPeers(c), r.ciliumPorts(c)
	out.Peers, out.Ports = peers, ports
	switch {
	case len(c.ports)+len(c.icmps) > 0 && len(ports) == 0:
		// Ports are asked for, and there is none.
		out.Peers, out.Ports = []policy.Peer{}, nil
	case peers == nil && ports == nil:
		// An empty rule allows nobody, and denies nobody: it isolates.
		out.Peers = []policy.Peer{}
	}
	if a := c.authentication; a != nil {
		switch a.Mode {
		case "disabled":
		case "required", "test-always-fail":
			r.add(c.path+".authentication.mode", "%s is not there yet", a.Mode)
		default:
			r.add(c.path+".authentication.mode", "%q is none of disabled, required, test-always-fail", a.Mode)
		}
	}
	return out
}
