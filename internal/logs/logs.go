// Package logs makes the logger of a process that runs for a long time, and keeps the lines that it wrote last.
package logs

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
)

// Formats of lines.
const (
	Text = "text" // key=value, as log/slog's TextHandler
	JSON = "json" // an object a line
)

// New returns a logger that writes lines of a format to w and to recent, which may be nil. debug includes those of
// the level debug.
func New(w io.Writer, format string, debug bool, recent *Recent) (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: slog.LevelInfo}
	if debug {
		options.Level = slog.LevelDebug
	}
	if recent != nil {
		w = io.MultiWriter(recent, w)
	}
	switch format {
	case Text:
		return slog.New(slog.NewTextHandler(w, options)), nil
	case JSON:
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, fmt.Errorf("log format %q: want %s or %s", format, Text, JSON)
}

// Recent keeps the last lines that were written to it, at most Bytes in all. Its methods may be called at once.
type Recent struct {
	Bytes int

	mu    sync.Mutex
	lines []string
	size  int
}

// Write takes whole lines, as handlers of log/slog write them. It never fails.
func (r *Recent) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range bytes.Lines(p) {
		text := strings.TrimSuffix(string(line), "\n")
		if len(text) > r.Bytes {
			text = text[:r.Bytes]
		}
		r.lines = append(r.lines, text)
		r.size += len(text)
	}
	drop := 0
	for ; r.size > r.Bytes; drop++ {
		r.size -= len(r.lines[drop])
	}
	clear(r.lines[:drop]) // the array below may stay for long
	r.lines = r.lines[drop:]
	return len(p), nil
}

// Lines are those that are kept, oldest first.
func (r *Recent) Lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.lines...)
}
