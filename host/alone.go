package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lockFile is the name of what an agent has locked while it runs, in its run directory.
const lockFile = "agent.lock"

// claim opens the lock of a run directory, with flags, and locks it. The error is unix.EWOULDBLOCK where somebody else has.
func claim(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Alone makes this process the only agent with the run directory, since two
// would write the same maps. It waits for one that is just stopping, at most
// patience. The kernel ends the claim with the process, however that ends.
func Alone(ctx context.Context, runDir string, patience time.Duration, log *slog.Logger) (release func(), err error) {
	path := filepath.Join(runDir, lockFile)
	if err := os.MkdirAll(runDir, 0o700); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	end := time.Now().Add(patience)
	f, err := claim(path, os.O_CREATE)
	for told := false; errors.Is(err, unix.EWOULDBLOCK) && time.Now().Before(end) && ctx.Err() == nil; f, err = claim(path, os.O_CREATE) {
		if !told {
			log.Info("another agent has this run directory: waiting for its end", "lock", path)
			told = true
		}
		time.Sleep(20 * time.Millisecond)
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, fmt.Errorf("%s: another agent%s has this run directory: %w", path, whose(path), err)
	case err != nil:
		return nil, fmt.Errorf("lock the run directory: %w", err)
	}
	// For people; the claim is the lock.
	if err := os.WriteFile(path, fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
		log.Warn("the agent's lock doesn't say whose it is", "error", err)
	}
	return func() { f.Close() }, nil
}

// whose names the process that the lock's file tells of, if it does.
func whose(path string) string {
	pid, err := os.ReadFile(path)
	if err != nil || len(pid) == 0 {
		return ""
	}
	return " (process " + strings.TrimSpace(string(pid)) + ")"
}
