package service

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cilium/statedb/reconciler"

	"myelin/cluster"
)

// endpoints makes a Service's uses of backends equal to want. Both lists are sorted; unchanged elements cost a
// comparison.
func (u *update) endpoints(k cluster.Key, want []endpoint) {
	have := u.claimedBy[k].endpoints
	for len(have) > 0 || len(want) > 0 {
		var order int
		switch {
		case len(have) == 0:
			order = 1
		case len(want) == 0:
			order = -1
		default:
			order = have[0].Compare(want[0].L4Addr)
		}
		switch {
		case order < 0:
			u.use(k, have[0].L4Addr, nil)
			have = have[1:]
		case order > 0:
			u.use(k, want[0].L4Addr, &want[0])
			want = want[1:]
		default:
			if have[0] != want[0] {
				u.use(k, want[0].L4Addr, &want[0])
			}
			have, want = have[1:], want[1:]
		}
	}
	if p := u.plans[k]; p != nil {
		u.claimedBy[k].endpoints = p.endpoints
	}
}

// use writes the use of a backend by a Service, or ends it if e is nil. A backend without uses is deleted at the end of
// the round, because another Service may begin to use it.
func (u *update) use(k cluster.Key, a L4Addr, e *endpoint) {
	old, _, ok := u.Desired.Backends.Get(u.txn, BackendByAddress(a))
	if !ok {
		if e == nil {
			return
		}
		old = &Backend{ID: u.backendIDs.Get(a), Address: a.AddrPort, Protocol: a.Protocol}
	}
	var says *Use
	if e != nil {
		says = &Use{Service: k, State: e.State, Weight: e.Weight, Node: e.Node, Zone: e.Zone}
	}
	next := old.with(k, says)
	if len(next.Uses) == 0 {
		u.unused[a] = true
	}
	next.Status = reconciler.StatusPending()
	insert(u, u.Desired.Backends, next)
}

// deleteUnused deletes a backend that no Service uses.
func (u *update) deleteUnused(a L4Addr) {
	if row, _, ok := u.Desired.Backends.Get(u.txn, BackendByAddress(a)); ok && len(row.Uses) == 0 {
		remove(u, u.Desired.Backends, row)
		u.backendIDs.Release(a)
		u.gone[a] = true
	}
}

// frontends makes a Service's frontends equal to those of its plan, except those that other Services have, which are
// problems.
func (u *update) frontends(k cluster.Key, p *plan) []string {
	old := map[L4Addr]*Frontend{}
	for row := range u.Desired.Frontends.List(u.txn, FrontendsByService(k)) {
		old[row.L4()] = row
	}
	var problems []string
	if p != nil {
		for i := range p.frontends {
			f := &p.frontends[i]
			if other := u.winner(f.L4Addr); other != k {
				problems = append(problems, fmt.Sprintf("%s %s is %s's already", f.kind, f.L4Addr, other))
				continue
			}
			last := old[f.L4Addr]
			delete(old, f.L4Addr)
			u.frontend(p, f, last)
		}
	}
	for _, row := range old {
		remove(u, u.Desired.Frontends, row)
	}
	return problems
}

func (u *update) frontend(p *plan, f *plannedFrontend, last *Frontend) {
	k := p.service.Key()
	row := &Frontend{
		Address: f.AddrPort, Protocol: f.Protocol, ServiceID: u.serviceIDs.Get(k), Service: k, PortName: f.port,
		Type: f.kind, Scopes: f.scopes, Elsewhere: f.elsewhere, Affinity: p.service.Affinity,
		ThisNode:  f.Addr().IsUnspecified() && (f.kind == HostPort || p.service.ExternalLocal),
		Algorithm: cmp.Or(p.service.Algorithm, u.Config.Algorithm, Random), Forwarding: p.service.Forwarding,
		Local:  f.local,
		Status: reconciler.StatusPending(),
	}
	if f.Protocol == UDP {
		row.ServerIDLength, row.Servers = p.service.ServerIDLength, u.servers(f.servers)
	}
	u.restrict(row, &p.service)
	var external, internal []BackendRef
	if last != nil {
		external, internal = last.External, last.Internal
	}
	row.Internal = u.refs(f.internal, internal)
	row.External = u.refs(f.external, external)
	if last == nil || !last.Equal(row) {
		insert(u, u.Desired.Frontends, row)
	}
}

// restrict sets the source ranges of a frontend that its Service restricts.
func (u *update) restrict(row *Frontend, s *Service) {
	if s.Restricted && row.Scopes&External != 0 && (row.Type == LoadBalancer || u.Config.SourceRangeAllTypes) {
		row.Restricted, row.SourceDeny, row.SourceRanges = true, s.SourceDeny, s.SourceRanges
	}
}

// refs are the numbers of a set's members, in an order close to the last one. The first frontend with a set determines
// it for all that share the set.
func (u *update) refs(s *set, last []BackendRef) []BackendRef {
	if s.refs == nil && !s.empty() {
		want := make([]BackendRef, len(s.members))
		for i, m := range s.members {
			want[i] = BackendRef{ID: u.backendIDs.Get(m.L4Addr), Weight: m.weight}
		}
		s.refs = arrange(last, want)
	}
	return s.refs
}

// arrange orders want so that it differs from last in as few places as possible: members that stay keep their places,
// new ones get the places of those that are removed, and the rest of these is filled from the end.
func arrange(last, want []BackendRef) []BackendRef {
	if len(last) == 0 || slices.Equal(last, want) {
		return keep(last, want)
	}
	missing := make(map[uint32]uint16, len(want))
	for _, r := range want {
		missing[r.ID] = r.Weight
	}
	out := make([]BackendRef, 0, max(len(last), len(want)))
	var holes []int
	for i, r := range last {
		weight, ok := missing[r.ID]
		if !ok {
			holes = append(holes, i)
		}
		delete(missing, r.ID)
		out = append(out, BackendRef{ID: r.ID, Weight: weight})
	}
	for _, r := range want {
		if _, ok := missing[r.ID]; !ok {
			continue
		}
		if len(holes) > 0 {
			out[holes[0]], holes = r, holes[1:]
		} else {
			out = append(out, r)
		}
	}
	// Starts with the last hole, so that what is moved into a hole is never a hole itself.
	for i := len(holes) - 1; i >= 0; i-- {
		end := len(out) - 1
		out[holes[i]] = out[end]
		out = out[:end]
	}
	return keep(last, out)
}

// keep returns last if it equals want, so that rows share memory.
func keep(last, want []BackendRef) []BackendRef {
	if slices.Equal(last, want) {
		return last
	}
	return want
}
