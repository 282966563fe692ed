package agent

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

// lastWords is how long an agent waits for the one before it to end.
const lastWords = 15 * time.Second

// alone makes this process the only agent with the run directory, since two
// would write the same maps. It waits for one that is just stopping, at most
// patience. The kernel ends the claim with the process, however that ends.
func alone(ctx context.Context, runDir string, patience time.Duration, log *slog.Logger) (release func(), err error) {
	path := filepath.Join(runDir, "agent.lock")
	if err := os.MkdirAll(runDir, 0o700); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the agent's lock: %w", err)
	}
	end := time.Now().Add(patience)
	for told := false; ; told = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) || ctx.Err() != nil {
			f.Close()
			return nil, fmt.Errorf("%s: another agent%s has this run directory: %w", path, whose(path), err)
		}
		if !told {
			log.Info("another agent has this run directory: waiting for its end", "lock", path)
		}
		time.Sleep(20 * time.Millisecond)
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
