package identity

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	"myelin/cluster"
)

// update is one round of changes. It looks at what was touched, as it is in
// one snapshot of the cluster, and writes rows at its end.
type update struct {
	*Identities
	cluster statedb.ReadTxn
	txn     statedb.WriteTxn
	touched map[netip.Addr]bool
	pods    map[cluster.Key]bool
	order   []cluster.Key // of pods, so that numbers don't depend on chance
	fresh   []*Identity   // numbered in this round
	errs    []error
}

func (i *Identities) begin(r statedb.ReadTxn) *update {
	return &update{Identities: i, cluster: r, touched: map[netip.Addr]bool{}, pods: map[cluster.Key]bool{}}
}

func (u *update) pod(k cluster.Key) {
	if !u.pods[k] {
		u.pods[k] = true
		u.order = append(u.order, k)
	}
}

func (u *update) node(n *cluster.Node, deleted bool) {
	for _, a := range u.nodes[n.Name] {
		u.touched[a] = true
		u.claims[a] = slices.DeleteFunc(u.claims[a], func(name string) bool { return name == n.Name })
		if len(u.claims[a]) == 0 {
			delete(u.claims, a)
		}
	}
	delete(u.nodes, n.Name)
	if deleted {
		return
	}
	u.nodes[n.Name] = NodeAddresses(n)
	for _, a := range u.nodes[n.Name] {
		u.touched[a] = true
		u.claims[a] = append(u.claims[a], n.Name)
	}
}

func (u *update) touch(addrs []netip.Addr) {
	for _, a := range addrs {
		u.touched[a] = true
	}
}

// NodeAddresses are the addresses that a node sends from: its own, and the
// gateways of its pods, the first of each podCIDR.
func NodeAddresses(n *cluster.Node) []netip.Addr {
	out := slices.Clone(n.Addresses)
	for _, p := range n.PodCIDRs {
		out = append(out, p.Addr().Next())
	}
	return out
}

// commit numbers the pods that were touched, then decides the addresses.
func (u *update) commit(ready bool) {
	expired := u.expired(ready)
	first := ready && u.done != nil
	if len(u.pods) == 0 && len(u.touched) == 0 && len(expired) == 0 && !first {
		return
	}
	u.txn = u.DB.WriteTxn(u.ids, u.addrs)
	for _, k := range u.order {
		u.settle(k)
	}
	for a := range u.touched {
		u.address(a)
	}
	for _, id := range expired {
		u.expire(id)
	}
	// A number is on disk before anybody can see it, or a crash could give it
	// to other labels while the datapath still holds it.
	u.errs = append(u.errs, u.keep())
	if first {
		for _, done := range u.done {
			done(u.txn)
		}
		u.done = nil
	}
	u.txn.Commit()
	if u.store.Wasteful(u.ids.NumObjects(u.DB.ReadTxn())) {
		u.errs = append(u.errs, u.store.Rewrite(u.next, records(u.live())))
	}
	if err := errors.Join(u.errs...); err != nil {
		u.Log.Error("identities may change their numbers with the next start", "error", err)
	}
}

// keep writes the numbers of this round to the file.
func (u *update) keep() error {
	lines := slices.Collect(records(u.fresh))
	for i := range lines {
		lines[i].Next = u.next
	}
	return u.store.Append(lines)
}

// settle makes a pod's holding what its row says.
func (u *update) settle(k cluster.Key) {
	have := u.Identities.pods[k]
	var want holding
	pod, _, ok := u.Tables.Pods.Get(u.cluster, cluster.PodByKey(k.Namespace, k.Name))
	if ok && pod.OwnsAddresses() {
		ns, _, _ := u.Tables.Namespaces.Get(u.cluster, cluster.NamespaceByName(k.Namespace))
		want = holding{id: u.number(Labels(pod, ns, u.ClusterName)), addrs: pod.Addresses}
	}
	if want.id != have.id {
		u.refer(want.id, 1)
		u.refer(have.id, -1)
	}
	u.touch(have.addrs)
	u.touch(want.addrs)
	if want.id == Unknown {
		delete(u.Identities.pods, k)
	} else {
		u.Identities.pods[k] = want
	}
}

// number finds the number of a label set, or gives it one.
func (u *update) number(labels []string) uint32 {
	if row, _, ok := u.ids.Get(u.txn, byLabels(labels)); ok {
		return row.ID
	}
	for {
		id := u.next
		u.next++
		if u.next < First {
			u.next = First // after 2^32 the numbers begin again
		}
		if _, _, used := u.ids.Get(u.txn, ByID(id)); used {
			continue
		}
		row := &Identity{ID: id, Labels: labels}
		u.fresh = append(u.fresh, row)
		u.insert(row)
		return id
	}
}

// refer counts a pod of an identity in or out.
func (u *update) refer(id uint32, by int) {
	row, _, ok := u.ids.Get(u.txn, ByID(id))
	if id == Unknown || !ok {
		return
	}
	changed := *row
	changed.Refs += by
	u.insert(&changed)
	if changed.Refs == 0 {
		u.retired[id] = u.Now()
	} else {
		delete(u.retired, id)
	}
}

func (u *update) insert(row *Identity) {
	if _, _, err := u.ids.Insert(u.txn, row); err != nil {
		u.errs = append(u.errs, err)
	}
}

// address decides whose an address is: a node's before a pod's; of two pods,
// the one whose row is newer, for it took over a deleted pod's address.
func (u *update) address(a netip.Addr) {
	want := &Address{Addr: a}
	if names := u.claims[a]; len(names) > 0 {
		// Of two nodes, the name decides, so that it is always the same one.
		name := slices.Min(names)
		want.ID, want.Owner = u.ofNode(name), "node "+name
	}
	var newest statedb.Revision
	if want.Owner == "" {
		for pod, revision := range u.Tables.Pods.List(u.cluster, cluster.PodsByAddress(a)) {
			if h, ok := u.Identities.pods[pod.Key()]; ok && revision >= newest {
				newest, want.ID, want.Owner = revision, h.id, "pod "+pod.Key().String()
			}
		}
	}
	have, _, ok := u.addrs.Get(u.txn, ByAddress(a))
	var err error
	switch {
	case want.Owner == "" && ok:
		_, _, err = u.addrs.Delete(u.txn, have)
	case want.Owner != "" && (!ok || *have != *want):
		_, _, err = u.addrs.Insert(u.txn, want)
	}
	if err != nil {
		u.errs = append(u.errs, err)
	}
}

// expired are identities that had no pod for the grace time. Before the
// cluster is known, pods of the former agent's may still come.
func (u *update) expired(ready bool) []uint32 {
	var out []uint32
	if ready && u.done == nil {
		for id, since := range u.retired {
			if u.Now().Sub(since) >= u.Grace {
				out = append(out, id)
			}
		}
	}
	return out
}

func (u *update) expire(id uint32) {
	since, still := u.retired[id]
	row, _, ok := u.ids.Get(u.txn, ByID(id))
	if !still || !ok || row.Refs > 0 || u.Now().Sub(since) < u.Grace {
		return // a pod came back in this round
	}
	if _, _, err := u.ids.Delete(u.txn, row); err != nil {
		u.errs = append(u.errs, err)
	}
	delete(u.retired, id)
}

// live are the numbered label sets.
func (i *Identities) live() []*Identity {
	var out []*Identity
	for row := range i.ids.LowerBound(i.DB.ReadTxn(), ByID(First)) {
		out = append(out, row)
	}
	return out
}
