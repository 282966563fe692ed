package manifests

import (
	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/policy"
)

// apply makes the tables equal to desired in one transaction. With complete set,
// the first call marks the tables initialized.
func (s *Source) apply(desired rows, problems []*cluster.Problem, complete bool) {
	s.problems.Replace(problems)
	first := complete && s.initialized != nil
	if !s.change(s.applied, desired, first) {
		return
	}
	s.applied = desired
	s.Log.Debug("applied manifests", "dir", s.Dir, "nodes", len(desired.nodes), "namespaces", len(desired.namespaces),
		"pods", len(desired.pods),
		"services", len(desired.services), "slices", len(desired.slices), "policies", len(desired.policies),
		"CIDR groups", len(desired.groups))
}

// change makes rows of the tables others, in one transaction. Rows that don't
// change are not written, and stay in want; it is false if all are so.
func (s *Source) change(have, want rows, first bool) bool {
	changes := newEdit(have.nodes, want.nodes, (*cluster.Node).Equal)
	spaces := newEdit(have.namespaces, want.namespaces, (*cluster.Namespace).Equal)
	pods := newEdit(have.pods, want.pods, (*cluster.Pod).Equal)
	services := newEdit(have.services, want.services, (*cluster.Service).Equal)
	parts := newEdit(have.slices, want.slices, (*cluster.EndpointSlice).Equal)
	secrets := newEdit(have.secrets, want.secrets, (*cluster.Secret).Equal)
	policies := newEdit(have.policies, want.policies, (*policy.Object).Equal)
	groups := newEdit(have.groups, want.groups, (*policy.Group).Equal)
	if !first && changes.empty() && spaces.empty() && pods.empty() && services.empty() && parts.empty() &&
		secrets.empty() && policies.empty() && groups.empty() {
		return false
	}
	txn := s.write()
	changes.write(txn, s.Tables.Nodes)
	spaces.write(txn, s.Tables.Namespaces)
	pods.write(txn, s.Tables.Pods)
	services.write(txn, s.Tables.Services)
	parts.write(txn, s.Tables.Slices)
	secrets.write(txn, s.Tables.Secrets)
	groups.write(txn, s.Policies.Groups)
	policies.write(txn, s.Policies.Policies)
	if first {
		for _, done := range s.initialized {
			done(txn)
		}
		s.initialized = nil
	}
	txn.Commit()
	return true
}

// edit is what changes in a table.
type edit[T any] struct{ insert, remove []*T }

func newEdit[K comparable, T any](have, want map[K]*T, equal func(*T, *T) bool) edit[T] {
	var e edit[T]
	for k, row := range want {
		if old, ok := have[k]; !ok || old != row && !equal(old, row) {
			e.insert = append(e.insert, row)
		} else {
			want[k] = old // the row that the table holds
		}
	}
	for k, row := range have {
		if _, ok := want[k]; !ok {
			e.remove = append(e.remove, row)
		}
	}
	return e
}

func (e edit[T]) empty() bool { return len(e.insert) == 0 && len(e.remove) == 0 }

// write can't fail: the table is in the transaction, and rows are new.
func (e edit[T]) write(txn statedb.WriteTxn, table statedb.RWTable[*T]) {
	for _, row := range e.insert {
		if _, _, err := table.Insert(txn, row); err != nil {
			panic(err)
		}
	}
	for _, row := range e.remove {
		if _, _, err := table.Delete(txn, row); err != nil {
			panic(err)
		}
	}
}
