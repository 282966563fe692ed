package parse

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"myelin/policy"
)

// Bounds of the API.
const (
	maxPriority = 1000
	maxItems    = 25  // rules, peers, protocols and networks
	maxRuleName = 100 // characters
)

// ClusterNetworkPolicy makes rules of a policy.networking.k8s.io/v1alpha2
// ClusterNetworkPolicy. An error is an *Error.
func ClusterNetworkPolicy(o *v1alpha2.ClusterNetworkPolicy, source string, lines Lines) ([]policy.Spec, error) {
	r := newReader("ClusterNetworkPolicy", &o.ObjectMeta, false, source, lines)
	spec := policy.Spec{Ref: r.ref, Priority: o.Spec.Priority}
	switch o.Spec.Tier {
	case v1alpha2.AdminTier:
		spec.Tier = policy.TierAdmin
	case v1alpha2.BaselineTier:
		spec.Tier = policy.TierBaseline
	default:
		r.add("spec.tier", "%q is none of Admin, Baseline", o.Spec.Tier)
	}
	if p := o.Spec.Priority; p < 0 || p > maxPriority {
		r.add("spec.priority", "%d is not in 0..%d", p, maxPriority)
	}
	spec.Subject = r.clusterSubject(&o.Spec.Subject)
	r.atMost("spec.ingress", len(o.Spec.Ingress))
	for i := range o.Spec.Ingress {
		rule := &o.Spec.Ingress[i]
		at := item("spec", "ingress", i)
		out := r.clusterRule(spec.Tier, policy.Ingress, at, rule.Name, rule.Action, len(rule.From))
		for j := range rule.From {
			from := &rule.From[j]
			out.Peers = append(out.Peers, r.clusterPeer(item(at, "from", j), &v1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: from.Namespaces, Pods: from.Pods}))
		}
		out.Ports = r.clusterPorts(at, rule.Protocols)
		spec.Rules = append(spec.Rules, out)
	}
	r.atMost("spec.egress", len(o.Spec.Egress))
	for i := range o.Spec.Egress {
		rule := &o.Spec.Egress[i]
		at := item("spec", "egress", i)
		out := r.clusterRule(spec.Tier, policy.Egress, at, rule.Name, rule.Action, len(rule.To))
		for j := range rule.To {
			out.Peers = append(out.Peers, r.clusterPeer(item(at, "to", j), &rule.To[j]))
		}
		out.Ports = r.clusterPorts(at, rule.Protocols)
		r.namedPorts(at, rule)
		spec.Rules = append(spec.Rules, out)
	}
	return []policy.Spec{spec}, r.err()
}

func (r *reader) atMost(field string, n int) {
	if n > maxItems {
		r.add(field, "has %d items: at most %d", n, maxItems)
	}
}

func (r *reader) clusterSubject(s *v1alpha2.ClusterNetworkPolicySubject) policy.Selector {
	peer := v1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: s.Namespaces, Pods: s.Pods}
	if (s.Namespaces == nil) == (s.Pods == nil) {
		r.add("spec.subject", "exactly one of namespaces and pods must be set")
		return policy.Selector{}
	}
	return *r.clusterPeer("spec.subject", &peer).Endpoints
}

// clusterRule is a rule without peers and ports.
func (r *reader) clusterRule(tier policy.Tier, d policy.Direction, at, name string, action v1alpha2.ClusterNetworkPolicyRuleAction, peers int) policy.Rule {
	out := policy.Rule{Origin: r.origin(at), Direction: d}
	if len(name) > maxRuleName {
		r.add(at+".name", "has %d characters: at most %d", len(name), maxRuleName)
	}
	switch action {
	case v1alpha2.ClusterNetworkPolicyRuleActionAccept:
		out.Action = policy.Allow
	case v1alpha2.ClusterNetworkPolicyRuleActionDeny:
		out.Action = policy.Deny
	case v1alpha2.ClusterNetworkPolicyRuleActionPass:
		out.Action = policy.Pass
		if tier == policy.TierBaseline {
			// What comes after the last tier allows everything.
			out.Action = policy.Allow
		}
	default:
		r.add(at+".action", "%q is none of Accept, Deny, Pass", action)
	}
	list := [...]string{policy.Ingress: ".from", policy.Egress: ".to"}[d]
	if peers == 0 {
		r.add(at+list, "must have an item")
	}
	r.atMost(at+list, peers)
	return out
}

// clusterPeer reads a peer, of which those of ingress have less fields.
func (r *reader) clusterPeer(at string, p *v1alpha2.ClusterNetworkPolicyEgressPeer) policy.Peer {
	set := 0
	for _, is := range []bool{p.Namespaces != nil, p.Pods != nil, p.Nodes != nil, p.Networks != nil, p.DomainNames != nil} {
		if is {
			set++
		}
	}
	switch {
	case set == 0:
		r.add(at, "has no peer that is known")
	case set > 1:
		r.add(at, "only one kind of peer may be set")
	case p.Namespaces != nil:
		s := append(r.selector(at+".namespaces", p.Namespaces, namespaceKeys()), inSomeNamespace())
		return policy.Peer{Endpoints: &s}
	case p.Pods != nil:
		s := r.pods(at+".pods", &p.Pods.NamespaceSelector, &p.Pods.PodSelector)
		return policy.Peer{Endpoints: &s}
	case p.Nodes != nil:
		s := r.selector(at+".nodes", p.Nodes, plainKeys())
		return policy.Peer{Nodes: &s}
	case p.Networks != nil:
		return r.networks(at, p.Networks)
	default:
		r.notYet(at + ".domainNames")
	}
	return policy.Peer{}
}

func (r *reader) networks(at string, list []v1alpha2.CIDR) policy.Peer {
	out := &policy.Prefixes{Pods: true}
	if len(list) == 0 {
		r.add(at+".networks", "must have an item")
	}
	r.atMost(at+".networks", len(list))
	for i, text := range list {
		if p, ok := r.prefix(item(at, "networks", i), string(text), false); ok {
			out.Include = append(out.Include, p)
		}
	}
	return policy.Peer{Prefixes: out}
}

// clusterPorts is nil where the rule says nothing of protocols.
func (r *reader) clusterPorts(at string, list []v1alpha2.ClusterNetworkPolicyProtocol) []policy.Port {
	if list == nil {
		return nil
	}
	if len(list) == 0 {
		r.add(at+".protocols", "must have an item")
	}
	r.atMost(at+".protocols", len(list))
	out := []policy.Port{}
	for i := range list {
		out = append(out, r.clusterPort(item(at, "protocols", i), &list[i])...)
	}
	return out
}

func (r *reader) clusterPort(at string, p *v1alpha2.ClusterNetworkPolicyProtocol) []policy.Port {
	var out []policy.Port
	set := 0
	of := func(field string, proto uint8, port *v1alpha2.Port) {
		set++
		if port == nil {
			r.add(at+"."+field+".destinationPort", "must be set")
			return
		}
		out = append(out, r.clusterRange(at+"."+field+".destinationPort", proto, port))
	}
	if p.TCP != nil {
		of("tcp", policy.ProtoTCP, p.TCP.DestinationPort)
	}
	if p.UDP != nil {
		of("udp", policy.ProtoUDP, p.UDP.DestinationPort)
	}
	if p.SCTP != nil {
		of("sctp", policy.ProtoSCTP, p.SCTP.DestinationPort)
	}
	if name := p.DestinationNamedPort; name != "" {
		set++
		r.valid(at+".destinationNamedPort", name, validation.IsValidPortName)
		out = append(out, namedPort(name)...)
	}
	if set != 1 {
		r.add(at, "exactly one of tcp, udp, sctp and destinationNamedPort must be set")
	}
	return out
}

func (r *reader) clusterRange(at string, proto uint8, p *v1alpha2.Port) policy.Port {
	out := policy.Port{Proto: proto}
	switch {
	case p.Range != nil && p.Number != 0:
		r.add(at, "only one of number and range may be set")
	case p.Range != nil:
		out.First = r.port(at+".range.start", p.Range.Start)
		out.Last = r.port(at+".range.end", p.Range.End)
		if out.First != 0 && out.Last != 0 && out.First >= out.Last {
			r.add(at+".range.end", "%d is not greater than the start, %d", out.Last, out.First)
		}
	default:
		out.First = r.port(at+".number", p.Number)
		out.Last = out.First
	}
	return out
}

// namedPorts refuses names of ports for peers that have none.
func (r *reader) namedPorts(at string, rule *v1alpha2.ClusterNetworkPolicyEgressRule) {
	i := slices.IndexFunc(rule.To, func(p v1alpha2.ClusterNetworkPolicyEgressPeer) bool {
		return p.Networks != nil || p.Nodes != nil || p.DomainNames != nil
	})
	for j, proto := range rule.Protocols {
		if i >= 0 && proto.DestinationNamedPort != "" {
			r.add(item(at, "protocols", j)+".destinationNamedPort", "to[%d] is not pods: there are no names of ports", i)
		}
	}
}

// namedPort is a port by its name alone, of whatever protocol it is.
func namedPort(name string) []policy.Port {
	var out []policy.Port
	for _, proto := range transports() {
		out = append(out, policy.Port{Proto: proto, Name: name})
	}
	return out
}
