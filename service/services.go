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
	"myelin/table/ledger"
)

// Params are what Services need.
type Params struct {
	DB     *statedb.DB
	Tables cluster.Tables
	Config Config
	// Node is this node's name.
	Node string
	// Dir keeps numbers and states over a restart of the agent; empty: nothing
	// does.
	Dir string
	// LastService and LastBackend are the largest numbers that the kernel has
	// from an agent before us, which nobody else must get if the files are lost.
	LastService, LastBackend uint32
	// Held are the addresses that the kernel has from an agent before us, each
	// with the number of the Service that it is a frontend of. See HeldAddresses.
	Held map[L4Addr]uint32
	Log  *slog.Logger
}

// Services keeps the tables equal to what the cluster asks of this node.
type Services struct {
	Params
	Desired Tables
	done    []func(statedb.WriteTxn) // nil once the tables are initialized

	mu      sync.Mutex
	states  map[L4Addr]State // what is said of backends; replaced, never changed
	changed []L4Addr
	wake    chan struct{}

	// The rest belongs to Run.
	builder    builder
	serviceIDs *ledger.Numbers[cluster.Key]
	backendIDs *ledger.Numbers[L4Addr]
	have       map[cluster.Key]*holding
	claims     map[L4Addr][]cluster.Key
	sliceOf    map[cluster.Key]string // the Service that a slice is of
}

// holding is what a Service has in the tables, or would have but for others.
type holding struct {
	rank      rank
	frontends []L4Addr
	endpoints []endpoint
}

// New creates the tables. State files that can't be used are logged and begun
// anew: then numbers change, and nothing else does. Ones that can't be written
// are an error.
func New(p Params) (*Services, error) {
	t, err := NewTables(p.DB)
	if err != nil {
		return nil, err
	}
	s := &Services{
		Params: p, Desired: t, states: map[L4Addr]State{}, wake: make(chan struct{}, 1),
		have: map[cluster.Key]*holding{}, claims: map[L4Addr][]cluster.Key{}, sliceOf: map[cluster.Key]string{},
	}
	s.builder = builder{Config: p.Config, Facts: Facts{Name: p.Node}, state: s.operatorState}
	if err := s.loadStates(); err != nil {
		p.Log.Error("states of backends that an operator said are forgotten", "error", err)
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
	s.done = append(s.done,
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
		s.Log.Error("services may change their numbers with the next start", "error", err)
	}
	return wait
}

// ready reports whether the cluster is known, or what to wait for.
func (s *Services) ready(r statedb.ReadTxn) (bool, <-chan struct{}) {
	if s.done == nil {
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

// facts takes what this node's object says.
func (u *update) facts(n *cluster.Node, deleted bool) {
	next := Facts{Name: u.Node}
	if !deleted {
		next.Zone, next.Labels = n.Labels[zoneLabel], n.Labels
	}
	if u.builder.Facts.Zone == next.Zone && maps.Equal(u.builder.Facts.Labels, next.Labels) {
		return
	}
	u.builder.Facts = next
	for obj := range u.Tables.Services.All(u.cluster) {
		u.touch(obj.Key())
	}
	for _, k := range slices.Collect(maps.Keys(u.have)) {
		u.touch(k)
	}
}
