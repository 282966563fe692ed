package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"myelin/agent/feature"
	"myelin/policy"
)

// Policies is what the agent knows of policies.
type Policies struct {
	// Accepted, Partly and Refused count objects, CiliumCIDRGroups among them. Partly
	// are accepted objects of which some part is not enforced, and allows nothing. Of a
	// refused one the last good version stays in force, or, where there is none, what is
	// understood of it.
	Accepted, Partly, Refused int
	// Problems are why objects are refused, at most feature.MaxErrors:
	// "Kind namespace/name: reason (version in force)". Parts are what is not enforced.
	Problems, Parts []string
	Rules           int
	// Endpoints are how many endpoints some policy speaks of, of All.
	Endpoints, All int
	// Audited are how many are only audited.
	Audited int
	// Failed are endpoints whose policies are not all in the kernel, and why.
	Failed []string
	// Last is when the kernel last got what policies say; zero: never.
	Last time.Time
}

// CountPolicies reads the tables of policies.
func CountPolicies(objects []*policy.Object, groups []*policy.Group, realised []*policy.Realised, rules int,
	last time.Time) Policies {
	p := Policies{Rules: rules, All: len(realised), Last: last}
	object := func(name, problem string, inForce policy.Version, parts []string) {
		if len(parts) > 0 && problem == "" {
			p.Partly++
			p.Parts = append(p.Parts, name+": "+strings.Join(parts, "; "))
		}
		if problem == "" {
			p.Accepted++
			return
		}
		p.Refused++
		p.Problems = append(p.Problems, name+": "+problem+inForceText(inForce))
	}
	for _, o := range objects {
		object(o.Ref.String(), o.Problem, o.InForce, o.Unenforced())
	}
	for _, g := range groups {
		object("CiliumCIDRGroup "+g.Name, g.Problem, g.InForce, nil)
	}
	for _, r := range realised {
		if r.Enforced[policy.Ingress] || r.Enforced[policy.Egress] {
			p.Endpoints++
		}
		if r.Audit {
			p.Audited++
		}
		if r.Error != "" {
			p.Failed = append(p.Failed, fmt.Sprintf("%s: %s", cmp.Or(r.Pod, fmt.Sprintf("endpoint %d", r.Slot)),
				r.Error))
		}
	}
	for _, list := range []*[]string{&p.Problems, &p.Parts, &p.Failed} {
		slices.Sort(*list)
		*list = (*list)[:min(len(*list), maxErrors)]
	}
	return p
}

// inForceText says which version of a refused object is in force.
func inForceText(v policy.Version) string {
	switch v {
	case policy.LastGoodVersion:
		return " (the last good version is in force)"
	case policy.Closed:
		return " (there is no good version: what is not understood allows nothing)"
	}
	return ""
}

// policies is the line about policy enforcement.
func (f *Facts) policies() Feature {
	c := f.Config
	x := Feature{Name: "Policies", State: Off, Wanted: "policyEnforcementMode: " + c.PolicyEnforcementMode,
		Chosen: "off", Why: "everything is allowed"}
	if c.LoadBalancer.Standalone {
		x.Why = "a load balancer has no pods"
	}
	if f.Settings.Policy == 0 {
		return x
	}
	p := f.Policies
	x.State, x.Why, x.Cost = OK, "asked when a flow begins, and again when they change",
		"a row for each flow of an endpoint that has policies"
	x.Chosen = fmt.Sprintf("%s, %d of %s with policies, %s, %s", c.PolicyEnforcementMode, p.Endpoints,
		feature.Plural(p.All, "endpoint"), feature.Plural(p.Accepted, "object"), feature.Plural(p.Rules, "rule"))
	for _, m := range f.Maps {
		if m.Name == "verdicts" {
			x.Chosen += ", " + feature.Plural(m.Entries, "row")
		}
	}
	if p.Refused > 0 {
		x.Chosen += fmt.Sprintf("; %d refused", p.Refused)
	}
	if p.Partly > 0 {
		x.Chosen += fmt.Sprintf("; %d partly enforced", p.Partly)
	}
	switch {
	case c.Policy.Audit:
		x.FallBack("policyAuditMode: what is denied is only counted, and goes on")
	case p.Audited > 0:
		x.FallBack("what is denied to " + feature.Plural(p.Audited, "endpoint") + " is only counted, and goes on")
	}
	feature.First(p.Problems, p.Refused, x.FallBack)
	feature.First(p.Parts, p.Partly, func(text string) { x.FallBack("not enforced, and allows nothing: " + text) })
	feature.First(p.Failed, len(p.Failed), x.Break)
	if len(p.Failed) > 0 {
		x.Cost = "where policies don't fit, nothing is allowed"
		if !c.Policy.Lockdown {
			x.Cost = "where policies don't fit, everything is allowed (endpointLockdownOnMapOverflow: false)"
		}
	}
	if p.Last.IsZero() {
		x.Break("nothing is in the kernel yet: what an agent before left there holds")
	}
	return x
}
