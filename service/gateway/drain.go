package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"myelin/internal/durable"
)

// Drain is whether this node is taken out of service. It outlives the agent.
type Drain struct {
	path string

	mu    sync.Mutex
	since time.Time // zero: in service
}

// drainFile is the content of the file, which is there while the node is drained.
type drainFile struct {
	Since time.Time `json:"since"`
}

// LoadDrain reads the file at path. A file that cannot be read means that the node is drained: it is there because
// an operator wants that. The error is for the log.
func LoadDrain(path string) (*Drain, error) {
	d := &Drain{path: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	var f drainFile
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if d.since = f.Since; d.since.IsZero() {
		d.since = time.Now()
	}
	if err != nil {
		err = fmt.Errorf("read since when this node is drained: %w", err)
	}
	return d, err
}

// Begin takes the node out of service. The file is on disk when it returns.
func (d *Drain) Begin(now time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.since.IsZero() {
		return nil
	}
	data, err := json.Marshal(drainFile{Since: now})
	if err == nil {
		err = durable.Write(d.path, append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	d.since = now
	return nil
}

// End takes the node into service, and reports whether it was out of it.
func (d *Drain) End() (was bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := durable.Remove(d.path); err != nil {
		return false, fmt.Errorf("resume: %w", err)
	}
	was = !d.since.IsZero()
	d.since = time.Time{}
	return was, nil
}

// Since is when draining began.
func (d *Drain) Since() (since time.Time, draining bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.since, !d.since.IsZero()
}
