package manifests

import (
	"slices"
	"strings"
	"time"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/parse"
)

// isClosed reports whether a row is of an object that was never good.
func isClosed(row any) bool {
	switch row := row.(type) {
	case *policy.Object:
		return row.InForce == policy.Closed
	case *policy.Group:
		return row.InForce == policy.Closed
	}
	return false
}

// closedVersion is what is understood of an object of which no version was good:
// of several copies, which contradict each other, all that they deny.
func closedVersion(found []version, now time.Time) version {
	var policies []*policy.Object
	var groups []*policy.Group
	for _, v := range found {
		row := v.row
		if row == nil {
			row = v.closed
		}
		switch row := row.(type) {
		case *policy.Object:
			policies = append(policies, row)
		case *policy.Group:
			groups = append(groups, row)
		}
	}
	out := version{file: found[0].file}
	switch {
	case len(found) == 1:
		out.row = found[0].closed
	case len(policies) > 0:
		out.row = policy.Contradiction(policies, duplicate, now)
	case len(groups) > 0:
		g := *groups[0]
		g.Prefixes, g.InForce, g.Problem, g.Since = nil, policy.Closed, duplicate, now
		out.row = &g
	}
	return out
}

// duplicate is the problem of a closed version of several copies, until it gets
// one that names the files.
const duplicate = "duplicate object"

// refusals says on the rows of policies and groups why their newest version is
// not in force, and which one is.
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
		if problem == "" || at.status || inForce != nil && slices.ContainsFunc(copies, func(v version) bool {
			return v.row == inForce
		}) {
			continue
		}
		s.refuse(out, at.key, inForce, sourceOf(copies[0].file), problem)
	}
	for at, v := range s.inForce {
		if _, ok := found[at]; !ok && v.row != nil { // held
			s.refuse(out, at.key, v.row, sourceOf(v.file), s.whyHeld(v.file))
		}
	}
	for _, f := range s.files {
		if f.failing == "" {
			continue
		}
		for _, d := range f.docs {
			at := slot{key: d.key, status: isStatus(f.rel)}
			if v := s.inForce[at]; v.row != nil && v.row == d.row {
				s.refuse(out, at.key, v.row, sourceOf(f.rel), f.failing)
			}
		}
	}
}

// whyHeld is why objects of a file are not known to be gone.
func (s *Source) whyHeld(rel string) string {
	if f := s.files[rel]; f != nil && len(f.problems) > 0 {
		return "its file can't be read: " + f.problems[0].Error()
	}
	return "its file can't be read"
}

// refuse makes the row of a policy or a group one whose newest version is refused.
func (s *Source) refuse(out rows, k key, inForce any, source, problem string) {
	switch {
	case k.kind == parse.GroupKind:
		row, _ := inForce.(*policy.Group)
		if row == nil {
			row = &policy.Group{Name: k.name, Source: source, InForce: policy.Closed}
		}
		row = row.Refused(row, problem, s.Now())
		out.groups[k.name] = lasting(s.applied.groups[k.name], row)
	case slices.Contains(policyKinds(), k.kind):
		ref := policy.Ref{Kind: k.kind, Key: cluster.Key{Namespace: k.namespace, Name: k.name}}
		row, _ := inForce.(*policy.Object)
		if row == nil {
			row = &policy.Object{Ref: ref, Source: source, InForce: policy.Closed}
		}
		row = row.Refused(row, problem, s.Now())
		out.policies[ref] = lasting(s.applied.policies[ref], row)
	}
}

// lasting is the row that the table holds, if the new one says the same.
func lasting[T any](old, row *T) *T {
	if old != nil && equal(old, row) {
		return old
	}
	return row
}

// recall fills in what was in force when the agent ended, by the file that each
// object was read from: what that file says now decides what becomes of it.
func (s *Source) recall() {
	add := func(k key, source string, row any) {
		rel, ok := strings.CutPrefix(source, sourceOf(""))
		if !ok {
			return // of another kind of source
		}
		s.inForce[slot{key: k}] = version{file: rel, row: row}
		s.recalled[rel] = append(s.recalled[rel], document{key: k, row: row})
	}
	s.LastGood.All(func(o *policy.Object) {
		add(key{o.Ref.Kind, o.Ref.Namespace, o.Ref.Name}, o.Source, fresh(*o, func(o *policy.Object) {
			o.InForce = policy.Newest
		}))
	}, func(g *policy.Group) {
		add(key{parse.GroupKind, "", g.Name}, g.Source, fresh(*g, func(g *policy.Group) {
			g.InForce, g.Problem = policy.Newest, ""
		}))
	})
}

func fresh[T any](row T, set func(*T)) *T {
	set(&row)
	return &row
}
