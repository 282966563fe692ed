package parse

import (
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"myelin/policy"
)

// NetworkPolicy makes rules of a networking.k8s.io/v1 NetworkPolicy. An error
// says all that is wrong with it, and then the rules are those that are understood, closed.
func NetworkPolicy(o *networkingv1.NetworkPolicy, source string, lines Lines) ([]policy.Spec, error) {
	r := newReader("NetworkPolicy", &o.ObjectMeta, true, source, lines)
	return r.networkPolicy(o), r.err()
}

func (r *reader) networkPolicy(o *networkingv1.NetworkPolicy) []policy.Spec {
	mark := r.mark()
	spec := policy.Spec{Ref: r.ref, Tier: policy.TierDefault, Subject: r.pods("spec", nil, &o.Spec.PodSelector)}
	var unclear []string
	if r.mark() > mark || r.lostIn("spec.podSelector") {
		unclear = r.reasons(mark, "spec.podSelector")
	}
	mark = r.mark()
	said := r.policyTypes(&o.Spec)
	spec.Isolates = said
	if r.mark() > mark || r.lostIn("spec.policyTypes") {
		// A type that is not understood may be either.
		spec.Isolates = [2]bool{true, true}
		spec.Unenforced = append(spec.Unenforced, r.reasons(mark, "spec.policyTypes")...)
		if r.lostAll("spec.policyTypes") {
			said = [2]bool{} // rules of a direction that the policy is not about allow nothing
		}
	}
	for i := range o.Spec.Ingress {
		rule := &o.Spec.Ingress[i]
		r.networkRule(&spec, said, policy.Ingress, item("spec", "ingress", i), rule.From, rule.Ports)
	}
	for i := range o.Spec.Egress {
		rule := &o.Spec.Egress[i]
		r.networkRule(&spec, said, policy.Egress, item("spec", "egress", i), rule.To, rule.Ports)
	}
	for _, l := range r.lostLists("spec", []ruleList{{"ingress", policy.Ingress, policy.Allow}, {"egress",
		policy.Egress, policy.Allow}}) {
		spec.Unenforced = append(spec.Unenforced, "spec."+l.name+": is not understood")
		if len(o.Spec.PolicyTypes) == 0 {
			spec.Isolates[l.direction] = true
		}
	}
	if lost := r.lostSpec("spec", "podSelector", "policyTypes", "ingress", "egress"); len(lost) > 0 {
		spec.Isolates = [2]bool{true, true}
		unclear = append(unclear, lost...)
	}
	if len(unclear) > 0 {
		spec.Narrow(unclear)
	}
	return []policy.Spec{spec}
}

// policyTypes says which directions the policy is about. Not said, that is
// ingress, and egress where there are rules of it.
func (r *reader) policyTypes(spec *networkingv1.NetworkPolicySpec) (of [2]bool) {
	if len(spec.PolicyTypes) == 0 {
		return [2]bool{true, len(spec.Egress) > 0}
	}
	for i, t := range spec.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			of[policy.Ingress] = true
		case networkingv1.PolicyTypeEgress:
			of[policy.Egress] = true
		default:
			r.add(item("spec", "policyTypes", i), "%q is none of Ingress, Egress", t)
		}
	}
	return of
}

// networkRule adds a rule. One of a direction that the policy is not about is
// read, for it may be wrong, and does nothing.
func (r *reader) networkRule(
	spec *policy.Spec, about [2]bool, d policy.Direction, at string, peers []networkingv1.NetworkPolicyPeer,
	ports []networkingv1.NetworkPolicyPort,
) {
	list := [...]string{policy.Ingress: "from", policy.Egress: "to"}[d]
	rule := policy.Rule{Origin: r.origin(at), Direction: d, Action: policy.Allow}
	mark, gap := r.mark(), gaps{rule: r.lostRule(at)}
	for i := range peers {
		var peer policy.Peer
		if at := item(at, list, i); r.sound(at, func() { peer = r.networkPeer(at, &peers[i]) }) {
			rule.Peers = append(rule.Peers, peer)
		} else {
			gap.peers = true
		}
	}
	for i := range ports {
		var port policy.Port
		if at := item(at, "ports", i); r.sound(at, func() { port = r.networkPort(at, &ports[i]) }) {
			rule.Ports = append(rule.Ports, port)
		} else {
			gap.ports = true
		}
	}
	if gap.any() {
		gap.close(&rule)
		rule.Unenforced = r.reasons(mark, at)
	}
	if about[d] {
		spec.Rules = append(spec.Rules, rule)
	}
}

func (r *reader) networkPeer(at string, p *networkingv1.NetworkPolicyPeer) policy.Peer {
	selects := p.PodSelector != nil || p.NamespaceSelector != nil
	switch {
	case p.IPBlock != nil && selects:
		r.add(at, "ipBlock can't stand with podSelector or namespaceSelector")
	case p.IPBlock != nil:
		return r.ipBlock(at+".ipBlock", p.IPBlock)
	case selects:
		s := r.pods(at, p.NamespaceSelector, p.PodSelector)
		return policy.Peer{Endpoints: &s}
	default:
		r.add(at, "one of podSelector, namespaceSelector and ipBlock must be set")
	}
	return policy.Peer{}
}

func (r *reader) ipBlock(at string, b *networkingv1.IPBlock) policy.Peer {
	out := &policy.Prefixes{Pods: true}
	block, ok := r.prefix(at+".cidr", b.CIDR, false)
	if ok {
		out.Include = append(out.Include, block)
	}
	for i, text := range b.Except {
		except, good := r.prefix(item(at, "except", i), text, false)
		switch {
		case !good:
		case ok && !within(except, block, true):
			r.add(item(at, "except", i), "%s is not a smaller part of %s", except, block)
		default:
			out.Except = append(out.Except, except)
		}
	}
	return policy.Peer{Prefixes: out}
}

func (r *reader) networkPort(at string, p *networkingv1.NetworkPolicyPort) policy.Port {
	out := policy.Port{Proto: policy.ProtoTCP, Last: lastPort}
	if p.Protocol != nil {
		out.Proto = r.protocol(at+".protocol", string(*p.Protocol), "TCP", "UDP", "SCTP")
	}
	switch {
	case p.Port == nil:
		if p.EndPort != nil {
			r.add(at+".endPort", "must not be set without port")
		}
	case p.Port.Type == intstr.String:
		r.name(at+".port", p.Port.StrVal, validation.IsValidPortName)
		out.Name, out.Last = p.Port.StrVal, 0
		if p.EndPort != nil {
			r.add(at+".endPort", "must not be set where port is a name")
		}
	default:
		out.First = r.port(at+".port", p.Port.IntVal)
		out.Last = out.First
		if p.EndPort != nil {
			out.Last = r.endPort(at+".endPort", *p.EndPort, out.First)
		}
	}
	return out
}
