package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/endpoint"
	"myelin/internal/table"
	"myelin/policy"
	"myelin/policy/engine"
	"myelin/policy/identity"
	"myelin/policy/maps"
)

// enforcer is what an agent has for policies, and nothing else of an agent: packages identity and policy between the
// cluster's tables and the maps of a datapath of its own.
type enforcer struct {
	db        *statedb.DB
	cluster   cluster.Tables
	policies  policy.Tables
	endpoints statedb.RWTable[*endpoint.Endpoint]
	engine    *engine.Engine
	datapath  *bpf.Datapath
	epochs    *bpf.Epochs
	ended     []func() error // what close does, the last one first
}

// enforcing are an agent's settings where policies are enforced, its other features off.
func enforcing() bpf.Settings { return bpf.Settings{Ipv4: 1, Ipv6: 1, Policy: 1} }

// newEnforcer makes one of a node that knows nothing yet. dir is an empty folder, which keeps pins and numbers. fill
// writes the tables before it begins.
func newEnforcer(ctx context.Context, dir, node string, o bpf.Options,
	fill func(*enforcer) error) (e *enforcer, err error) {
	e = &enforcer{db: statedb.New()}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if err := e.tables(); err != nil {
		return e, err
	}
	if e.datapath, err = loadIn(dir, o, &e.ended); err != nil {
		return e, err
	}
	e.epochs = &bpf.Epochs{Map: e.datapath.Epochs}
	if err := fill(e); err != nil {
		return e, err
	}
	return e, e.run(ctx, dir, node)
}

func (e *enforcer) tables() error {
	var err1, err2, err3 error
	e.cluster, err1 = cluster.NewTables(e.db)
	e.policies, err2 = policy.NewTables(e.db)
	e.endpoints, err3 = endpoint.NewTable(e.db)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	if err := e.db.Start(); err != nil {
		return err
	}
	e.ended = append(e.ended, func() error { return e.db.Stop() })
	return nil
}

// run begins what an agent's jobs are.
func (e *enforcer) run(ctx context.Context, dir, node string) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	ids, err := identity.New(identity.Params{DB: e.db, Tables: e.cluster, Node: node, Log: log, Now: time.Now})
	if err != nil {
		return err
	}
	e.engine, err = engine.New(engine.Params{
		DB: e.db, Cluster: e.cluster, Policies: e.policies, Identities: ids.Identities(), Addresses: ids.Addresses(),
		Endpoints: e.endpoints,
		Node:      node, Dir: dir, Maps: maps.New(e.datapath, e.epochs, time.Now), Log: log,
	})
	if err != nil {
		return err
	}
	group, start, stop := table.Group(log)
	group.Add(job.OneShot("identities", func(ctx context.Context, _ cell.Health) error { return ids.Run(ctx) }))
	group.Add(job.OneShot("policies", func(ctx context.Context, _ cell.Health) error { return e.engine.Run(ctx) }))
	e.ended = append(e.ended, func() error { return stop(context.Background()) })
	return start(ctx)
}

func (e *enforcer) close() error { return end(&e.ended) }

// put writes objects into the tables, as sources do.
func (e *enforcer) put(all *policed) error {
	txn := e.db.WriteTxn(e.cluster.Nodes, e.cluster.Namespaces, e.cluster.Pods, e.policies.Policies, e.policies.Groups)
	defer txn.Abort()
	err := errors.Join(
		insert(txn, e.cluster.Nodes, all.nodes), insert(txn, e.cluster.Namespaces, all.namespaces),
		insert(txn, e.cluster.Pods, all.pods),
		insert(txn, e.policies.Policies, all.policies), insert(txn, e.policies.Groups, all.groups))
	if err != nil {
		return err
	}
	txn.Commit()
	return nil
}

func insert[T any](txn statedb.WriteTxn, t statedb.RWTable[T], rows []T) error {
	for _, r := range rows {
		if _, _, err := t.Insert(txn, r); err != nil {
			return fmt.Errorf("write table %s: %w", t.Name(), err)
		}
	}
	return nil
}
