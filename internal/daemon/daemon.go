// Package daemon starts processes that outlive the agent, and finds them by the unix sockets that they serve.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// startTime bounds how long a process may take to answer.
	startTime = 10 * time.Second
	// pollTime is between two looks for a process that starts.
	pollTime = 20 * time.Millisecond
)

// Child is a process that Start has started.
type Child struct {
	PID   int
	what  string
	ended chan error // how it ended
}

// Start executes this program again with arguments, in a session of its own. what names it in errors. onEnd is called
// when it has ended.
func Start(what string, onEnd func(), args ...string) (*Child, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", what, err)
	}
	cmd := exec.Command(executable, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", what, err)
	}
	c := &Child{PID: cmd.Process.Pid, what: what, ended: make(chan error, 1)}
	go func() {
		c.ended <- cmd.Wait()
		onEnd()
	}()
	return c, nil
}

// Await returns when the process answers, or with an error when it has ended or does not answer in time.
func (c *Child) Await(ctx context.Context, answers func() bool) error {
	deadline := time.NewTimer(startTime)
	defer deadline.Stop()
	for {
		if answers() {
			return nil
		}
		select {
		case err := <-c.ended:
			return fmt.Errorf("%s has ended: %w", c.what, err)
		case <-deadline.C:
			return fmt.Errorf("%s does not answer for %s", c.what, startTime)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollTime):
		}
	}
}

// Listen opens a unix socket that only root can use, in the place of one that is left from another process.
func Listen(path string) (*net.UnixListener, error) {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove stale socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the path is another process's after an upgrade
	if err := errors.Join(os.Chmod(tmp, 0o600), os.Rename(tmp, path)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Process returns the process that serves a socket, as this process sees it: 0 if it is in a PID namespace that this
// one does not have, such as that of another container. The error wraps fs.ErrNotExist or ECONNREFUSED if none does.
func Process(path string) (int, error) {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var bad error
	err = raw.Control(func(fd uintptr) { peer, bad = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, bad); err != nil {
		return 0, fmt.Errorf("find the process of %s: %w", path, err)
	}
	return int(peer.Pid), nil
}
