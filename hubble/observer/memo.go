package observer

import (
	"sync"

	"github.com/cilium/statedb"
)

// revisioned is a table, whatever its rows are.
type revisioned interface {
	Revision(statedb.ReadTxn) statedb.Revision
}

// memo remembers what was looked up in tables until one of them changes. It may be used concurrently.
type memo[K comparable, V any] struct {
	tables []revisioned

	mu    sync.RWMutex
	of    []statedb.Revision // of the tables, when known was looked up
	known map[K]V
}

// memoSize bounds a memo. It is emptied when it is full.
const memoSize = 4096

func newMemo[K comparable, V any](tables ...revisioned) *memo[K, V] {
	return &memo[K, V]{tables: tables, of: make([]statedb.Revision, len(tables)), known: map[K]V{}}
}

// get returns what look finds in the tables as txn has them.
func (m *memo[K, V]) get(txn statedb.ReadTxn, key K, look func() V) V {
	m.mu.RLock()
	v, ok := m.known[key]
	ok = ok && m.current(txn)
	m.mu.RUnlock()
	if ok {
		return v
	}
	v = look()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.current(txn) || len(m.known) >= memoSize {
		clear(m.known)
		for i, t := range m.tables {
			m.of[i] = t.Revision(txn)
		}
	}
	m.known[key] = v
	return v
}

func (m *memo[K, V]) current(txn statedb.ReadTxn) bool {
	for i, t := range m.tables {
		if m.of[i] != t.Revision(txn) {
			return false
		}
	}
	return true
}
