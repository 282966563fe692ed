package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"myelin/l7/control"
)

// proxyPatience is how long the proxy may take to end.
const proxyPatience = 10 * time.Second

// insistTime is until a proxy that serves its last connections is told to end at once.
const insistTime = proxyPatience / 4

// endProxies ends the proxies that outlive the agent: the one that serves, and those that have handed over and have
// connections still. Their devices and connections end with them. Proxies in pods are ended by Kubernetes: they are
// only waited for.
func (o Options) endProxies(ctx context.Context) error {
	var errs []error
	for _, pid := range control.Processes(o.RunDir) {
		if pid == 0 {
			errs = append(errs, o.awaitProxies(ctx))
		} else {
			errs = append(errs, o.endProxy(ctx, pid))
		}
	}
	return errors.Join(errs...)
}

func (o Options) endProxy(ctx context.Context, pid int) error {
	process, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("find the proxy: %w", err)
	}
	defer func() { _ = process.Release() }()
	signal := func() error {
		if err := process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("end the proxy, process %d: %w", pid, err)
		}
		return nil
	}
	if err := signal(); err != nil {
		return err
	}
	gone := func() error {
		if process.Signal(unix.Signal(0)) == nil {
			return fmt.Errorf("end the proxy, process %d: it still runs after %s", pid, proxyPatience)
		}
		return nil
	}
	if within(ctx, insistTime, func(string, ...any) {}, gone) != nil {
		if err := signal(); err != nil {
			return err
		}
		if err := within(ctx, proxyPatience, func(string, ...any) {}, gone); err != nil {
			return err
		}
	}
	o.Say("ended the proxy, process %d", pid)
	return nil
}

// awaitProxies waits until the proxies of other PID namespaces have ended.
func (o Options) awaitProxies(ctx context.Context) error {
	return within(ctx, proxyPatience, func(string, ...any) {}, func() error {
		if slices.Contains(control.Processes(o.RunDir), 0) {
			return fmt.Errorf("wait for the proxy, which runs in a pod: it still runs after %s", proxyPatience)
		}
		return nil
	})
}
