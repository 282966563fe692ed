package l7

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"myelin/l7/control"
)

const (
	// startTime bounds how long a proxy may take to answer.
	startTime = 10 * time.Second
	// pollTime is between two looks for a proxy that starts, or that is not this process's child.
	pollTime = 20 * time.Millisecond
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
	ended, err := f.spawn()
	if err != nil {
		return err
	}
	deadline := time.NewTimer(startTime)
	defer deadline.Stop()
	for {
		if now, ok := f.running(ctx); ok && !now.Same(&before) {
			return nil
		}
		select {
		case err := <-ended:
			return fmt.Errorf("the proxy has ended: %w", err)
		case <-deadline.C:
			return fmt.Errorf("the proxy does not answer for %s", startTime)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollTime):
		}
	}
}

// follow reads the records of the proxy that runs. A proxy that ends is noticed here first.
func (f *Feature) follow(ctx context.Context) error {
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

// spawn starts a proxy that outlives this process. The channel gets how it ended.
func (f *Feature) spawn() (<-chan error, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start the proxy: %w", err)
	}
	cmd := exec.Command(executable, "proxy", "--run-dir", f.Config.Myelin.RunDir, "--bpf-root",
		f.Config.Myelin.BPFRoot, "--log-format", f.Config.Myelin.LogFormat)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the proxy: %w", err)
	}
	f.Log.Info("The proxy was started", "pid", cmd.Process.Pid)
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		f.wake()
	}()
	return ended, nil
}
