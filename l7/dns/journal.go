package dns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Sizes and times of a journal.
const (
	saveInterval = time.Second
	// A journal is written anew when it is twice as long as the state was then, and this much longer.
	journalSlack = 1 << 20
)

// Journal keeps the state of an engine in a file: the whole state, then changes. What is written outlives the process,
// but not the machine, since it is not synced; the directory is to be one in /run.
type Journal struct {
	engine *Engine
	path   string
	file   *os.File
	whole  int64 // size of the whole state at the front
	size   int64
}

// OpenJournal restores what the file at path has, and keeps it from then on. A file that is damaged is used as far as
// it is understood; that, and nothing else, is logged.
func OpenJournal(e *Engine, path string) (*Journal, error) {
	j := &Journal{engine: e, path: path}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the DNS journal: %w", err)
	}
	file, err := os.Open(path)
	if err == nil {
		if err := e.Restore(file); err != nil {
			e.Log.Warn("The end of the DNS journal is damaged", "file", path, "error", err)
		}
		err = file.Close()
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open the DNS journal: %w", err)
	}
	if err := j.rewrite(); err != nil {
		return nil, err
	}
	return j, nil
}

// Write counts what is appended.
func (j *Journal) Write(b []byte) (int, error) {
	n, err := j.file.Write(b)
	j.size += int64(n)
	return n, err
}

// rewrite replaces the file by one with the present state.
func (j *Journal) rewrite() error {
	next := j.path + ".tmp"
	file, err := os.OpenFile(next, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("rewrite the DNS journal: %w", err)
	}
	old := j.file
	j.file, j.size = file, 0
	if err = j.engine.Save(j); err == nil {
		err = os.Rename(next, j.path)
	}
	if err != nil {
		j.whole = -journalSlack // try again
		return fmt.Errorf("rewrite the DNS journal: %w", errors.Join(err, closeFile(old)))
	}
	j.whole = j.size
	return closeFile(old)
}

func closeFile(file *os.File) error {
	if file == nil {
		return nil
	}
	return file.Close()
}

// Flush writes what has changed.
func (j *Journal) Flush() error {
	e := j.engine
	e.mu.Lock()
	rewrite := e.rewrite
	e.mu.Unlock()
	if rewrite || j.size > 2*j.whole+journalSlack {
		return j.rewrite()
	}
	if err := e.saveChanges(j); err != nil {
		return fmt.Errorf("write the DNS journal: %w", err)
	}
	return nil
}

// Run flushes once a second until the context ends, and then once more.
func (j *Journal) Run(ctx context.Context) {
	ticker := time.NewTicker(saveInterval)
	defer ticker.Stop()
	var failures limiter
	for done := false; !done; {
		select {
		case <-ctx.Done():
			done = true
		case <-ticker.C:
		}
		if err := j.Flush(); err != nil && failures.allow(j.engine.Clock.Monotonic()) {
			j.engine.Log.Error("DNS names are not saved", "error", err)
		}
	}
	if err := j.file.Close(); err != nil {
		j.engine.Log.Error("DNS names are not saved", "error", err)
	}
}
