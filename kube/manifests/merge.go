package manifests

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"myelin/cluster"
	"myelin/policy"
)

// slot is a place for one version of an object: a Pod has two, what is wanted
// of it and, under status/, what became of it.
type slot struct {
	key
	status bool
}

// version is an object of a file.
type version struct {
	file string
	row  any
	// closed is as document has it.
	closed any
}

// rows are what the tables should hold.
type rows struct {
	nodes      map[string]*cluster.Node
	namespaces map[string]*cluster.Namespace
	pods       map[cluster.Key]*cluster.Pod
	services   map[cluster.Key]*cluster.Service
	slices     map[cluster.Key]*cluster.EndpointSlice
	secrets    map[cluster.Key]*cluster.Secret
	policies   map[policy.Ref]*policy.Object
	groups     map[string]*policy.Group
}

func newRows() rows {
	return rows{
		nodes: map[string]*cluster.Node{}, namespaces: map[string]*cluster.Namespace{},
		pods:     map[cluster.Key]*cluster.Pod{},
		services: map[cluster.Key]*cluster.Service{}, slices: map[cluster.Key]*cluster.EndpointSlice{},
		secrets:  map[cluster.Key]*cluster.Secret{},
		policies: map[policy.Ref]*policy.Object{}, groups: map[string]*policy.Group{},
	}
}

// adopt puts the rows that there are in the place of r's.
func (r rows) adopt(all rows) {
	adopt(r.nodes, all.nodes)
	adopt(r.namespaces, all.namespaces)
	adopt(r.pods, all.pods)
	adopt(r.services, all.services)
	adopt(r.slices, all.slices)
	adopt(r.secrets, all.secrets)
	adopt(r.policies, all.policies)
	adopt(r.groups, all.groups)
}

func adopt[K comparable, T any](some, all map[K]*T) {
	for k := range some {
		if row, ok := all[k]; ok {
			some[k] = row
		} else {
			delete(some, k)
		}
	}
}

// replace puts rows in the place of others.
func (r rows) replace(have, want rows) {
	replace(r.nodes, have.nodes, want.nodes)
	replace(r.namespaces, have.namespaces, want.namespaces)
	replace(r.pods, have.pods, want.pods)
	replace(r.services, have.services, want.services)
	replace(r.slices, have.slices, want.slices)
	replace(r.secrets, have.secrets, want.secrets)
	replace(r.policies, have.policies, want.policies)
	replace(r.groups, have.groups, want.groups)
}

func replace[K comparable, T any](all, have, want map[K]*T) {
	for k := range have {
		delete(all, k)
	}
	maps.Copy(all, want)
}

// merge makes rows of all files.
func (s *Source) merge() (rows, []*cluster.Problem) {
	found := map[slot][]version{}
	held := map[slot]bool{}
	var problems []*cluster.Problem
	for _, rel := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[rel]
		problems = append(problems, f.problems...)
		for _, d := range f.docs {
			// A refused copy is a copy all the same.
			at := slot{key: d.key, status: isStatus(rel)}
			found[at] = append(found[at], version{file: rel, row: d.row, closed: d.closed})
		}
		for _, k := range f.held {
			held[slot{key: k, status: isStatus(rel)}] = true
		}
	}
	next := map[slot]version{}
	for at, copies := range found {
		v, dup := s.choose(at, copies)
		problems = append(problems, dup...)
		if v.row != nil {
			next[at] = v
		}
	}
	for at := range held {
		if v, ok := s.inForce[at]; ok && found[at] == nil {
			next[at] = v
		}
	}
	s.inForce, s.copies = next, found
	out, conflicts := combine(next, s.Policies)
	s.refusals(out, found, problems)
	problems = append(problems, conflicts...)
	s.flawless = len(problems)+len(held) == 0
	return out, problems
}

// choose picks the version that is in force from now on: what was good, if the
// only one found is refused. Copies that say the same are as good as one; of copies
// that differ it can't be known which is meant, and what was in force stays. Where
// nothing was, policies are closed.
func (s *Source) choose(at slot, found []version) (version, []*cluster.Problem) {
	if len(found) == 1 {
		if found[0].row == nil {
			return s.before(at, found), nil
		}
		return found[0], nil
	}
	var files []string
	same := true
	for _, v := range found {
		files = append(files, v.file)
		same = same && sameObject(found[0].row, v.row)
	}
	var problems []*cluster.Problem
	for i, v := range found {
		others := slices.Delete(slices.Clone(files), i, i+1)
		problems = append(problems, &cluster.Problem{
			File: v.file, Object: at.key.String(), Field: "metadata.name",
			Reason: fmt.Sprintf("duplicate object: it is in %s too", strings.Join(others, ", ")),
		})
	}
	if same && found[0].row != nil {
		return found[0], problems
	}
	return s.before(at, found), problems
}

// before is the version of an object that was good before what is found now, or,
// of a policy or a group, a closed one.
func (s *Source) before(at slot, found []version) version {
	if v := s.inForce[at]; v.row != nil && !isClosed(v.row) {
		return v
	}
	return closedVersion(found, s.Now())
}

// combine makes table rows of versions; a Pod's two become one.
func combine(versions map[slot]version, tables policy.Tables) (rows, []*cluster.Problem) {
	out := newRows()
	var problems []*cluster.Problem
	for at, v := range versions {
		switch row := v.row.(type) {
		case *cluster.Node:
			out.nodes[row.Name] = row
		case *cluster.Namespace:
			out.namespaces[row.Name] = row
		case *cluster.Service:
			out.services[row.Key()] = row
		case *cluster.EndpointSlice:
			out.slices[row.Key()] = row
		case *cluster.Secret:
			out.secrets[row.Key()] = row
		case *policy.Object:
			out.policies[row.Ref] = tables.InForce(row)
		case *policy.Group:
			out.groups[row.Name] = row
		case *cluster.Pod:
			status, ok := versions[slot{key: at.key, status: true}]
			if at.status {
				// Alone it is a row too: the spec may be known to others only.
				if _, ok := versions[slot{key: at.key}]; !ok {
					out.pods[row.Key()] = row
				}
				continue
			}
			if ok {
				var err *cluster.Problem
				if row, err = withStatus(row, status); err != nil {
					problems = append(problems, err)
				}
			}
			out.pods[row.Key()] = row
		}
	}
	return out, problems
}

// withStatus takes from the status what the kubelet knows, and the rest from
// the spec. A status with another UID is of a former Pod of the same name.
func withStatus(spec *cluster.Pod, v version) (*cluster.Pod, *cluster.Problem) {
	status, ok := v.row.(*cluster.Pod)
	if !ok {
		return spec, nil
	}
	if spec.UID != "" && status.UID != "" && spec.UID != status.UID {
		return spec, &cluster.Problem{
			File: v.file, Object: "Pod " + status.Key().String(), Field: "metadata.uid",
			Reason: fmt.Sprintf("%q is the status of another Pod of this name, the present one has %q", status.UID,
				spec.UID),
		}
	}
	row := *spec
	row.Addresses, row.HostAddresses, row.Phase, row.Ready = status.Addresses, status.HostAddresses, status.Phase,
		status.Ready
	row.Terminating = row.Terminating || status.Terminating
	if row.UID == "" {
		row.UID = status.UID
	}
	if row.NodeName == "" {
		row.NodeName = status.NodeName
	}
	return &row, nil
}
