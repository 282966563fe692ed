package policy

import (
	"fmt"
	"slices"
	"time"
)

// MatchNothing takes away all that a rule matches.
func (r *Rule) MatchNothing() { r.Peers, r.Ports = []Peer{}, nil }

// Narrow is for a spec whose subject, or whose meaning as a whole, is not
// understood for the reasons given, so that it may select more than its author
// meant: it isolates and denies, and allows nothing.
func (s *Spec) Narrow(reasons []string) {
	s.Unenforced = append(slices.Clip(s.Unenforced), reasons...)
	s.Rules = slices.Clone(s.Rules)
	for i := range s.Rules {
		rule := &s.Rules[i]
		say := func(text string) { rule.Unenforced = append(slices.Clip(rule.Unenforced), rule.Origin.Path+": "+text) }
		switch rule.Action {
		case Deny:
		case Allow:
			rule.MatchNothing()
			say("allows nothing, for the policy as a whole is not understood")
		case Pass:
			// It may lead past what another policy denies.
			rule.Action = Deny
			say("denies, for the policy as a whole is not understood")
		}
	}
}

// Contradiction is the closed version of an object of which there are different
// copies: all of them isolate and deny, and none allows anything.
func Contradiction(copies []*Object, problem string, now time.Time) *Object {
	row := *copies[0]
	row.Specs, row.InForce, row.Problem, row.Since = nil, Closed, problem, now
	for _, o := range copies {
		for _, s := range o.Specs {
			s.Narrow([]string{fmt.Sprintf("metadata.name: it is also in another file (%s)", o.Source)})
			row.Specs = append(row.Specs, s)
		}
	}
	return &row
}

// NoProxy is why rules that need the proxy are closed where there is none.
const NoProxy = "l7Proxy is off"

// WithoutProxy is the object of which all that needs the proxy is closed.
func (o *Object) WithoutProxy() *Object {
	if !slices.ContainsFunc(o.Specs, Spec.needsProxy) {
		return o
	}
	out := *o
	out.Specs = WithoutProxy(o.Specs, NoProxy)
	return &out
}

func (s Spec) needsProxy() bool {
	return slices.ContainsFunc(s.Rules, func(r Rule) bool { return r.NeedsProxy() })
}

// WithoutProxy are specs of which all that needs the proxy is closed for a reason. It does not change the specs given.
func WithoutProxy(specs []Spec, reason string) []Spec {
	if !slices.ContainsFunc(specs, Spec.needsProxy) {
		return specs
	}
	specs = slices.Clone(specs)
	for i := range specs {
		specs[i].Rules = slices.Clone(specs[i].Rules)
		for j := range specs[i].Rules {
			if rule := &specs[i].Rules[j]; rule.NeedsProxy() {
				rule.closeProxied(reason)
			}
		}
	}
	return specs
}

func (r *Rule) closeProxied(reason string) {
	if r.L7 != nil {
		r.L7 = nil
		r.MatchNothing()
	}
	r.Peers = slices.DeleteFunc(slices.Clone(r.Peers), func(p Peer) bool { return p.Names != nil })
	if len(r.Peers) == 0 {
		r.MatchNothing()
	}
	r.Unenforced = append(slices.Clip(r.Unenforced), r.Origin.Path+": "+reason)
}
