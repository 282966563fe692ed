// Package engine keeps the kernel's policies equal to the tables: what changes there goes to a compiler, and what the
// compiler plans to the maps.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/endpoint"
	"myelin/internal/table"
	"myelin/internal/table/ledger"
	"myelin/l7/config"
	"myelin/policy"
	"myelin/policy/compile"
	"myelin/policy/identity"
	"myelin/policy/maps"
)

// Params are what an Engine needs.
type Params struct {
	DB         *statedb.DB
	Cluster    cluster.Tables
	Policies   policy.Tables
	Identities statedb.Table[*identity.Identity]
	Addresses  statedb.Table[*identity.Address]
	Endpoints  statedb.Table[*endpoint.Endpoint]
	// Node is this node's name.
	Node string
	// ClusterName is as in identity.Params.
	ClusterName string
	Config      policy.Config
	// Dir keeps numbers over a restart of the agent; empty: nothing does.
	Dir  string
	Maps *maps.Writer
	// Proxy is nil where there is none: what needs it is closed then.
	Proxy Proxy
	Log   *slog.Logger
	// PodWait is how long WaitPod waits for a pod's labels. Zero means 2 s.
	PodWait time.Duration
}

// Engine makes the kernel's policies what the tables say.
type Engine struct {
	Params
	// Realised has a row for each endpoint whose policies are in the kernel, and
	// Rules one for each rule of a policy.
	Realised statedb.RWTable[*policy.Realised]
	Rules    statedb.RWTable[*policy.RuleRow]

	peerNumbers, ruleNumbers *ledger.Numbers[compile.LedgerKey]

	mu       sync.Mutex // guards the compiler
	compiler *compile.Compiler
	proxy    proxyState
	started  bool // what is known at the start is in the kernel
	audits   map[uint16]bool
	wake     chan struct{}
	failures int
	last     time.Time        // when all was in the kernel
	revision statedb.Revision // of the table of policies, when last was
}

// New creates the tables "endpoint-policies" and "policy-rules". State
// files that can't be used are logged and begun anew; ones that can't be
// written are an error.
func New(p Params) (*Engine, error) {
	if p.PodWait == 0 {
		p.PodWait = 2 * time.Second
	}
	last, lastPeer, err := p.Maps.Adopt()
	if err != nil {
		return nil, err
	}
	p.Config.Proxy = p.Proxy != nil
	e := &Engine{Params: p, audits: map[uint16]bool{}, wake: make(chan struct{}, 1)}
	e.proxy = proxyState{applied: &config.Config{}, changed: make(chan struct{})}
	var bad1, bad2, err1, err2 error
	e.peerNumbers, bad1, err1 = ledger.NewNumbers[compile.LedgerKey](e.path("policy-peers.json"), lastPeer)
	e.ruleNumbers, bad2, err2 = ledger.NewNumbers[compile.LedgerKey](e.path("policy-rules.json"), 0)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	if err := errors.Join(bad1, bad2); err != nil {
		p.Log.Warn("peers and rules of policies get new numbers", "error", err)
	}
	e.compiler = compile.New(p.Config, e.peerNumbers, e.ruleNumbers)
	e.compiler.Resume(last)
	e.compiler.SetRoom(p.Maps.Room())
	e.Realised, e.Rules, err = policy.NewEngineTables(p.DB)
	return e, err
}

func (e *Engine) path(name string) string {
	if e.Dir == "" {
		return ""
	}
	return filepath.Join(e.Dir, name)
}

// Run follows the tables until ctx ends. It must be called once. A follower that begins only when all tables are
// initialized reads each table as a whole: a transaction becomes visible before followers are notified of it, one table
// after the other, and the first round prunes what it does not know.
func (e *Engine) Run(ctx context.Context) error {
	if table.WaitInitialized(ctx, e.DB, e.tables()...) != nil {
		return nil
	}
	f, err := newFeed(&e.Params, e.compiler, e.audits)
	if err != nil {
		return err
	}
	defer e.peerNumbers.Close()
	defer e.ruleNumbers.Close()
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		e.round(ctx, f, w)
		return nil
	})
}

// loadSlice is how many prefixes of a long list a round takes: some 10 ms, after
// which others have their turn. The first round takes all, since what it doesn't
// know is pruned.
const loadSlice = 2048

// idle is how long a round waits if nothing calls.
const idle = time.Hour

// round tells the compiler what changed and the kernel what follows from it. The next round is due at once while long
// lists load.
func (e *Engine) round(ctx context.Context, f *feed, w *table.Watch) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.DB.ReadTxn()
	w.Add(e.wake)
	w.Add(f.learn(r, !e.started)...)
	if !e.started && !w.Initialized(r, e.tables()...) {
		return
	}
	err := e.write(ctx, e.compiler.Flush())
	if err == nil && e.compiler.HasUnusedSets() {
		err = e.write(ctx, e.compiler.Flush())
	}
	var after time.Duration
	if err != nil {
		e.failures++
		after = table.RetryAfter(e.failures)
		e.Log.Error("policies are not all in the kernel", "error", err, "again after", after)
	} else if e.failures = 0; !e.compiler.Loading() {
		after, e.last, e.revision = idle, e.Maps.Now(), e.Policies.Policies.Revision(r)
	}
	w.After(after)
	if e.proxy.next > 0 {
		w.After(e.proxy.next)
	}
	more, err := e.Maps.Sweep(false)
	if err != nil {
		e.Log.Error("rows of policies that are over stay in the kernel", "error", err)
	}
	if more > 0 {
		w.After(more)
	}
}

// write brings a plan to the proxy, the kernel and the tables. Numbers are on disk
// before they become visible.
func (e *Engine) write(ctx context.Context, p *compile.Plan) error {
	err1 := errors.Join(e.peerNumbers.Save(), e.ruleNumbers.Save())
	if err1 != nil {
		err1 = fmt.Errorf("peers or rules of policies may change their numbers with the next start: %w", err1)
	}
	if e.proxy.held != nil {
		e.proxy.held.Merge(p)
		p, e.proxy.held = e.proxy.held, nil
	}
	if err := e.toProxy(ctx); err != nil {
		return errors.Join(err1, err, e.hold(p))
	}
	err2 := e.Maps.Apply(e.compiler, p)
	if !e.started {
		e.started = true
		e.compiler.SetSlice(loadSlice)
		e.peerNumbers.ReleaseKept()
		e.ruleNumbers.ReleaseKept()
		err2 = errors.Join(err2, e.Maps.Prune(e.compiler), e.Maps.Epochs.Bump(0))
	}
	return errors.Join(err1, err2, e.publish(p))
}

// publish writes the tables.
func (e *Engine) publish(p *compile.Plan) error {
	changed := e.compiler.ChangedRules()
	if len(p.Endpoints)+len(changed) == 0 {
		return nil
	}
	txn := e.DB.WriteTxn(e.Realised, e.Rules)
	defer txn.Abort()
	var errs []error
	for id, r := range changed {
		var err error
		if r == nil {
			_, _, err = e.Rules.Delete(txn, &policy.RuleRow{ID: id})
		} else {
			_, _, err = e.Rules.Insert(txn, r)
		}
		errs = append(errs, err)
	}
	for t := range p.Endpoints {
		var err error
		if t.Gone {
			if e.compiler.Endpoint(t.Slot) == nil {
				_, _, err = e.Realised.Delete(txn, &policy.Realised{Slot: t.Slot})
			}
		} else {
			_, _, err = e.Realised.Insert(txn, e.realised(t))
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write tables of policies: %w", err)
	}
	txn.Commit()
	return nil
}

func (e *Engine) realised(t *compile.Endpoint) *policy.Realised {
	row := &policy.Realised{Slot: t.Slot, Pod: t.Name, Attachment: t.Attachment, Known: !t.Unknown, Audit: t.Audit ||
		e.Config.Audit}
	row.Waiting = e.compiler.Waiting(t)
	for dir, of := range t.Sets {
		for _, s := range of {
			if s == nil {
				continue
			}
			row.Enforced[dir], row.Rules[dir] = true, s.RuleCount()
			if s.Err != nil {
				row.Error = fmt.Sprintf("%s: %v", policy.Direction(dir), s.Err)
			}
		}
	}
	return row
}

// LastRealised is when the kernel last had all that the tables said; zero: never
// yet.
func (e *Engine) LastRealised() time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// RealisedRevision is the newest revision of the table of policies of which the
// kernel has had all; 0: of none yet.
func (e *Engine) RealisedRevision() statedb.Revision {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.revision
}

// tables are those that policies depend on.
func (e *Engine) tables() []statedb.TableMeta {
	return []statedb.TableMeta{
		e.Cluster.Nodes, e.Cluster.Namespaces, e.Cluster.Pods, e.Cluster.Services, e.Cluster.Slices,
		e.Cluster.Secrets,
		e.Policies.Policies, e.Policies.Groups, e.Identities, e.Addresses, e.Endpoints,
	}
}

// SetAudit says whether what is denied to an endpoint is only reported.
func (e *Engine) SetAudit(slot uint16, on bool) {
	e.mu.Lock()
	e.audits[slot] = on
	e.compiler.SetAudit(slot, on)
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Hold denies a new endpoint everything until its policies are in the kernel, where there are any policies. It must be
// called before the first packet can reach the endpoint.
func (e *Engine) Hold(ep *endpoint.Endpoint) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.compiler.Endpoint(ep.ID)
	if t != nil && t.Attachment == ep.Attachment().String() || e.started && !e.compiler.Enforcing() {
		return nil
	}
	return e.Maps.DenyAll(ep.ID)
}

// WaitPod returns when the policies of the endpoint in a slot are in the
// kernel, with the labels that its pod has. A pod that isn't known after
// Params.PodWait is treated as reserved:init, which is denied what no policy allows, and WaitPod
// returns; without policies, labels do not matter. The error is that of ctx.
func (e *Engine) WaitPod(ctx context.Context, slot uint16) error {
	late := time.NewTimer(e.PodWait)
	defer late.Stop()
	patient := true
	for {
		r := e.DB.ReadTxn()
		ep, _, ok := e.Endpoints.Get(r, endpoint.ByID(slot))
		row, _, watch, done := e.Realised.GetWatch(r, policy.RealisedBySlot(slot))
		matter := patient && e.Policies.Policies.NumObjects(r) > 0
		if ok && done && row.Attachment == ep.Attachment().String() && !row.Waiting && (row.Known || !matter) {
			return nil
		}
		select {
		case <-watch:
		case <-late.C:
			patient = false
		case <-ctx.Done():
			return fmt.Errorf("wait for the policies of endpoint %d: %w", slot, ctx.Err())
		}
	}
}

// View calls f with the compiler, which must be neither changed nor kept.
func (e *Engine) View(f func(*compile.Compiler)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f(e.compiler)
}

// Shadow creates a compiler of what the tables have now. It has no kernel.
func (e *Engine) Shadow() (*compile.Compiler, error) {
	peers, _, err1 := ledger.NewNumbers[compile.LedgerKey]("", compile.FirstDerived)
	rules, _, err2 := ledger.NewNumbers[compile.LedgerKey]("", 0)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	c := compile.New(e.Config, peers, rules)
	c.Shadow = true
	c.RoomFrom(e.compiler)
	f, err := newFeed(&e.Params, c, map[uint16]bool{})
	if err != nil {
		return nil, err
	}
	f.learn(e.DB.ReadTxn(), true)
	return c, nil
}
