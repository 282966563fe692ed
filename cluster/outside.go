package cluster

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"myelin/internal/table"
)

// Outside are a pod's addresses that no podCIDR of its Node has, as when the
// Node object was made anew, with other podCIDRs, under the pod. A reader of
// pods by podCIDR must know of them, too. A Node without podCIDRs of a family is of
// a network that routes pods by other means: its pods' are not here.
type Outside struct {
	Pod       Key
	Node      string
	Addresses []netip.Addr // at least one
}

// Equal reports whether two rows say the same.
func (o *Outside) Equal(p *Outside) bool {
	return o.Pod == p.Pod && o.Node == p.Node && slices.Equal(o.Addresses, p.Addresses)
}

// TableHeader names the columns of TableRow.
func (*Outside) TableHeader() []string { return []string{"Pod", "Node", "Addresses"} }

// TableRow is the row as text.
func (o *Outside) TableRow() []string { return []string{o.Pod.String(), o.Node, join(o.Addresses)} }

// Outsides is the table of Outside, for readers that find pods by podCIDR.
type Outsides struct {
	ByNode   map[string][]netip.Prefix // a prefix for each address
	Revision statedb.Revision
	Changed  <-chan struct{} // nil: it never does
	// Unknown closes when all are there; nil: they are.
	Unknown <-chan struct{}
}

// ReadOutsides reads t; if it is nil, there are none.
func ReadOutsides(txn statedb.ReadTxn, t statedb.Table[*Outside]) (o Outsides) {
	if t == nil {
		return Outsides{}
	}
	rows, changed := t.AllWatch(txn)
	o = Outsides{ByNode: map[string][]netip.Prefix{}, Revision: t.Revision(txn), Changed: changed}
	if known, initialized := t.Initialized(txn); !known {
		o.Unknown = initialized
	}
	for row := range rows {
		for _, a := range row.Addresses {
			o.ByNode[row.Node] = append(o.ByNode[row.Node], netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return o
}

// NewOutsideTable creates the table "pods-outside".
func NewOutsideTable(db *statedb.DB) (statedb.RWTable[*Outside], error) {
	rows, err := statedb.NewTable(db, "pods-outside", outsidePods())
	if err != nil {
		return nil, fmt.Errorf("create table pods-outside: %w", err)
	}
	return rows, nil
}

func outsidePods() statedb.Index[*Outside, Key] {
	return statedb.Index[*Outside, Key]{
		Name:       "pod",
		FromObject: func(o *Outside) index.KeySet { return index.NewKeySet(index.Stringer(o.Pod)) },
		FromKey:    index.Stringer[Key],
		FromString: index.FromString,
		Unique:     true,
	}
}

// OffCIDRPods keeps the table of Outside.
type OffCIDRPods struct {
	Rows statedb.RWTable[*Outside]

	db       *statedb.DB
	tables   Tables
	nodes    statedb.Revision          // of the table of nodes
	podCIDRs map[string][]netip.Prefix // of the nodes at that revision
	ready    func(statedb.WriteTxn)    // nil once the table is initialized
}

// NewOffCIDRPods creates the table. It is initialized when Run has seen all
// nodes and pods.
func NewOffCIDRPods(db *statedb.DB, t Tables) (*OffCIDRPods, error) {
	rows, err := NewOutsideTable(db)
	if err != nil {
		return nil, err
	}
	txn := db.WriteTxn(rows)
	defer txn.Commit()
	return &OffCIDRPods{Rows: rows, db: db, tables: t, ready: rows.RegisterInitializer(txn, "nodes and pods")}, nil
}

// Run waits until nodes and pods are known, and follows them until ctx ends.
func (o *OffCIDRPods) Run(ctx context.Context) error {
	if table.WaitInitialized(ctx, o.db, o.tables.Nodes, o.tables.Pods) != nil {
		return nil
	}
	txn := o.db.WriteTxn(o.tables.Pods)
	pods, err := o.tables.Pods.Changes(txn)
	txn.Commit()
	if err != nil {
		return fmt.Errorf("follow the table of pods: %w", err)
	}
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		r := o.db.ReadTxn()
		changed, more := pods.Next(r)
		_, moreNodes := o.tables.Nodes.AllWatch(r)
		w.Add(more, moreNodes)
		return o.round(r, changed)
	})
}

// moved reports whether a node's podCIDRs are others than before.
func (o *OffCIDRPods) moved(r statedb.ReadTxn) bool {
	revision := o.tables.Nodes.Revision(r)
	if revision == o.nodes {
		return false
	}
	before := o.podCIDRs
	o.nodes, o.podCIDRs = revision, map[string][]netip.Prefix{}
	for n := range o.tables.Nodes.All(r) {
		o.podCIDRs[n.Name] = n.PodCIDRs
	}
	return !maps.EqualFunc(before, o.podCIDRs, slices.Equal)
}

// round looks at pods that changed, and at all where a node's podCIDRs did.
func (o *OffCIDRPods) round(r statedb.ReadTxn, changed iter.Seq2[statedb.Change[*Pod], statedb.Revision]) error {
	all := o.moved(r)
	txn := o.db.WriteTxn(o.Rows)
	defer txn.Abort()
	before := o.Rows.Revision(txn)
	var errs []error
	for c := range changed {
		if c.Deleted || !all {
			errs = append(errs, o.put(txn, c.Object, c.Deleted))
		}
	}
	if all {
		for pod := range o.tables.Pods.All(r) {
			errs = append(errs, o.put(txn, pod, false))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write pods outside of podCIDRs: %w", err)
	}
	first := o.ready != nil
	if first {
		o.ready(txn)
		o.ready = nil
	}
	if first || o.Rows.Revision(txn) != before {
		txn.Commit()
	}
	return nil
}

// put makes a pod's row what it must be.
func (o *OffCIDRPods) put(txn statedb.WriteTxn, pod *Pod, deleted bool) (err error) {
	want := &Outside{Pod: pod.Key(), Node: pod.NodeName}
	if !deleted && pod.OwnsAddresses() {
		want.Addresses = outsideOf(pod.Addresses, o.podCIDRs[pod.NodeName])
	}
	have, _, ok := o.Rows.Get(txn, outsidePods().Query(want.Pod))
	switch {
	case len(want.Addresses) == 0 && ok:
		_, _, err = o.Rows.Delete(txn, have)
	case len(want.Addresses) > 0 && (!ok || !have.Equal(want)):
		_, _, err = o.Rows.Insert(txn, want)
	}
	return err
}

// outsideOf are the addresses that are in none of podCIDRs, of families that
// those have.
func outsideOf(addresses []netip.Addr, podCIDRs []netip.Prefix) (list []netip.Addr) {
	for _, a := range addresses {
		family := func(p netip.Prefix) bool { return p.Addr().Is4() == a.Is4() }
		has := func(p netip.Prefix) bool { return p.Contains(a) }
		if slices.ContainsFunc(podCIDRs, family) && !slices.ContainsFunc(podCIDRs, has) {
			list = append(list, a)
		}
	}
	return list
}
