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
	"myelin/service/serviceapi/probe"
)

// Params are what a Manager needs.
type Params struct {
	DB     *statedb.DB
	Tables cluster.Tables
	// Dir keeps a file for each Service.
	Dir string
	Log *slog.Logger
	Now func() time.Time
	// Forwarding is the mode of Services without one.
	Forwarding service.Forwarding
}

// Manager keeps the Services that are programmed by API. It is safe for
// concurrent use.
type Manager struct {
	params Params
	// Services are those that are programmed, Probes the results of their health checks.
	Services statedb.RWTable[*Service]
	Probes   statedb.RWTable[*Probe]

	store  store
	runner *probe.Runner[probeKey]
	flows  probe.Flows // nil: all checks are direct

	mu               sync.Mutex // held for each change: of the file, then rows, then checks
	failing          map[probeKey]bool
	unknown          map[probeKey]bool
	reported         []probeKey      // results that are not in slices yet
	stale            map[string]bool // Services whose slices change with these
	wake             chan struct{}
	firstResultsDone chan struct{} // closed when unknown is empty for the first time
	initializers     []func(statedb.WriteTxn)
}

// parallel bounds the number of checks at a time. It is more than a node needs that is otherwise idle, and low enough
// that a thousand backends without a response do no harm.
const parallel = 128

// firstResults is how long the rows of the start wait for the first results of health checks. New flows must not go to
// a backend that was known to fail before.
const firstResults = 2 * time.Second

// errTaken and errUnknown are the errors of changes that contradict what is programmed.
var (
	errTaken   = errors.New("is taken")
	errUnknown = errors.New("is not programmed")
)

// New creates the tables "api-services" and "health-probes" and loads the stored Services. The cluster's Services and
// EndpointSlices are not initialized before Run has marked them so. A file that cannot be used is logged and left as it
// is.
func New(p Params) (*Manager, error) {
	m := &Manager{
		params: p, store: store{p.Dir}, failing: map[probeKey]bool{}, unknown: map[probeKey]bool{},
		stale: map[string]bool{}, wake: make(chan struct{}, 1), firstResultsDone: make(chan struct{}),
	}
	m.runner = probe.NewRunner(probe.Params[probeKey]{Run: m.check, Report: m.report, Parallel: parallel})
	var err1, err2 error
	m.Services, err1 = statedb.NewTable(p.DB, "api-services", serviceNames())
	m.Probes, err2 = statedb.NewTable(p.DB, "health-probes", probeKeys(), probeBackends())
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("create tables of Services by API: %w", err)
	}
	kept, bad, err := m.store.load()
	if err != nil {
		return nil, err
	}
	for _, err := range bad {
		p.Log.Error("a stored Service is not served", "error", err)
	}
	txn := m.begin()
	defer txn.Abort()
	m.initializers = []func(statedb.WriteTxn){
		p.Tables.Services.RegisterInitializer(txn, "service API"),
		p.Tables.Slices.RegisterInitializer(txn, "service API"),
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
		m.updateChecks(nil, s)
	}
	m.signalFirstResults()
	m.mu.Unlock()
	late := time.NewTimer(firstResults)
	defer late.Stop()
	firstResultsDone := m.firstResultsDone
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
			time.Sleep(reportDelay)
			if err := m.flush(); err != nil {
				m.params.Log.Error("results of health checks are lost", "error", err)
			}
			continue
		case <-firstResultsDone:
		case <-late.C:
		}
		firstResultsDone = nil
		txn := m.begin()
		for _, done := range m.initializers {
			done(txn)
		}
		m.initializers = nil
		txn.Commit()
	}
}

// reportDelay is how long results are collected, because slices are written as a whole, and many backends may fail at
// once.
const reportDelay = 10 * time.Millisecond

// flush writes the results of health checks since the last time to the slices.
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
	for _, key := range m.reported {
		delete(m.unknown, key)
	}
	clear(m.stale)
	m.reported = nil
	m.signalFirstResults()
	return nil
}

// signalFirstResults tells Run when every backend has a result.
func (m *Manager) signalFirstResults() {
	if len(m.unknown) > 0 {
		return
	}
	select {
	case <-m.firstResultsDone:
	default:
		close(m.firstResultsDone)
	}
}

// Counts are how many health checks passed and failed since the start.
func (m *Manager) Counts() (passed, failed uint64) { return m.runner.Counts() }

// Upsert programs a Service under its name and replaces what that was before. Created is kept, or is the current time.
// An invalid Service is cluster.FieldErrors; a frontend of another Service is an error that wraps errTaken. When Upsert
// returns, the Service is on disk and in the tables.
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
				return false, fmt.Errorf("frontends[%d]: %s %w: it is %s's", i, f, errTaken, other.Name)
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

// put stores a Service, and then writes its rows.
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
	m.updateChecks(old, next)
	return nil
}

// Delete deletes a Service. If there is none, the error wraps errUnknown.
func (m *Manager) Delete(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	old, _, ok := m.Services.Get(m.params.DB.ReadTxn(), byName(name))
	if !ok {
		return fmt.Errorf("name: Service %s %w", name, errUnknown)
	}
	if err := m.store.remove(name); err != nil {
		return err
	}
	txn := m.begin()
	defer txn.Abort()
	if err := m.deleteRows(txn, old); err != nil {
		return err
	}
	txn.Commit()
	m.updateChecks(old, nil)
	return nil
}

// SetWeight changes the weight of a backend, in the Service of that name, or without a name in all that have the
// backend. If none has it, the error wraps errUnknown.
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
		return fmt.Errorf("backend %s of Service %s %w", backend, name, errUnknown)
	case !found:
		const hint = "the weights of Kubernetes' Services are annotations of their EndpointSlices"
		return fmt.Errorf("backend %s %w: "+hint, backend, errUnknown)
	}
	return nil
}

// updateChecks makes the runner check the backends of next instead of those of old. Either may be nil.
func (m *Manager) updateChecks(old, next *Service) {
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
	m.signalFirstResults()
}

func (s *Service) probe(b Backend) probeKey {
	return probeKey{s.Name, service.L4Addr{AddrPort: b.Address, Protocol: s.protocol()}}
}

// report records the result of a health check. The Service may have been changed in the meantime.
func (m *Manager) report(key probeKey, job probe.Job, passing bool, last probe.Result) {
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
	next.Health, next.Error, next.Via = Failing, "", last.Via
	if passing {
		next.Health = Passing
	}
	if last.Err != nil {
		next.Error = last.Err.Error()
	}
	if next.Health != old.Health {
		next.Since = m.params.Now().UTC()
	}
	if _, _, err := m.Probes.Insert(txn, &next); err != nil {
		m.params.Log.Error("the result of a health check is lost", "service", s.Name, "backend", key.backend,
			"error", err)
		return
	}
	txn.Commit()
	if (old.Health == Failing) != (next.Health == Failing) {
		m.stale[s.Name], m.failing[key] = true, next.Health == Failing
		m.params.Log.Info("health of a backend changed", "service", s.Name, "backend", key.backend, "health",
			next.Text())
	}
	m.reported = append(m.reported, key)
	select {
	case m.wake <- struct{}{}:
	default:
	}
}
