// Package spool keeps the CNI DELs that came while no agent ran: one file per
// attachment, and a lock by which plugin and agent can't miss each other.
//
// The plugin takes the lock and asks the agent once more before it writes. The
// agent takes it when it starts and holds it until it listens. So either the
// file is there when the agent looks, or the agent answers the plugin.
package spool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Entry is one DEL.
type Entry struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

// Spool is a directory of entries. It holds at most one file for each
// attachment, however often a runtime repeats its DEL.
type Spool struct{ dir string }

// Of returns the spool of the agent with this run directory.
func Of(runDir string) Spool { return Spool{filepath.Join(runDir, "cni-deletes")} }

const suffix = ".json"

// Lock waits for the spool's lock until ctx ends and makes the directory if
// needed. The kernel releases the lock of a process that dies.
func (s Spool) Lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make spool: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock of spool: %w", err)
	}
	for {
		// Polled, as a blocking flock knows no context.
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock spool %s: %w", s.dir, err)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock spool %s: %w", s.dir, context.Cause(ctx))
		}
	}
}

// Put stores an entry. The caller holds the lock.
func (s Spool) Put(e Entry) error {
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("spool DEL of %s/%s: %w", e.ContainerID, e.IfName, err)
	}
	path := s.path(e)
	if err = os.WriteFile(path+".tmp", append(data, '\n'), 0o600); err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		_ = os.Remove(path + ".tmp") // on a full disk, what was written of it would take room
		return fmt.Errorf("spool DEL of %s/%s: %w", e.ContainerID, e.IfName, err)
	}
	return nil
}

// path is a hash: container IDs may be longer than a file's name.
func (s Spool) path(e Entry) string {
	sum := sha256.Sum256([]byte(e.ContainerID + "/" + e.IfName))
	return filepath.Join(s.dir, hex.EncodeToString(sum[:16])+suffix)
}

// Drain calls do for each entry and removes those for which it succeeds. A file
// that can't be read is removed and reported: nothing could ever be done about
// it. The caller holds the lock.
func (s Spool) Drain(do func(Entry) error) error {
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("read spool: %w", err)
	}
	var failed []error
	for _, f := range files {
		path := filepath.Join(s.dir, f.Name())
		if strings.HasSuffix(path, ".tmp") {
			failed = append(failed, os.Remove(path))
		}
		if !strings.HasSuffix(path, suffix) {
			continue
		}
		entry, err := read(path)
		if err != nil {
			failed = append(failed, err, os.Remove(path))
			continue
		}
		if err := do(entry); err != nil {
			failed = append(failed, err)
			continue
		}
		failed = append(failed, os.Remove(path))
	}
	return errors.Join(failed...)
}

func read(path string) (Entry, error) {
	var e Entry
	data, err := os.ReadFile(path)
	if err != nil {
		return e, fmt.Errorf("read spool: %w", err)
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return e, fmt.Errorf("read spool %s: %w", path, err)
	}
	if e.ContainerID == "" || e.IfName == "" {
		return e, fmt.Errorf("read spool %s: containerID or ifName is missing", path)
	}
	return e, nil
}
