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
// ClusterNetworkPolicy. An error says all that is wrong with it, and then the rules are those that
// are understood, closed as the API demands: an Accept rule that is not understood
// matches nothing, and a Deny or Pass rule denies everything.
func ClusterNetworkPolicy(o *v1alpha2.ClusterNetworkPolicy, source string, lines Lines) ([]policy.Spec, error) {
	r := newReader("ClusterNetworkPolicy", &o.ObjectMeta, false, source, lines)
	return r.clusterNetworkPolicy(o), r.err()
}

func (r *reader) clusterNetworkPolicy(o *v1alpha2.ClusterNetworkPolicy) []policy.Spec {
	spec := policy.Spec{Ref: r.ref, Priority: o.Spec.Priority}
	unclear := r.clusterTier(&spec, o)
	mark := r.mark()
	spec.Subject = r.clusterSubject(&o.Spec.Subject)
	if r.mark() > mark || r.lostIn("spec.subject") {
		unclear = append(unclear, r.reasons(mark, "spec.subject")...)
	}
	r.atMost("spec.ingress", len(o.Spec.Ingress))
	for i := range o.Spec.Ingress {
		rule := &o.Spec.Ingress[i]
		at := item("spec", "ingress", i)
		peers := make([]v1alpha2.ClusterNetworkPolicyEgressPeer, len(rule.From))
		for j, p := range rule.From {
			peers[j] = v1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: p.Namespaces, Pods: p.Pods}
		}
		spec.Rules = append(spec.Rules, r.clusterRule(spec.Tier, policy.Ingress,
			at, &v1alpha2.ClusterNetworkPolicyEgressRule{
				Name: rule.Name, Action: rule.Action, To: peers, Protocols: rule.Protocols,
			}))
	}
	r.atMost("spec.egress", len(o.Spec.Egress))
	for i := range o.Spec.Egress {
		spec.Rules = append(spec.Rules, r.clusterRule(spec.Tier, policy.Egress, item("spec", "egress", i),
			&o.Spec.Egress[i]))
	}
	for _, l := range r.lostLists("spec", []ruleList{{"ingress", policy.Ingress, policy.Deny}, {"egress", policy.Egress,
		policy.Deny}}) {
		spec.Rules = append(spec.Rules, r.denyAll(&spec, "spec."+l.name, l.direction))
	}
	lost := r.lostSpec("spec", "tier", "priority", "subject", "ingress", "egress")
	if o.Spec.Tier == "" && len(o.Spec.Ingress)+len(o.Spec.Egress) == 0 {
		lost = append(lost, "spec: says nothing")
	}
	if len(lost) > 0 {
		unclear = append(unclear, lost...)
		spec.Tier, spec.Priority = policy.TierAdmin, 0
		spec.Rules = append(spec.Rules, r.denyAll(&spec, "spec", policy.Ingress),
			r.denyAll(&spec, "spec", policy.Egress))
	}
	if len(unclear) > 0 {
		spec.Narrow(unclear)
	}
	return []policy.Spec{spec}
}

// clusterTier reads tier and priority. Where they are not understood, what the
// policy denies comes first.
func (r *reader) clusterTier(spec *policy.Spec, o *v1alpha2.ClusterNetworkPolicy) (unclear []string) {
	mark := r.mark()
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
	if r.mark() > mark || r.lostIn("spec.tier") || r.lostIn("spec.priority") {
		spec.Tier, spec.Priority = policy.TierAdmin, 0
		unclear = append(r.reasons(mark, "spec.tier"), r.reasons(r.mark(), "spec.priority")...)
	}
	return unclear
}

// denyAll is a rule in the place of what is not understood.
func (r *reader) denyAll(spec *policy.Spec, at string, d policy.Direction) policy.Rule {
	reason := at + ": is not understood"
	spec.Unenforced = append(spec.Unenforced, reason)
	return policy.Rule{Origin: r.origin(at), Direction: d, Action: policy.Deny, Unenforced: []string{reason}}
}

func (r *reader) atMost(field string, n int) {
	if n > maxItems {
		r.add(field, "has %d items: at most %d", n, maxItems)
	}
}

// clusterSubject selects all pods where it is not understood at all.
func (r *reader) clusterSubject(s *v1alpha2.ClusterNetworkPolicySubject) policy.Selector {
	peer := v1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: s.Namespaces, Pods: s.Pods}
	if (s.Namespaces == nil) == (s.Pods == nil) {
		r.add("spec.subject", "exactly one of namespaces and pods must be set")
		return policy.Selector{inSomeNamespace()}
	}
	return *r.clusterPeer("spec.subject", &peer).Endpoints
}

// clusterRule reads a rule: one of ingress has the fields of one of egress.
func (r *reader) clusterRule(
	tier policy.Tier, d policy.Direction, at string, rule *v1alpha2.ClusterNetworkPolicyEgressRule,
) policy.Rule {
	out := policy.Rule{Origin: r.origin(at), Direction: d}
	if len(rule.Name) > maxRuleName {
		r.add(at+".name", "has %d characters: at most %d", len(rule.Name), maxRuleName)
	}
	mark := r.mark()
	out.Action = r.clusterAction(at, rule.Action)
	list := [...]string{policy.Ingress: "from", policy.Egress: "to"}[d]
	if len(rule.To) == 0 {
		r.add(at+"."+list, "must have an item")
	}
	for i := range rule.To {
		out.Peers = append(out.Peers, r.clusterPeer(item(at, list, i), &rule.To[i]))
	}
	out.Ports = r.clusterPorts(at, rule.Protocols)
	r.namedPorts(at, rule)
	if r.mark() > mark || r.lostIn(at) {
		out.Unenforced = r.reasons(mark, at)
		if out.Action == policy.Pass {
			out.Action = policy.Deny
		}
		gaps{rule: true}.close(&out)
	}
	if out.Action == policy.Pass && tier == policy.TierBaseline {
		// What comes after the last tier allows everything.
		out.Action = policy.Allow
	}
	// More items than the API allows are understood all the same.
	r.atMost(at+"."+list, len(rule.To))
	r.atMost(at+".protocols", len(rule.Protocols))
	return out
}

// clusterAction reads what a rule does; one that is not understood may deny.
func (r *reader) clusterAction(at string, action v1alpha2.ClusterNetworkPolicyRuleAction) policy.Action {
	switch action {
	case v1alpha2.ClusterNetworkPolicyRuleActionAccept:
		return policy.Allow
	case v1alpha2.ClusterNetworkPolicyRuleActionDeny:
		return policy.Deny
	case v1alpha2.ClusterNetworkPolicyRuleActionPass:
		return policy.Pass
	}
	r.add(at+".action", "%q is none of Accept, Deny, Pass", action)
	return policy.Deny
}

// clusterPeer reads a peer, of which those of ingress have less fields.
func (r *reader) clusterPeer(at string, p *v1alpha2.ClusterNetworkPolicyEgressPeer) policy.Peer {
	set := 0
	for _, is := range []bool{p.Namespaces != nil, p.Pods != nil, p.Nodes != nil, p.Networks != nil,
		p.DomainNames != nil} {
		if is {
			set++
		}
	}
	switch {
	case set == 0:
		// The API demands that policies of a newer version of it fail closed.
		r.unenforced(at, "has no peer that is known")
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
		r.notSupported(at + ".domainNames")
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
			r.add(item(at, "protocols", j)+".destinationNamedPort",
				"to[%d] is not pods: there are no names of ports", i)
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
