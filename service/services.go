package service

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/internal/table/ledger"
)

// Params are what Services need.
type Params struct {
	DB     *statedb.DB
	Tables cluster.Tables
	Config Config
	// Node is the name of this node.
	Node string
	// Dir keeps numbers and states over a restart of the agent. If it is empty, they are not kept.
	Dir string
	// LastService and LastBackend are the largest numbers that the previous agent wrote to the kernel. They are not
	// reused if the files are lost.
	LastService, LastBackend uint32
	// Held are the frontends that the previous agent wrote to the kernel, with the numbers of their Services.
	Held map[L4Addr]uint32
	Log  *slog.Logger
}

// Services keeps the tables equal to what the objects of the cluster require on this node.
type Services struct {
	Params
	Desired      Tables
	initializers []func(statedb.WriteTxn) // of the tables; nil after they are initialized

	mu      sync.Mutex
	states  map[L4Addr]State // states of backends that operators have set; replaced, never modified
	changed []L4Addr
	wake    chan struct{}

	// The rest is used by Run alone.
	builder    builder
	serviceIDs *ledger.Numbers[cluster.Key]
	backendIDs *ledger.Numbers[L4Addr]
	claimedBy  map[cluster.Key]*claimed
	claims     map[L4Addr][]cluster.Key
	sliceOf    map[cluster.Key]string // the Service of each slice
}

// claimed is what a Service claims in the tables, whether or not others have it.
type claimed struct {
	rank      rank
	frontends []L4Addr
	endpoints []endpoint
}

// New creates the tables. Files that cannot be read are logged and started again; only numbers change then. Files that
// cannot be written are an error.
func New(p Params) (*Services, error) {
	t, err := NewTables(p.DB)
	if err != nil {
		return nil, err
	}
	s := &Services{
		Params: p, Desired: t, states: map[L4Addr]State{}, wake: make(chan struct{}, 1),
		claimedBy: map[cluster.Key]*claimed{}, claims: map[L4Addr][]cluster.Key{}, sliceOf: map[cluster.Key]string{},
	}
	s.builder = builder{Config: p.Config, node: facts{Name: p.Node}, state: s.operatorState}
	if err := s.loadStates(); err != nil {
		p.Log.Error("states of backends that operators have set are lost", "error", err)
	}
	var bad1, bad2, err1, err2 error
	s.serviceIDs, bad1, err1 = ledger.NewNumbers[cluster.Key](s.path("services.json"), p.LastService)
	s.backendIDs, bad2, err2 = ledger.NewNumbers[L4Addr](s.path("backends.json"), p.LastBackend)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if err := errors.Join(bad1, bad2); err != nil {
		p.Log.Warn("services get new numbers", "error", err)
	}
	txn := p.DB.WriteTxn(t.all()...)
	s.initializers = append(s.initializers,
		t.Services.RegisterInitializer(txn, "cluster"), t.Frontends.RegisterInitializer(txn, "cluster"),
		t.Backends.RegisterInitializer(txn, "cluster"), t.Checks.RegisterInitializer(txn, "cluster"))
	txn.Commit()
	return s, nil
}

// Run follows the cluster tables until ctx ends. It must be called once.
func (s *Services) Run(ctx context.Context) error {
	f, err := s.Tables.Follow(s.DB)
	if err != nil {
		return err
	}
	defer s.Close()
	for {
		wait := s.Step(f)
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-wait[0]:
		case <-wait[1]:
		case <-wait[2]:
		case <-wait[3]:
		case <-wait[4]:
		}
	}
}

// Close closes the files of numbers, at the end of Run or of a test that calls Step.
func (s *Services) Close() {
	s.serviceIDs.Close()
	s.backendIDs.Close()
}

// Step brings the tables up to date with the cluster, and returns the channels of which one closes at the next change.
// Run calls it; tests call it instead of Run.
func (s *Services) Step(f *cluster.Follower) [5]<-chan struct{} {
	var wait [5]<-chan struct{}
	r := s.DB.ReadTxn()
	changes := f.Next(r)
	copy(wait[:], changes.More[:])
	u := s.begin(r)
	for c := range changes.Nodes {
		if c.Object.Name == s.Node {
			u.facts(c.Object, c.Deleted)
		}
	}
	for c := range changes.Services {
		u.touch(c.Object.Key())
	}
	for c := range changes.Slices {
		u.slice(c.Object, c.Deleted)
	}
	for c := range changes.Pods {
		u.pod(c.Object)
	}
	u.states()
	var ready bool
	ready, wait[4] = s.ready(r)
	if err := u.commit(ready); err != nil {
		s.Log.Error("services may have other numbers after a restart", "error", err)
	}
	return wait
}

// ready reports whether the cluster's tables are initialized, or what to wait for.
func (s *Services) ready(r statedb.ReadTxn) (bool, <-chan struct{}) {
	if s.initializers == nil {
		return true, nil
	}
	t := s.Tables
	for _, table := range []statedb.TableMeta{t.Services, t.Slices, t.Pods, t.Nodes} {
		if ok, wait := table.Initialized(r); !ok {
			return false, wait
		}
	}
	return true, nil
}

// facts updates the properties of this node.
func (u *update) facts(n *cluster.Node, deleted bool) {
	next := facts{Name: u.Node}
	if !deleted {
		next.Zone, next.Labels = n.Labels[zoneLabel], n.Labels
	}
	if u.builder.node.Zone == next.Zone && maps.Equal(u.builder.node.Labels, next.Labels) {
		return
	}
	u.builder.node = next
	for obj := range u.Tables.Services.All(u.cluster) {
		u.touch(obj.Key())
	}
	for _, k := range slices.Collect(maps.Keys(u.claimedBy)) {
		u.touch(k)
	}
}
