package kube

import (
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/policy"
	"myelin/policy/parse"
)

// rows are those of one kind in a table. Writes report whether they changed
// anything: what is as it was is not written.
type rows interface {
	put(txn statedb.WriteTxn, row any) bool
	// known is the row that the table has, if it is equal, else row.
	known(txn statedb.ReadTxn, row any) any
	// refuse says on the row that its newest version is not in force.
	refuse(txn statedb.WriteTxn, key cluster.Key, newest *item, now time.Time) bool
	remove(txn statedb.WriteTxn, key cluster.Key) bool
	keys(txn statedb.ReadTxn) []cluster.Key
	count(txn statedb.ReadTxn) int
}

// rowsOf are rows of a type.
type rowsOf[R any] struct {
	table statedb.RWTable[*R]
	find  func(cluster.Key) statedb.Query[*R]
	key   func(*R) cluster.Key
	equal func(a, b *R) bool
	// ours tells the rows of this kind from others in the table; nil: all are.
	ours func(*R) bool
	// refused is the row, nil if there is none yet, with a reason why the newest
	// version is not in force; closed, which may be nil, is what is understood of that.
	// nil where rows have no place for a reason.
	refused func(old, closed *R, key cluster.Key, reason string, now time.Time) *R
}

// compare returns the row, and the one that the table has if it is equal.
func (r *rowsOf[R]) compare(txn statedb.ReadTxn, row any) (next, same *R) {
	next, ok := row.(*R)
	if !ok {
		panic("a row of another table")
	}
	if old, _, ok := r.table.Get(txn, r.find(r.key(next))); ok && (old == next || r.equal(old, next)) {
		return next, old
	}
	return next, nil
}

func (r *rowsOf[R]) known(txn statedb.ReadTxn, row any) any {
	next, same := r.compare(txn, row)
	if same != nil {
		return same
	}
	return next
}

func (r *rowsOf[R]) put(txn statedb.WriteTxn, row any) bool {
	next, same := r.compare(txn, row)
	if same == nil {
		must(r.table.Insert(txn, next))
	}
	return same == nil
}

func (r *rowsOf[R]) refuse(txn statedb.WriteTxn, key cluster.Key, newest *item, now time.Time) bool {
	if r.refused == nil {
		return false
	}
	old, _, _ := r.table.Get(txn, r.find(key))
	closed, _ := newest.row.(*R)
	return r.put(txn, r.refused(old, closed, key, parse.Problem(newest.faults), now))
}

func (r *rowsOf[R]) remove(txn statedb.WriteTxn, key cluster.Key) bool {
	row, _, ok := r.table.Get(txn, r.find(key))
	if ok {
		must(r.table.Delete(txn, row))
	}
	return ok
}

func (r *rowsOf[R]) keys(txn statedb.ReadTxn) (list []cluster.Key) {
	for row := range r.table.All(txn) {
		if r.ours == nil || r.ours(row) {
			list = append(list, r.key(row))
		}
	}
	return list
}

func (r *rowsOf[R]) count(txn statedb.ReadTxn) int {
	if r.ours == nil {
		return r.table.NumObjects(txn)
	}
	return len(r.keys(txn))
}

// must is for what can't fail: the table is in the transaction.
func must[T any](_ T, _ bool, err error) {
	if err != nil {
		panic(err)
	}
}

func nodeRows(t cluster.Tables) rows {
	return &rowsOf[cluster.Node]{
		table: t.Nodes, key: func(n *cluster.Node) cluster.Key {
			return cluster.Key{Name: n.Name}
		}, equal: (*cluster.Node).Equal,
		find: func(k cluster.Key) statedb.Query[*cluster.Node] { return cluster.NodeByName(k.Name) },
	}
}

func namespaceRows(t cluster.Tables) rows {
	return &rowsOf[cluster.Namespace]{
		table: t.Namespaces, key: func(n *cluster.Namespace) cluster.Key {
			return cluster.Key{Name: n.Name}
		}, equal: (*cluster.Namespace).Equal,
		find: func(k cluster.Key) statedb.Query[*cluster.Namespace] { return cluster.NamespaceByName(k.Name) },
	}
}

func podRows(t cluster.Tables) rows {
	return &rowsOf[cluster.Pod]{
		table: t.Pods, key: (*cluster.Pod).Key, equal: (*cluster.Pod).Equal,
		find: func(k cluster.Key) statedb.Query[*cluster.Pod] { return cluster.PodByKey(k.Namespace, k.Name) },
	}
}

func serviceRows(t cluster.Tables) rows {
	return &rowsOf[cluster.Service]{table: t.Services, key: (*cluster.Service).Key, equal: (*cluster.Service).Equal,
		find: cluster.ServiceByKey}
}

func sliceRows(t cluster.Tables) rows {
	return &rowsOf[cluster.EndpointSlice]{table: t.Slices, key: (*cluster.EndpointSlice).Key,
		equal: (*cluster.EndpointSlice).Equal, find: cluster.SliceByKey}
}

func secretRows(t cluster.Tables) rows {
	return &rowsOf[cluster.Secret]{table: t.Secrets, key: (*cluster.Secret).Key, equal: (*cluster.Secret).Equal,
		find: cluster.SecretByKey}
}

func policyRows(t policy.Tables, last *policy.LastGood, kind string) rows {
	return &rowsOf[policy.Object]{
		table: t.Policies, key: func(o *policy.Object) cluster.Key { return o.Ref.Key }, equal: (*policy.Object).Equal,
		find: func(k cluster.Key) statedb.Query[*policy.Object] {
			return policy.ObjectByRef(policy.Ref{Kind: kind, Key: k})
		},
		ours: func(o *policy.Object) bool { return o.Ref.Kind == kind },
		refused: func(old, closed *policy.Object, key cluster.Key, reason string, now time.Time) *policy.Object {
			ref := policy.Ref{Kind: kind, Key: key}
			if old == nil {
				old = last.Policy(ref)
			}
			if closed == nil {
				closed = &policy.Object{Ref: ref, Source: Origin, InForce: policy.Closed}
			}
			return t.InForce(old.Refused(closed, reason, now))
		},
	}
}

func groupRows(t policy.Tables, last *policy.LastGood) rows {
	return &rowsOf[policy.Group]{
		table: t.Groups, key: func(g *policy.Group) cluster.Key {
			return cluster.Key{Name: g.Name}
		}, equal: (*policy.Group).Equal,
		find: func(k cluster.Key) statedb.Query[*policy.Group] { return policy.GroupByName(k.Name) },
		refused: func(old, closed *policy.Group, key cluster.Key, reason string, now time.Time) *policy.Group {
			if old == nil {
				old = last.Group(key.Name)
			}
			if closed == nil {
				closed = &policy.Group{Name: key.Name, Source: Origin, InForce: policy.Closed}
			}
			return old.Refused(closed, reason, now)
		},
	}
}
