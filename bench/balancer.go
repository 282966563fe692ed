package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/internal/table"
	"myelin/service"
	"myelin/service/maps"
)

// balancer is what an agent has for Services, and nothing else of an agent: package service between the cluster's
// tables and the maps of a datapath of its own, and that one's programs where they are hung.
type balancer struct {
	db       *statedb.DB
	tables   cluster.Tables
	services *service.Services
	kernel   *maps.Kernel
	datapath *bpf.Datapath
	known    []func(statedb.WriteTxn) // nil after the first put
	ended    []func() error           // what close does, the last one first
}

// hang puts programs to work, and says how they are taken off again.
type hang func(*bpf.Datapath) (off func() error, err error)

// newBalancer makes one that has no Services yet. dir is an empty folder.
func newBalancer(ctx context.Context, dir string, settings bpf.Settings, sizes bpf.Sizes,
	hang hang) (b *balancer, err error) {
	b = &balancer{db: statedb.New()}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.tables, err = cluster.NewTables(b.db); err != nil {
		return b, err
	}
	if err := b.db.Start(); err != nil {
		return b, err
	}
	b.ended = append(b.ended, func() error { return b.db.Stop() })
	txn := b.db.WriteTxn(b.tables.Services, b.tables.Slices)
	b.known = append(b.known, b.tables.Services.RegisterInitializer(txn, "bench"),
		b.tables.Slices.RegisterInitializer(txn, "bench"))
	txn.Commit()
	if err := b.load(dir, settings, sizes, hang); err != nil {
		return b, err
	}
	return b, b.run(ctx, dir)
}

// load has pins below dir.
func (b *balancer) load(dir string, settings bpf.Settings, sizes bpf.Sizes, hang hang) error {
	var err error
	b.datapath, err = loadIn(dir, bpf.Options{Settings: settings, Sizes: sizes}, &b.ended)
	if err != nil {
		return err
	}
	off, err := hang(b.datapath)
	if off != nil {
		b.ended = append(b.ended, off)
	}
	return err
}

// loadIn loads a datapath whose pins are below dir, on a file system of their own: without it, nothing of them stays.
// What ends it is added to a list, of which the last one comes first.
func loadIn(dir string, o bpf.Options, ended *[]func() error) (*bpf.Datapath, error) {
	o.Dir = pinsIn(dir)
	if err := os.Mkdir(o.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := unix.Mount("bpf", o.Dir, "bpf", 0, ""); err != nil {
		return nil, fmt.Errorf("mount bpf on %s: %w", o.Dir, err)
	}
	*ended = append(*ended, func() error { return unix.Unmount(o.Dir, 0) })
	d, err := bpf.Load(o)
	if err != nil {
		return nil, err
	}
	*ended = append(*ended, d.Close)
	return d, nil
}

// run begins what an agent's jobs are; the numbers of Services are kept in dir.
func (b *balancer) run(ctx context.Context, dir string) (err error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	b.services, err = service.New(service.Params{DB: b.db, Tables: b.tables, Node: "a", Dir: dir, Log: log})
	if err != nil {
		return err
	}
	group, start, stop := table.Group(log)
	b.kernel, err = maps.New(maps.Params{Log: log, DB: b.db, Tables: b.services.Desired, Datapath: b.datapath})
	if err != nil {
		return err
	}
	b.kernel.Reconcile(group)
	group.Add(job.OneShot("services", func(ctx context.Context, _ cell.Health) error { return b.services.Run(ctx) }))
	b.ended = append(b.ended, func() error { return stop(context.Background()) })
	return start(ctx)
}

// put writes objects into the cluster's tables, as a source does. With the first ones, the cluster counts as known.
func (b *balancer) put(services []*cluster.Service, slices []*cluster.EndpointSlice) error {
	txn := b.db.WriteTxn(b.tables.Services, b.tables.Slices)
	defer txn.Abort()
	var errs []error
	for _, s := range services {
		_, _, err := b.tables.Services.Insert(txn, s)
		errs = append(errs, err)
	}
	for _, s := range slices {
		_, _, err := b.tables.Slices.Insert(txn, s)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, known := range b.known {
		known(txn)
	}
	b.known = nil
	txn.Commit()
	return nil
}

// written waits until all of the first put is in the kernel, and checks how much that is.
func (b *balancer) written(ctx context.Context, frontends, backends int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	desired := b.services.Desired
	for _, t := range []statedb.TableMeta{desired.Frontends, desired.Backends} {
		if _, wait := t.Initialized(b.db.ReadTxn()); wait != nil {
			select {
			case <-wait:
			case <-ctx.Done():
				return fmt.Errorf("table %s is not known: %w", t.Name(), ctx.Err())
			}
		}
	}
	if err := b.synced(ctx); err != nil {
		return err
	}
	txn := b.db.ReadTxn()
	if f, n := desired.Frontends.NumObjects(txn), desired.Backends.NumObjects(txn); f != frontends || n != backends {
		return fmt.Errorf("there are %d frontends and %d backends, not %d and %d", f, n, frontends, backends)
	}
	return nil
}

// synced waits until all rows are in the kernel.
func (b *balancer) synced(ctx context.Context) error {
	desired := b.services.Desired
	if err := table.WaitAll(ctx, b.db, desired.Backends, service.BackendStatus); err != nil {
		return err
	}
	return table.WaitAll(ctx, b.db, desired.Frontends, service.FrontendStatus)
}

// changed waits until the tables are as required, and then until they are in the kernel.
func (b *balancer) changed(ctx context.Context, is func(statedb.ReadTxn) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for !is(b.db.ReadTxn()) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for backends: %w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	return b.synced(ctx)
}

// pinsIn is where a balancer whose folder is dir has its file system of pins.
func pinsIn(dir string) string { return filepath.Join(dir, "bpf") }

func (b *balancer) close() error { return end(&b.ended) }

// end calls what is in a list, the last one first, and empties it.
func end(list *[]func() error) error {
	var errs []error
	for _, f := range slices.Backward(*list) {
		errs = append(errs, f())
	}
	*list = nil
	return errors.Join(errs...)
}
