package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"myelin/internal/durable"
)

// lockFile is the name of what an agent has locked while it runs, in its run directory.
const lockFile = "agent.lock"

// lockPoll is how often a lock that another agent holds is tried again.
const lockPoll = 20 * time.Millisecond

// Paths are the directories that only one agent may work on at a time.
type Paths struct {
	RunDir  string // myelin.runDir
	BPFRoot string // myelin.bpfRoot
}

// claim opens a file, with flags, and locks it. The error is unix.EWOULDBLOCK where another process holds the lock.
func claim(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// claimBPFRoot locks the root directory of the BPF file system. It is the same inode for all processes that have
// that file system mounted, wherever they see it, so that two agents with different run directories find each
// other. Without the directory there is nothing to lock: f is nil.
func claimBPFRoot(path string) (f *os.File, err error) {
	f, err = claim(path, os.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

// claimRunDir locks the lock file of a run directory. Where there is no room for the file, it locks the directory
// itself.
func claimRunDir(dir string) (*os.File, error) {
	f, err := claim(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE)
	if durable.Full(err) {
		return claim(dir, os.O_RDONLY|unix.O_DIRECTORY)
	}
	return f, err
}

// AcquireLock makes this process the only agent with the run directory and with the
// BPF file system, since two would write the same maps. It waits for one that is
// just stopping, at most patience, and changes nothing before it has the BPF file
// system. The kernel ends the claim with the process, however that ends.
func AcquireLock(ctx context.Context, paths Paths, patience time.Duration, log *slog.Logger,
) (release func(), err error) {
	end := time.Now().Add(patience)
	bpf, err := patiently(ctx, "BPF file system", paths.BPFRoot, end, log,
		func() (*os.File, error) { return claimBPFRoot(paths.BPFRoot) })
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(paths.RunDir, 0o700); err != nil {
		bpf.Close() // a nil one returns an error, no more
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	path := filepath.Join(paths.RunDir, lockFile)
	run, err := patiently(ctx, "run directory", path, end, log,
		func() (*os.File, error) { return claimRunDir(paths.RunDir) })
	if err != nil {
		bpf.Close() // a nil one returns an error, no more
		return nil, err
	}
	// For people; the claim is the lock.
	if err := os.WriteFile(path, fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
		log.Warn("the agent's lock does not name its process", "error", err)
	}
	return func() { run.Close(); bpf.Close() }, nil
}

// patiently tries a claim until it succeeds, end has come, or ctx ends. path is what is locked.
func patiently(ctx context.Context, what, path string, end time.Time, log *slog.Logger,
	try func() (*os.File, error),
) (*os.File, error) {
	f, err := try()
	for told := false; errors.Is(err, unix.EWOULDBLOCK) && time.Now().Before(end) && ctx.Err() == nil; f, err = try() {
		if !told {
			log.Info("another agent has this "+what+": waiting for its end", "lock", path, "process", holder(path))
			told = true
		}
		time.Sleep(lockPoll)
	}
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, fmt.Errorf("%s: another agent%s has this %s: %w", path, process(holder(path)), what, err)
	case err != nil:
		return nil, fmt.Errorf("lock the %s: %w", what, err)
	}
	return f, nil
}

// process is a holder as part of a sentence.
func process(holder string) string {
	if holder == "" {
		return ""
	}
	return " (process " + holder + ")"
}

// holder is the process that has locked a file, as /proc/locks tells it; empty if that is in a PID namespace which
// is not visible here, or if it is not held. A lock file may name it, too.
func holder(path string) string {
	var st unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if unix.Stat(path, &st) != nil || err != nil {
		return ""
	}
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)), st.Ino)
	for line := range strings.Lines(string(locks)) {
		// "7: FLOCK  ADVISORY  WRITE 4711 00:1c:42 0 EOF"
		f := strings.Fields(line)
		if len(f) > 5 && f[1] == "FLOCK" && f[5] == inode && f[4] != "0" && !strings.HasPrefix(f[4], "-") {
			return f[4]
		}
	}
	if pid, err := os.ReadFile(path); err == nil {
		return strings.TrimSpace(string(pid))
	}
	return ""
}
