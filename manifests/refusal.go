package manifests

import (
	"slices"
	"strings"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/parse"
)

// refusals says on the rows of policies and groups why their newest version is
// not in force, and makes rows of those that have no other version: an operator
// looks for them there.
func (s *Source) refusals(out rows, found map[slot][]version, problems []*cluster.Problem) {
	why := map[string][]string{}
	for _, p := range problems {
		reason := strings.TrimPrefix(p.Field+": "+p.Reason, ": ")
		if !slices.Contains(why[p.Object], reason) {
			why[p.Object] = append(why[p.Object], reason)
		}
	}
	for at, copies := range found {
		problem := strings.Join(why[at.String()], "; ")
		inForce := s.inForce[at].row
		if problem == "" || at.status || inForce != nil && slices.ContainsFunc(copies, func(v version) bool { return v.row == inForce }) {
			continue
		}
		source := sourceOf(copies[0].file)
		switch {
		case at.kind == parse.GroupKind:
			row := policy.Group{Name: at.name, Source: source}
			if old, ok := inForce.(*policy.Group); ok {
				row = *old
			}
			row.Problem, row.Since = problem, s.Now()
			out.groups[at.name] = lasting(s.applied.groups[at.name], &row)
		case slices.Contains(policyKinds(), at.kind):
			ref := policy.Ref{Kind: at.kind, Key: cluster.Key{Namespace: at.namespace, Name: at.name}}
			row := policy.Object{Ref: ref, Source: source}
			if old, ok := inForce.(*policy.Object); ok {
				row = *old
			}
			row.Problem, row.Since = problem, s.Now()
			out.policies[ref] = lasting(s.applied.policies[ref], &row)
		}
	}
}

// lasting is the row that the table holds, if the new one says the same.
func lasting[T any](old, row *T) *T {
	if old != nil && equal(old, row) {
		return old
	}
	return row
}
