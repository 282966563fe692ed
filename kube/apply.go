package kube

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
)

// quiet is how long changes are collected: a rollout is hundreds of them.
const quiet = 5 * time.Millisecond

// pending is what the tables don't have yet of a kind.
type pending struct {
	// items are the newest versions; nil: deleted.
	items map[cluster.Key]*item
	// all says that there are no others.
	all bool
}

// version is the newest of the policies' in it.
func (p *pending) version() (newest uint64) {
	for _, i := range p.items {
		if i != nil {
			newest = max(newest, i.version)
		}
	}
	return newest
}

// change notes what the server said of a kind.
func (s *Source) change(k *kind, f func(*pending)) {
	s.mu.Lock()
	p := s.pending[k]
	if p == nil {
		p = &pending{items: map[cluster.Key]*item{}}
		s.pending[k] = p
	}
	f(p)
	s.mu.Unlock()
	s.poke()
}

// poke makes the writer look.
func (s *Source) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// apply writes what changes, until ctx ends. It begins when all that the server
// has is known: rows of one kind mean little, and wrong things, without those of
// another.
func (s *Source) apply(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(quiet):
		}
		if todo := s.take(); todo != nil {
			s.commit(todo)
		}
	}
}

// take is what there is to write; nil before all is known.
func (s *Source) take() map[*kind]*pending {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.synced {
		for _, k := range s.kinds {
			if !s.states[k].known() {
				return nil
			}
		}
	}
	todo := s.pending
	s.pending = map[*kind]*pending{}
	return todo
}

// commit makes the tables what was said, in one transaction.
func (s *Source) commit(todo map[*kind]*pending) {
	txn := s.write()
	changes, faulty, version := 0, false, uint64(0)
	for _, k := range s.kinds {
		if p := todo[k]; p != nil {
			n, f := s.commitKind(txn, k, p)
			changes, faulty, version = changes+n, faulty || f, max(version, p.version())
		}
	}
	revision := s.Policies.Policies.Revision(txn)
	first := s.initialized != nil
	for _, done := range s.initialized {
		done(txn)
	}
	s.initialized = nil
	if changes == 0 && !first {
		txn.Abort()
	} else {
		txn.Commit()
	}
	if faulty {
		s.problems.Replace(s.refused())
	}
	s.reached(version, revision)
	if first {
		s.mu.Lock()
		s.synced = true
		s.mu.Unlock()
		s.Log.Info("the API server has told all", "server", s.Server.address(), "rows", changes)
	}
	if first || faulty {
		s.tell()
	}
}

// commitKind reports how many rows it changed, and whether what is refused is
// another than before.
func (s *Source) commitKind(txn statedb.WriteTxn, k *kind, p *pending) (changes int, faulty bool) {
	change := func(did bool) {
		if did {
			changes++
		}
	}
	gone := func(key cluster.Key) {
		change(k.rows.remove(txn, key))
		if s.faults[k][key] != nil {
			delete(s.faults[k], key)
			faulty = true
		}
	}
	if p.all {
		for _, key := range slices.AppendSeq(k.rows.keys(txn), maps.Keys(s.faults[k])) {
			if p.items[key] == nil {
				gone(key)
			}
		}
	}
	for key, i := range p.items {
		switch {
		case i == nil:
			gone(key)
		case len(i.faults) > 0:
			change(k.rows.refuse(txn, key, i, s.Now()))
			faulty = faulty || !slices.Equal(s.faults[k][key], i.faults)
			s.faults[k][key] = i.faults
		default:
			change(k.rows.put(txn, i.row))
			faulty = faulty || s.faults[k][key] != nil
			delete(s.faults[k], key)
		}
	}
	return changes, faulty
}

// refused are all faults as problems.
func (s *Source) refused() (list []*cluster.Problem) {
	for k, faults := range s.faults {
		for key, all := range faults {
			for _, f := range all {
				list = append(list, &cluster.Problem{File: Origin, Object: k.Kind + " " + key.String(), Field: f.Field,
					Reason: f.Reason})
			}
		}
	}
	return list
}
