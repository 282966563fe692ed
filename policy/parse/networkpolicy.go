package parse

import (
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"myelin/policy"
)

// NetworkPolicy makes rules of a networking.k8s.io/v1 NetworkPolicy. An error
// is an *Error.
func NetworkPolicy(o *networkingv1.NetworkPolicy, source string, lines Lines) ([]policy.Spec, error) {
	r := newReader("NetworkPolicy", &o.ObjectMeta, true, source, lines)
	spec := policy.Spec{Ref: r.ref, Tier: policy.TierDefault, Subject: r.pods("spec", nil, &o.Spec.PodSelector)}
	spec.Isolates = r.policyTypes(&o.Spec)
	for i := range o.Spec.Ingress {
		rule := &o.Spec.Ingress[i]
		r.networkRule(&spec, policy.Ingress, item("spec", "ingress", i), rule.From, rule.Ports)
	}
	for i := range o.Spec.Egress {
		rule := &o.Spec.Egress[i]
		r.networkRule(&spec, policy.Egress, item("spec", "egress", i), rule.To, rule.Ports)
	}
	return []policy.Spec{spec}, r.err()
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
func (r *reader) networkRule(spec *policy.Spec, d policy.Direction, at string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
	list := [...]string{policy.Ingress: "from", policy.Egress: "to"}[d]
	rule := policy.Rule{Origin: r.origin(at), Direction: d, Action: policy.Allow}
	for i := range peers {
		rule.Peers = append(rule.Peers, r.networkPeer(item(at, list, i), &peers[i]))
	}
	for i := range ports {
		rule.Ports = append(rule.Ports, r.networkPort(item(at, "ports", i), &ports[i]))
	}
	if spec.Isolates[d] {
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
