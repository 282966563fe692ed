package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"myelin/l7/control"
)

// proxyPatience is how long the proxy may take to end.
const proxyPatience = 10 * time.Second

// endProxy ends the proxy that outlives the agent, if one runs. Its devices and connections end with it. A proxy in a
// pod is ended by Kubernetes: it is only waited for.
func (o Options) endProxy(ctx context.Context) error {
	pid, err := control.Process(o.RunDir)
	if err != nil {
		return nil // none runs
	}
	if pid == 0 {
		return o.awaitProxy(ctx)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		return fmt.Errorf("find the proxy: %w", err)
	}
	defer func() { _ = process.Release() }()
	if err := process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end the proxy, process %d: %w", pid, err)
	}
	err = within(ctx, proxyPatience, func(string, ...any) {}, func() error {
		if process.Signal(unix.Signal(0)) == nil {
			return fmt.Errorf("end the proxy, process %d: it still runs after %s", pid, proxyPatience)
		}
		return nil
	})
	if err != nil {
		return err
	}
	o.Say("ended the proxy, process %d", pid)
	return nil
}

// awaitProxy waits until the proxy of another PID namespace has ended.
func (o Options) awaitProxy(ctx context.Context) error {
	return within(ctx, proxyPatience, func(string, ...any) {}, func() error {
		if _, err := control.Process(o.RunDir); err == nil {
			return fmt.Errorf("wait for the proxy, which runs in a pod: it still runs after %s", proxyPatience)
		}
		return nil
	})
}
