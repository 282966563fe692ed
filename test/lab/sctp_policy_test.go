package labtest

import (
	"fmt"
	"net/netip"
	"testing"
)

// sctpPolicy is one of upstream's specs for policies, and what may begin under it.
type sctpPolicy struct {
	name, spec string
	lets       func(from, to string, port uint16) bool
}

// sctpPolicyList are policies of the namespace x.
func sctpPolicyList() []sctpPolicy {
	const ofA, fromY = "podSelector: {matchLabels: {pod: a}}", "namespaceSelector: {matchLabels: {ns: \"y\"}}"
	return []sctpPolicy{
		{"default-deny-ingress", "{podSelector: {}, policyTypes: [Ingress]}",
			func(_, to string, _ uint16) bool { return to[0] != 'x' }},
		{"by-port", fmt.Sprintf("{%s, ingress: [{from: [{%s}], ports: [{protocol: SCTP, port: %d}]}]}", ofA, fromY,
			sctpPort),
			func(from, to string, port uint16) bool { return to != "x/a1" || from[0] == 'y' && port == sctpPort }},
		{"by-namespace-and-pod", fmt.Sprintf("{%s, ingress: [{from: [{%s, %s}]}]}", ofA, fromY, ofA),
			func(from, to string, _ uint16) bool { return to != "x/a1" || from == "y/a2" }},
	}
}

// sctpPolicies has pods ask each other under each policy, and when all are gone.
func (p *policed) sctpPolicies(t *testing.T) {
	t.Helper()
	for _, policy := range sctpPolicyList() {
		file := p.enforce(t,
			"apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: "+policy.name+
				", namespace: x}\nspec: "+policy.spec+"\n")
		p.sctpVerdicts(t, policy)
		check(t, p.Delete(t.Context(), file))
	}
	p.pass(t)
	p.sctpVerdicts(t, sctpPolicy{name: "no policy", lets: func(string, string, uint16) bool { return true }})
}

// sctpVerdicts has all pods ask all others, and x/a1 at another port and by its Service, too.
func (p *policed) sctpVerdicts(t *testing.T, policy sctpPolicy) {
	t.Helper()
	var questions []question
	for _, from := range sctpNames() {
		for _, to := range sctpNames() {
			ask := func(dst netip.AddrPort, port uint16) {
				from, to := p.end(from), p.end(to)
				questions = append(questions, question{from: from, to: to, src: from.addr(family(dst.Addr())), dst: dst,
					proto: protoSCTP, want: policy.lets(from.Name(), to.Name(), port)})
			}
			for _, f := range p.stack.families {
				if from == to {
					continue
				}
				a := p.end(to).addr(f)
				ask(at(a, sctpPort), sctpPort)
				if to == "x/a1" {
					ask(at(a, sctpClosed), sctpClosed)
					ask(at(serviceAddr(sctpService, f), sctpFrontPort), sctpPort)
				}
			}
		}
	}
	for i, err := range p.verdicts(t.Context(), questions) {
		if q := questions[i]; err != nil {
			t.Errorf("%s: %s asks %s at %s, which must come through: %v: %v", policy.name, q.from.Name(), q.to.Name(),
				q.dst, q.want, err)
			p.explain(t, q)
		}
	}
}
