package table

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
)

// Group returns a job group for Register and for loops of one's own, and the
// two functions that start it and stop it. Jobs that were added before start
// run from start on, jobs that are added later run at once. stop cancels the
// context of every job and waits for them until ctx ends.
//
// The job package hands out its registry by injection only, so a container
// exists for the length of this call and for nothing else.
func Group(log *slog.Logger) (group job.Group, start, stop func(context.Context) error) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	lifecycle := &cell.DefaultLifecycle{}
	wire := hive.New(job.Cell, cell.Invoke(func(registry job.Registry) {
		group = registry.NewGroup(newHealth(log, ""), lifecycle, job.WithLogger(log))
	}))
	failed := wire.Populate(quiet)
	start = func(ctx context.Context) error {
		if failed != nil {
			return failed
		}
		return lifecycle.Start(quiet, ctx)
	}
	stop = func(ctx context.Context) error { return lifecycle.Stop(quiet, ctx) }
	return group, start, stop
}

// health turns the state that jobs report into log lines: one when a job gets
// into trouble or its trouble changes, one when it is over.
type health struct {
	log   *slog.Logger
	scope string

	mu       sync.Mutex
	troubles []string // errors of the last report
}

func newHealth(log *slog.Logger, scope string) *health {
	return &health{log: log, scope: scope}
}

func (h *health) NewScope(name string) cell.Health {
	if h.scope != "" {
		name = h.scope + "." + name
	}
	return newHealth(h.log, name)
}

func (h *health) OK(status string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.troubles) > 0 {
		h.log.Info("reconciled again", "job", h.scope, "status", status)
	}
	h.troubles = nil
}

// Degraded logs those errors that were not there at the last call. Errors of
// several rows come joined by line.
func (h *health) Degraded(reason string, err error) {
	const most = 4 // in one line of the log; the rows have them all
	lines := []string{reason}
	if err != nil {
		lines = strings.Split(err.Error(), "\n")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	fresh := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return slices.Contains(h.troubles, line) })
	h.troubles = lines
	if len(fresh) == 0 {
		return
	}
	slices.Sort(fresh)
	attributes := []any{"job", h.scope, "error", strings.Join(fresh[:min(most, len(fresh))], "; ")}
	if more := len(fresh) - most; more > 0 {
		attributes = append(attributes, "more", more)
	}
	h.log.Warn("reconcile failed, will retry", attributes...)
}

func (h *health) Stopped(string) {}

func (h *health) Close() {}
