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

// endProxy ends the proxy that outlives the agent, if one runs. Its devices and connections end with it.
func (o Options) endProxy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, proxyPatience)
	defer cancel()
	status, err := control.NewClient(o.RunDir).Status(ctx)
	if err != nil {
		return nil // none answers
	}
	process, err := os.FindProcess(status.PID)
	if err != nil {
		return fmt.Errorf("find the proxy: %w", err)
	}
	defer func() { _ = process.Release() }()
	if err := process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end the proxy, process %d: %w", status.PID, err)
	}
	for process.Signal(unix.Signal(0)) == nil {
		select {
		case <-ctx.Done():
			return fmt.Errorf("end the proxy, process %d: it still runs after %s", status.PID, proxyPatience)
		case <-time.After(10 * time.Millisecond):
		}
	}
	o.Say("ended the proxy, process %d", status.PID)
	return nil
}
