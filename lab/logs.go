package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// LogOptions say what Logs writes.
type LogOptions struct {
	Container string // empty: the first one; Logs says so on Notes
	All       bool   // all containers, each line with the name of its container
	Follow    bool   // go on until the context ends or the pod is gone
	Tail      int    // the last lines alone; negative: all
	Notes     io.Writer
}

// Logs writes what containers of a pod have written. The log of a pod is gone with it.
func (l *Lab) Logs(ctx context.Context, w io.Writer, name string, o LogOptions) error {
	p := l.findPod(name)
	if p.err != nil {
		return p.err
	}
	var names []string
	for _, c := range p.state.Containers {
		if !c.Init {
			names = append(names, c.Name)
		}
	}
	for _, c := range p.state.Containers {
		if c.Init {
			names = append(names, c.Name)
		}
	}
	switch {
	case len(names) == 0:
		return fmt.Errorf("pod %s has no container yet", p.name)
	case o.All:
	case o.Container == "":
		if len(names) > 1 {
			fmt.Fprintf(o.Notes, "container %s of %s\n", names[0], strings.Join(names, ", "))
		}
		names = names[:1]
	case !slices.Contains(names, o.Container):
		return fmt.Errorf("pod %s has no container %q: it has %s", p.name, o.Container, strings.Join(names, ", "))
	default:
		names = []string{o.Container}
	}
	var logs []*logReader
	for _, c := range names {
		r := &logReader{file: p.logFile(c), w: w}
		if o.All {
			r.prefix = "[" + c + "] "
		}
		if err := r.tail(o.Tail); err != nil {
			return err
		}
		logs = append(logs, r)
	}
	for o.Follow {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(100 * time.Millisecond):
		}
		for _, r := range logs {
			if err := r.more(); err != nil {
				return err
			}
		}
		if again := l.Pod(p.state.key()); again.err != nil || again.state.UID != p.state.UID {
			return nil
		}
	}
	return nil
}

// logReader follows a file.
type logReader struct {
	file, prefix string
	w            io.Writer
	at           int64
}

// tail writes the last n lines, all if n is negative.
func (r *logReader) tail(n int) error {
	data, err := os.ReadFile(r.file)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // nothing has been written yet
		return err
	}
	r.at = int64(len(data))
	lines := slices.Collect(bytes.Lines(data))
	if n >= 0 {
		lines = lines[max(0, len(lines)-n):]
	}
	return r.write(lines)
}

func (r *logReader) more() error {
	f, err := os.Open(r.file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, r.at, 1<<30))
	if err != nil {
		return err
	}
	r.at += int64(len(data))
	return r.write(slices.Collect(bytes.Lines(data)))
}

func (r *logReader) write(lines [][]byte) error {
	for _, line := range lines {
		if _, err := fmt.Fprintf(r.w, "%s%s", r.prefix, line); err != nil {
			return err
		}
	}
	return nil
}
