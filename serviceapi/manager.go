package serviceapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/service"
	"myelin/serviceapi/probe"
)

// Params are what a Gateway needs.
type Params struct {
	DB     *statedb.DB
	Tables cluster.Tables
	// Dir keeps a file for each Service.
	Dir string
	Log *slog.Logger
	Now func() time.Time
}

// Manager keeps the Services that are programmed by API. It is safe for
// concurrent use.
type Manager struct {
	params Params
	// Services are those that are programmed, Probes what health checks found.
	Services statedb.RWTable[*Service]
	Probes   statedb.RWTable[*Probe]

	store  store
	runner *probe.Runner[probeKey]

	mu       sync.Mutex // one change at a time: file, then rows, then checks
	failing  map[probeKey]bool
	unknown  map[probeKey]bool
	answered []probeKey      // that slices don't have yet
	stale    map[string]bool // Services of them whose slices change
	wake     chan struct{}
	settled  chan struct{} // closed when unknown was empty once
	done     []func(statedb.WriteTxn)
}

// parallel bounds how many backends are asked at a time: more than an idle node
// needs, and few enough that a thousand that don't answer hurt nobody.
const parallel = 128

// patience is how long the rows of the start wait for the first answers of
// backends: new flows must not go to one that was known to fail before.
const patience = 2 * time.Second

// ErrTaken and ErrUnknown are what changes fail with that contradict what is
// programmed.
var (
	ErrTaken   = errors.New("is taken")
	ErrUnknown = errors.New("is not programmed")
)

// New makes the tables "api-services" and "health-probes" and loads what is
// kept. The cluster's Services and EndpointSlices don't count as initialized
// before Run says so. A file that can't be used is logged, and left as it is.
func New(p Params) (*Manager, error) {
	m := &Manager{params: p, store: store{p.Dir}, failing: map[probeKey]bool{}, unknown: map[probeKey]bool{}, stale: map[string]bool{},
		wake: make(chan struct{}, 1), settled: make(chan struct{})}
	m.runner = probe.NewRunner(probe.Params[probeKey]{Ask: probe.Ask, Report: m.report, Parallel: parallel})
	var err1, err2 error
	m.Services, err1 = statedb.NewTable(p.DB, "api-services", serviceNames())
	m.Probes, err2 = statedb.NewTable(p.DB, "health-probes", probeKeys(), probeBackends())
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("create tables of the API's Services: %w", err)
	}
	kept, bad, err := m.store.load()
	if err != nil {
		return nil, err
	}
	for _, err := range bad {
		p.Log.Error("a Service that was programmed is not served", "error", err)
	}
	txn := m.begin()
	defer txn.Abort()
	m.done = []func(statedb.WriteTxn){
		p.Tables.Services.RegisterInitializer(txn, "service API"), p.Tables.Slices.RegisterInitializer(txn, "service API"),
		m.Services.RegisterInitializer(txn, "service API"),
	}
	for _, s := range kept {
		if err := m.apply(txn, s); err != nil {
			return nil, err
		}
	}
	txn.Commit()
	return m, nil
}

// begin locks all tables that change together.
func (m *Manager) begin() statedb.WriteTxn {
	return m.params.DB.WriteTxn(m.Services, m.Probes, m.params.Tables.Services, m.params.Tables.Slices)
}

// Run checks backends until ctx ends. It must be called once.
func (m *Manager) Run(ctx context.Context) error {
	defer m.runner.Close()
	m.mu.Lock()
	for s := range m.Services.All(m.params.DB.ReadTxn()) {
		m.ask(nil, s)
	}
	m.settle()
	m.mu.Unlock()
	late := time.NewTimer(patience)
	defer late.Stop()
	settled := m.settled
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
			time.Sleep(gather)
			if err := m.flush(); err != nil {
				m.params.Log.Error("what health checks found is lost", "error", err)
			}
			continue
		case <-settled:
		case <-late.C:
		}
		settled = nil
		txn := m.begin()
		for _, done := range m.done {
			done(txn)
		}
		m.done = nil
		txn.Commit()
	}
}

// gather is how long answers are collected: slices are written as a whole, and
// many backends may fail at once.
const gather = 10 * time.Millisecond

// flush writes what checks found since the last time to the slices.
func (m *Manager) flush() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	txn := m.begin()
	defer txn.Abort()
	for name := range m.stale {
		if s, _, ok := m.Services.Get(txn, byName(name)); ok {
			if err := m.writeSlices(txn, s); err != nil {
				return fmt.Errorf("write EndpointSlices of Service %s: %w", name, err)
			}
		}
	}
	txn.Commit()
	for _, key := range m.answered {
		delete(m.unknown, key)
	}
	clear(m.stale)
	m.answered = nil
	m.settle()
	return nil
}

// settle tells Run when nothing is unknown any more.
func (m *Manager) settle() {
	if len(m.unknown) > 0 {
		return
	}
	select {
	case <-m.settled:
	default:
		close(m.settled)
	}
}

// Counts are how many answers of backends were good and bad since the start.
func (m *Manager) Counts() (passed, failed uint64) { return m.runner.Counts() }

// Upsert programs a Service under its name, whatever that was before; Created
// is kept, or now. What is wrong with it is cluster.FieldErrors; a frontend of
// another Service is an error that wraps ErrTaken. When it returns, the Service
// is on the disk and in the tables.
func (m *Manager) Upsert(s *Service) (created bool, err error) {
	if err := check(s); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	txn := m.params.DB.ReadTxn()
	for other := range m.Services.All(txn) {
		for i, f := range s.Frontends {
			if other.Name != s.Name && slices.Contains(other.Frontends, f) {
				return false, fmt.Errorf("frontends[%d]: %s %w: it is %s's", i, f, ErrTaken, other.Name)
			}
		}
	}
	old, _, known := m.Services.Get(txn, byName(s.Name))
	next := *s
	if next.Created = m.params.Now().UTC(); known {
		if next.Created = old.Created; old.equal(&next) {
			return false, nil
		}
	}
	return !known, m.put(old, &next)
}

// put keeps a Service, and then has it served.
func (m *Manager) put(old, next *Service) error {
	if err := m.store.write(next); err != nil {
		return err
	}
	txn := m.begin()
	defer txn.Abort()
	if err := m.apply(txn, next); err != nil {
		return err
	}
	txn.Commit()
	m.ask(old, next)
	return nil
}

// Delete forgets a Service; one that isn't there is an error that wraps
// ErrUnknown.
func (m *Manager) Delete(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, _, ok := m.Services.Get(m.params.DB.ReadTxn(), byName(name))
	if !ok {
		return fmt.Errorf("name: Service %s %w", name, ErrUnknown)
	}
	if err := m.store.remove(name); err != nil {
		return err
	}
	txn := m.begin()
	defer txn.Abort()
	if err := m.withdraw(txn, old); err != nil {
		return err
	}
	txn.Commit()
	m.ask(old, nil)
	return nil
}

// SetWeight gives a backend another weight, in the Service of that name, or
// without a name in all that have it. Where none has it, the error wraps
// ErrUnknown.
func (m *Manager) SetWeight(name string, backend service.L4Addr, weight uint16) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	found := false
	for s := range m.Services.All(m.params.DB.ReadTxn()) {
		at := s.backend(backend.AddrPort)
		if name != "" && s.Name != name || at < 0 || s.protocol() != backend.Protocol {
			continue
		}
		found = true
		if s.Backends[at].Weight == weight {
			continue
		}
		next := *s
		next.Backends = slices.Clone(s.Backends)
		next.Backends[at].Weight = weight
		if err := m.put(s, &next); err != nil {
			return err
		}
	}
	switch {
	case !found && name != "":
		return fmt.Errorf("backend %s of Service %s %w", backend, name, ErrUnknown)
	case !found:
		return fmt.Errorf("backend %s %w: the weights of Kubernetes' Services are annotations of their EndpointSlices", backend, ErrUnknown)
	}
	return nil
}

// ask makes the runner check the backends of next instead of those of old;
// either may be nil.
func (m *Manager) ask(old, next *Service) {
	want := map[probeKey]bool{}
	if next != nil && next.Check != nil {
		for _, b := range next.Backends {
			want[next.probe(b)] = true
			m.runner.Set(next.probe(b), &probe.Job{Backend: b.Address, Check: *next.Check})
		}
	}
	if old == nil {
		return
	}
	for _, b := range old.Backends {
		if key := old.probe(b); !want[key] {
			m.runner.Set(key, nil)
			delete(m.unknown, key)
			delete(m.failing, key)
		}
	}
	m.settle()
}

func (s *Service) probe(b Backend) probeKey {
	return probeKey{s.Name, service.L4Addr{AddrPort: b.Address, Protocol: s.protocol()}}
}

// report takes what a check found. It may be of a Service that is another one
// by now.
func (m *Manager) report(key probeKey, job probe.Job, passing bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	txn := m.params.DB.WriteTxn(m.Probes)
	defer txn.Abort()
	s, _, ok1 := m.Services.Get(txn, byName(key.service))
	old, _, ok2 := m.Probes.Get(txn, probeKeys().Query(key))
	if !ok1 || !ok2 || s.Check == nil || *s.Check != job.Check {
		return
	}
	next := *old
	next.Health, next.Error = Failing, ""
	if passing {
		next.Health = Passing
	}
	if err != nil {
		next.Error = err.Error()
	}
	if next.Health != old.Health {
		next.Since = m.params.Now().UTC()
	}
	if _, _, err := m.Probes.Insert(txn, &next); err != nil {
		m.params.Log.Error("what a health check found is lost", "service", s.Name, "backend", key.backend, "error", err)
		return
	}
	txn.Commit()
	if (old.Health == Failing) != (next.Health == Failing) {
		m.stale[s.Name], m.failing[key] = true, next.Health == Failing
		m.params.Log.Info("health of a backend changed", "service", s.Name, "backend", key.backend, "health", next.Text())
	}
	m.answered = append(m.answered, key)
	select {
	case m.wake <- struct{}{}:
	default:
	}
}
