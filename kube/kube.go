// Package kube is a source of cluster state: a Kubernetes API server, watched.
// It fills the tables that a directory of manifests fills (package manifests),
// by the same functions, and is the only one that knows client-go.
//
// Nothing is written before all that the server has is known. Nothing that was
// written goes because the server is away. An object that is wrong is refused by
// itself; its last good version stays in force, and where there is none, what is
// understood of it, closed.
package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cilium/statedb"
	"golang.org/x/sync/errgroup"

	"myelin/cluster"
	"myelin/policy"
)

// Origin is what rows and problems of this source say of where they come from.
const Origin = "kubernetes"

// Params are what a Source needs.
type Params struct {
	DB       *statedb.DB
	Tables   cluster.Tables
	Policies policy.Tables
	// LastGood has the policies that were in force when the agent ended; nil: none.
	LastGood *policy.LastGood
	Server   *Server
	Log      *slog.Logger
	// Now is the clock of rows and of the state.
	Now func() time.Time
	// ClusterPool takes podCIDRs of nodes from CiliumNodes, and none from Nodes.
	ClusterPool bool
	// SecretsNamespace is the namespace whose Secrets are read; empty: none are.
	SecretsNamespace string
	// NodeKeys takes public keys of nodes from CiliumNodes, and from Nodes where those have none.
	NodeKeys bool
}

// Source keeps tables equal to what an API server has.
type Source struct {
	Params
	kinds    []*kind
	problems *cluster.Problems
	// initialized marks the tables; nil after that.
	initialized []func(statedb.WriteTxn)
	// faults are what is wrong with the newest versions, by kind.
	faults map[*kind]map[cluster.Key]cluster.FieldErrors

	mu      sync.Mutex
	pending map[*kind]*pending
	states  map[*kind]*kindState
	synced  bool
	changed chan struct{} // closed when the state changes
	// version is the newest of a policy that is in the tables, and revision
	// that of the table of policies when it came to be.
	version  uint64
	revision statedb.Revision
	wake     chan struct{} // the writer has something to do
}

// New creates the table "kubernetes-problems" and registers the source as an
// initializer of the cluster and policy tables: they count as initialized with
// the first rows, which come all at once.
func New(p Params) (*Source, error) {
	s := &Source{
		Params: p, faults: map[*kind]map[cluster.Key]cluster.FieldErrors{}, pending: map[*kind]*pending{},
		states:  map[*kind]*kindState{},
		changed: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	s.kinds = kinds(p.Tables, p.Policies, p.LastGood)
	if p.ClusterPool || p.NodeKeys {
		s.kinds = withPool(s.kinds, p.Tables, p.ClusterPool)
	}
	if p.SecretsNamespace != "" {
		s.kinds = append(s.kinds, secretKind(p.Tables, p.SecretsNamespace))
	}
	for _, k := range s.kinds {
		s.states[k] = &kindState{found: make(chan struct{}, 1)}
		s.faults[k] = map[cluster.Key]cluster.FieldErrors{}
		k.known = func(row any) any { return k.rows.known(p.DB.ReadTxn(), row) }
	}
	var err error
	if s.problems, err = cluster.NewProblems(p.DB, "kubernetes-problems", p.Log, p.Now); err != nil {
		return nil, err
	}
	txn := s.write()
	defer txn.Commit()
	s.initialized = p.Policies.RegisterSource(txn, p.Tables, Origin)
	return s, nil
}

// write begins a transaction with all tables that the source fills.
func (s *Source) write() statedb.WriteTxn { return s.Policies.Write(s.DB, s.Tables) }

// Problems lists what was refused.
func (s *Source) Problems() statedb.Table[*cluster.Problem] { return s.problems }

// Run follows the server until ctx ends. It must be called once.
func (s *Source) Run(ctx context.Context) error {
	clients, err := s.Server.clients()
	if err != nil {
		return fmt.Errorf("talk to %s: %w", s.Server.address(), err)
	}
	ctx = withLogger(ctx, s.Log)
	jobs, ctx := errgroup.WithContext(ctx)
	jobs.Go(func() error { return s.apply(ctx) })
	for _, k := range s.kinds {
		jobs.Go(func() error {
			s.follow(ctx, k, clients)
			return nil
		})
	}
	jobs.Go(func() error {
		s.followDefinitions(ctx, clients)
		return nil
	})
	jobs.Go(func() error {
		s.Server.contact.tell(ctx, s.contact)
		return nil
	})
	return jobs.Wait()
}
