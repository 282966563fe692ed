// Package manifests is a source of cluster state: a directory of Kubernetes
// YAML, watched. It fills the tables of package cluster with the Nodes,
// Namespaces, Pods, Services, EndpointSlices and Secrets that it finds, as a watch of an
// API server would, and those of package policy with policies and CIDR groups.
//
// An object that is wrong is refused by itself, with a cluster.Problem that names file,
// object and field; its last good version stays in force, and everything else
// goes on.
package manifests

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/policy"
)

const (
	// quiet and patience bound how long changes are collected before they are
	// read: until nothing happened for quiet, at most for patience.
	quiet    = 15 * time.Millisecond
	patience = 50 * time.Millisecond
	// period is the time between rescans that catch what the watch missed.
	period = 10 * time.Second
	// soon is when to look again for a directory that is missing, for a file
	// that is empty or being written, and where nothing can be watched.
	soon = 500 * time.Millisecond
)

// Params are what a Source needs.
type Params struct {
	DB       *statedb.DB
	Tables   cluster.Tables
	Policies policy.Tables
	// LastGood has the policies that were in force when the agent ended; nil: none.
	LastGood *policy.LastGood
	// Dir is the directory; it need not exist yet.
	Dir string
	Log *slog.Logger
	// Now is the clock of cluster.Problem.Since.
	Now func() time.Time
}

// Source keeps tables equal to a directory.
type Source struct {
	Params
	problems    *cluster.Problems
	seen        statedb.RWTable[*File]
	initialized []func(statedb.WriteTxn) // nil after the first full read
	files       map[string]*file         // by path below Dir
	applied     rows
	inForce     map[slot]version      // as the last merge left it
	recalled    map[string][]document // what files held when the agent ended
	copies      map[slot][]version    // what files say
	found       *tree                 // what the last walk found
	flawless    bool                  // nothing is wrong in any file
	unused      atomic.Pointer[map[string]int]
}

// New creates the tables "manifest-problems" and "manifest-files", and registers the source as an
// initializer of the cluster and policy tables: they count as initialized once Run has
// read the whole directory.
func New(p Params) (*Source, error) {
	p.Dir = filepath.Clean(p.Dir)
	s := &Source{Params: p, files: map[string]*file{}, applied: newRows(), inForce: map[slot]version{},
		recalled: map[string][]document{}}
	s.recall()
	var err error
	if s.problems, err = cluster.NewProblems(p.DB, "manifest-problems", p.Log, func() time.Time {
		return s.Now()
	}); err != nil {
		return nil, err
	}
	if s.seen, err = newFiles(p.DB); err != nil {
		return nil, err
	}
	txn := s.write()
	s.initialized = p.Policies.RegisterSource(txn, p.Tables, "manifests")
	txn.Commit()
	return s, nil
}

// write begins a transaction with all tables that the source fills.
func (s *Source) write() statedb.WriteTxn { return s.Policies.Write(s.DB, s.Tables) }

// Problems lists what was refused.
func (s *Source) Problems() statedb.Table[*cluster.Problem] { return s.problems }

// Unused counts objects of kinds that Kubernetes or Cilium has and that are not
// acted on yet, by "apiVersion/Kind".
func (s *Source) Unused() map[string]int {
	if m := s.unused.Load(); m != nil {
		return maps.Clone(*m)
	}
	return nil
}

// Run reads the directory and follows its changes until ctx ends. It must be
// called once.
func (s *Source) Run(ctx context.Context) error {
	w, err := newWatcher(s.Dir)
	if err != nil {
		// Polling is slower, and the same otherwise.
		s.Log.Warn("manifests can't be watched, and are polled", "dir", s.Dir, "error", err)
	}
	defer w.close()
	timer := time.NewTimer(period)
	defer timer.Stop()
	changed := map[string]bool{}
	for {
		again, enough := s.few(changed)
		if !enough {
			again = s.refresh(w, changed)
		}
		clear(changed)
		wait := period
		if again || w == nil {
			wait = soon
		}
		timer.Reset(wait)
		lost, err := w.wait(ctx, timer.C, changed)
		if err != nil {
			return fmt.Errorf("watch manifests in %s: %w", s.Dir, err)
		}
		if ctx.Err() != nil {
			return nil
		}
		if lost {
			s.forget()
			clear(changed)
		}
	}
}

// forget makes the next refresh read every file: where events were lost,
// nothing that is known can be trusted.
func (s *Source) forget() {
	for _, f := range s.files {
		f.stamp = stamp{}
	}
}

// refresh reads what changed on disk and applies it. It reports whether
// something is to be looked at again soon.
func (s *Source) refresh(w *watcher, changed map[string]bool) (again bool) {
	found, faults, err := s.walk(w)
	if err != nil {
		s.found = nil
		// Without its root, the source knows nothing, and nothing is not an
		// empty cluster: what is in force stays.
		reason := fmt.Sprintf("can't be read, waiting for it: %v", err)
		s.apply(s.applied, []*cluster.Problem{{File: s.Dir, Reason: reason}}, false)
		return true
	}
	again = w.settle(found)
	s.found = found
	for rel := range s.files {
		if _, ok := found.files[rel]; !ok && !found.unreadable(rel) {
			delete(s.files, rel)
		}
	}
	for rel, docs := range s.recalled {
		if _, ok := found.files[rel]; !ok && found.unreadable(rel) {
			s.files[rel] = &file{rel: rel, docs: docs, failing: "its directory can't be read"}
		}
	}
	for _, rel := range slices.Sorted(maps.Keys(found.files)) {
		at := found.files[rel]
		f := s.files[rel]
		if f == nil {
			f = &file{rel: rel, docs: s.recalled[rel]}
			s.files[rel] = f
		}
		if changed[at.path] || changed[at.target] {
			f.stamp = stamp{}
		}
		again = f.refresh(at, s.Now()) || again
	}
	clear(s.recalled)
	s.count()
	desired, problems := s.merge()
	s.flawless = s.flawless && len(faults) == 0
	s.apply(desired, append(problems, faults...), true)
	s.tell(maps.Keys(s.files))
	return again
}

func (s *Source) count() {
	unused := map[string]int{}
	for _, f := range s.files {
		for kind, n := range f.unused {
			unused[kind] += n
		}
	}
	s.unused.Store(&unused)
}
