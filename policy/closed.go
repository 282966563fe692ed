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
