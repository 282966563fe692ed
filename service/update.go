package service

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
)

// rank orders the Services that claim one address: Services before host ports, then by creation time, then by name.
// Objects without a creation time come after those with one.
type rank struct {
	pod     bool
	created time.Time
	key     cluster.Key
}

func (r rank) before(o rank) bool {
	if r.pod != o.pod {
		return o.pod
	}
	if r.created.IsZero() != o.created.IsZero() {
		return o.created.IsZero()
	}
	return cmp.Or(r.created.Compare(o.created), compareKeys(r.key, o.key)) < 0
}

// displaces reports whether r gets an address that holder has, because it is older, or because it is a Service and
// holder a host port.
func (r rank) displaces(holder rank) bool {
	r.key, holder.key = cluster.Key{}, cluster.Key{}
	return r.before(holder)
}

// update is one round of changes: the Services that were touched, in one snapshot of the cluster.
type update struct {
	*Services
	cluster statedb.ReadTxn
	txn     statedb.WriteTxn
	before  statedb.ReadTxn // the tables as they were before txn
	touched map[cluster.Key]bool
	order   []cluster.Key // of touched, so that numbers are deterministic
	plans   map[cluster.Key]*plan
	unused  map[L4Addr]bool // backends that may have lost their last use
	gone    map[L4Addr]bool // backends that were deleted
	errs    []error
}

func (s *Services) begin(r statedb.ReadTxn) *update {
	return &update{
		Services: s, cluster: r, touched: map[cluster.Key]bool{}, plans: map[cluster.Key]*plan{},
		unused: map[L4Addr]bool{}, gone: map[L4Addr]bool{},
	}
}

func (u *update) touch(k cluster.Key) {
	if !u.touched[k] {
		u.touched[k] = true
		u.order = append(u.order, k)
	}
}

// slice touches the Services that a slice belongs and belonged to.
func (u *update) slice(part *cluster.EndpointSlice, deleted bool) {
	k := part.Key()
	if old, ok := u.sliceOf[k]; ok && (deleted || old != part.Service) {
		u.touch(cluster.Key{Namespace: k.Namespace, Name: old})
	}
	if deleted {
		delete(u.sliceOf, k)
	} else {
		u.sliceOf[k] = part.Service
	}
	if part.Service != "" {
		u.touch(part.ServiceKey())
	}
}

// pod touches the host ports of a Pod that has or had some.
func (u *update) pod(p *cluster.Pod) {
	k := podKey(p.Key())
	if len(p.HostPorts) > 0 && p.NodeName == u.Node || u.claimedBy[k] != nil {
		u.touch(k)
	}
}

// states touches the Services of backends whose state was set.
func (u *update) states() {
	u.mu.Lock()
	changed := u.changed
	u.Services.changed = nil
	u.mu.Unlock()
	for _, a := range changed {
		if b, _, ok := u.Desired.Backends.Get(u.cluster, BackendByAddress(a)); ok {
			for _, use := range b.Uses {
				u.touch(use.Service)
			}
		}
	}
}

// commit computes the plans of what was touched, resolves conflicts, and writes rows that differ.
func (u *update) commit(ready bool) error {
	first := ready && u.initializers != nil
	if len(u.order) == 0 && !first {
		return nil
	}
	slices.SortFunc(u.order, compareKeys)
	contested := map[L4Addr]bool{}
	for _, k := range u.order {
		u.plans[k] = u.plan(k)
		u.claim(k, contested)
	}
	// Other Services that claim the same addresses may get or lose them.
	for a := range contested {
		for _, k := range u.claims[a] {
			if u.touch(k); u.plans[k] == nil {
				u.plans[k] = u.plan(k)
			}
		}
	}
	slices.SortFunc(u.order, compareKeys)
	u.txn, u.before = u.DB.WriteTxn(u.Desired.all()...), u.DB.ReadTxn()
	for _, k := range u.order {
		if u.plans[k] != nil {
			u.serviceIDs.Get(k) // allocates in this order
		}
	}
	for _, k := range u.order {
		u.apply(k)
	}
	for a := range u.unused {
		u.deleteUnused(a)
	}
	u.deleteStates(func(a L4Addr) bool { return u.gone[a] || first && u.backendIDs.Keeps(a) })
	if first {
		// Releases the numbers that are in the files and not in the cluster.
		u.serviceIDs.ReleaseKept()
		u.backendIDs.ReleaseKept()
		for _, done := range u.initializers {
			done(u.txn)
		}
		u.Services.initializers, u.Held = nil, nil
	}
	u.errs = append(u.errs, u.serviceIDs.Save(), u.backendIDs.Save())
	u.txn.Commit()
	return errors.Join(u.errs...)
}

// plan is the plan of the object of a key; nil if there is none.
func (u *update) plan(k cluster.Key) *plan {
	if name, ok := strings.CutSuffix(k.Name, hostPorts); ok {
		pod, _, ok := u.Tables.Pods.Get(u.cluster, cluster.PodByKey(k.Namespace, name))
		if !ok {
			return nil
		}
		return u.builder.pod(pod)
	}
	obj, _, ok := u.Tables.Services.Get(u.cluster, cluster.ServiceByKey(k))
	if !ok {
		return nil
	}
	var parts []*cluster.EndpointSlice
	for part := range u.Tables.Slices.List(u.cluster, cluster.SlicesByService(k)) {
		parts = append(parts, part)
	}
	return u.builder.service(obj, parts)
}

// claim makes the claims of a Service equal to its plan.
func (u *update) claim(k cluster.Key, contested map[L4Addr]bool) {
	p, h := u.plans[k], u.claimedBy[k]
	if h == nil && p == nil {
		return
	}
	next := &claimed{rank: rank{key: k, pod: strings.HasSuffix(k.Name, hostPorts)}}
	if h != nil {
		next.endpoints = h.endpoints
	}
	if p != nil {
		next.rank.created = p.created
		next.frontends = make([]L4Addr, len(p.frontends))
		for i := range p.frontends {
			next.frontends[i] = p.frontends[i].L4Addr
		}
	}
	same := h != nil && h.rank == next.rank && slices.Equal(h.frontends, next.frontends)
	if h != nil && !same {
		for _, a := range h.frontends {
			u.claims[a] = slices.DeleteFunc(u.claims[a], func(o cluster.Key) bool { return o == k })
			contested[a] = contested[a] || len(u.claims[a]) > 0
			if len(u.claims[a]) == 0 {
				delete(u.claims, a)
			}
		}
	}
	if !same {
		for _, a := range next.frontends {
			u.claims[a] = append(u.claims[a], k)
			contested[a] = contested[a] || len(u.claims[a]) > 1
		}
	}
	u.claimedBy[k] = next
}

// winner is the Service that gets an address. If creation times are the same or missing, it is the Service that holds
// the address, because nothing else tells which one was first.
func (u *update) winner(a L4Addr) cluster.Key {
	claims := u.claims[a]
	if len(claims) == 1 {
		return claims[0]
	}
	best := claims[0]
	for _, k := range claims[1:] {
		if u.claimedBy[k].rank.before(u.claimedBy[best].rank) {
			best = k
		}
	}
	if holder, ok := u.holder(a); ok && !u.claimedBy[best].rank.displaces(u.claimedBy[holder].rank) {
		return holder
	}
	return best
}

// holder is the claimant that had an address before this round. Until the tables are initialized, that is the one in
// the kernel from the previous agent, because Services may be listed in any order.
func (u *update) holder(a L4Addr) (cluster.Key, bool) {
	var id uint32
	if u.initializers != nil {
		id = u.Held[a]
	}
	if row, _, ok := u.Desired.Frontends.Get(u.before, FrontendByAddress(a)); ok && id == 0 {
		id = row.ServiceID
	}
	for _, k := range u.claims[a] {
		if id != 0 && u.serviceIDs.Get(k) == id {
			return k, true
		}
	}
	return cluster.Key{}, false
}

// apply makes the rows of a Service equal to its plan.
func (u *update) apply(k cluster.Key) {
	p, h := u.plans[k], u.claimedBy[k]
	if h == nil {
		return
	}
	if p == nil {
		u.frontends(k, nil)
		u.endpoints(k, nil)
		u.check(k, nil)
		if row, _, ok := u.Desired.Services.Get(u.txn, ByKey(k)); ok {
			remove(u, u.Desired.Services, row)
		}
		u.serviceIDs.Release(k)
		delete(u.claimedBy, k)
		return
	}
	row := p.service
	row.ID = u.serviceIDs.Get(k)
	u.endpoints(k, p.endpoints)
	row.Problems = append(row.Problems, u.frontends(k, p)...)
	if old, _, ok := u.Desired.Services.Get(u.txn, ByKey(k)); !ok || !old.Equal(&row) {
		insert(u, u.Desired.Services, &row)
	}
	u.check(k, p)
}

func insert[Row any](u *update, t statedb.RWTable[Row], row Row) {
	if _, _, err := t.Insert(u.txn, row); err != nil {
		u.errs = append(u.errs, fmt.Errorf("insert row of %s: %w", t.Name(), err))
	}
}

func remove[Row any](u *update, t statedb.RWTable[Row], row Row) {
	if _, _, err := t.Delete(u.txn, row); err != nil {
		u.errs = append(u.errs, fmt.Errorf("delete row of %s: %w", t.Name(), err))
	}
}
