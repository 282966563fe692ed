package l7

import (
	"context"
	"errors"
	"time"

	"myelin/internal/daemon"
	"myelin/l7/control"
)

const (
	// statusTime bounds a request for the status.
	statusTime = 2 * time.Second
	// batchTime is between two requests for records, which cost more than a few records do.
	batchTime = 50 * time.Millisecond
	// fullBatch is how many records are not waited after: a part of the proxy's ring.
	fullBatch = 2048
)

// running returns the status of the proxy that runs, and whether one does.
func (f *Feature) running(ctx context.Context) (control.Status, bool) {
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	s, err := f.client.Status(ctx)
	return s, err == nil
}

// ensure returns when a proxy runs that is of this agent's version, if the agent supervises it. A proxy of another
// version hands over to a new one.
func (f *Feature) ensure(ctx context.Context) error {
	before, ok := f.running(ctx)
	if ok && (before.Version == f.Version || !f.Config.L7.Supervise) {
		return nil
	}
	if !f.Config.L7.Supervise {
		return errors.New("no proxy runs, and with myelin.proxy.supervise: false the agent starts none: see the pods " +
			"of DaemonSet myelin-proxy, or start `myelin proxy`")
	}
	child, err := daemon.Start("the proxy", f.wake, "proxy", "--run-dir", f.Config.Myelin.RunDir, "--bpf-root",
		f.Config.Myelin.BPFRoot, "--log-format", f.Config.Myelin.LogFormat)
	if err != nil {
		return err
	}
	f.Log.Info("The proxy was started", "pid", child.PID)
	return child.Await(ctx, func() bool {
		now, ok := f.running(ctx)
		return ok && !now.Same(&before)
	})
}

// follow reads the records of the proxy that runs. A proxy that ends is noticed here first.
func (f *Feature) follow(ctx context.Context) error {
	if !f.awaitNeed(ctx) {
		return nil
	}
	next := uint64(1)
	for ctx.Err() == nil {
		r, err := f.client.Records(ctx, next)
		if err != nil {
			f.wake()
			select {
			case <-ctx.Done():
			case <-time.After(watchTime):
			}
			continue
		}
		if r.Lost > 0 {
			f.Lost(r.Lost)
		}
		if len(r.List) > 0 {
			f.names.seen(r.List)
			f.Record(r.List)
		}
		next = r.Next
		if len(r.List) < fullBatch { // else the ring might overflow
			select {
			case <-ctx.Done():
			case <-time.After(batchTime):
			}
		}
	}
	return nil
}
