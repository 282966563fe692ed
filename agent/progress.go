package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"myelin/status"
)

// progress is how far the start is. It is safe for concurrent use.
type progress struct {
	// met is called when there is an obstacle; set it before the first one.
	met func()

	mu       sync.Mutex
	part     string // that is being started
	since    time.Time
	obstacle obstacle
	open     bool          // all requests can be answered
	changed  chan struct{} // closed when the obstacle changes or the way is open
}

// obstacle is what the start can't overcome by itself. Until it is gone, which
// may take for ever, whoever asks is told of it.
type obstacle struct {
	reason string // empty: there is none
	help   string // what the administrator could do about it
	since  time.Time
}

// errStarting marks answers of an agent whose start waits or takes too long.
var errStarting = errors.New("the agent is starting")

// patience is how long a request waits for a start that meets no obstacle: a
// restart takes a fraction of a second, and must not fail a pod.
const patience = 10 * time.Second

// starting notes what the agent is at.
func (p *progress) starting(part string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.part, p.since = part, time.Now()
	p.meet(obstacle{})
}

// waitsFor notes an obstacle, or with no reason that it is gone, and reports
// whether it is a new one.
func (p *progress) waitsFor(reason, help string) bool {
	p.mu.Lock()
	fresh := p.meet(obstacle{reason: reason, help: help})
	p.mu.Unlock()
	if fresh && p.met != nil {
		p.met()
	}
	return fresh
}

func (p *progress) meet(o obstacle) bool {
	if p.obstacle.reason == o.reason && p.obstacle.help == o.help {
		return false
	}
	if o.reason != "" {
		o.since = time.Now()
	}
	p.obstacle = o
	p.tell()
	return o.reason != ""
}

// opens lets all requests through.
func (p *progress) opens() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = true
	p.tell()
}

func (p *progress) tell() {
	if p.changed != nil {
		close(p.changed)
	}
	p.changed = nil
}

// waiting is for the status: what the start is at.
func (p *progress) waiting() *status.Waiting {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &status.Waiting{Part: p.part, Since: p.since, Reason: p.obstacle.reason, Help: p.obstacle.help}
	if w.Reason != "" {
		w.Since = p.obstacle.since
	}
	return w
}

func (p *progress) look() (open bool, o obstacle, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	return p.open, p.obstacle, p.changed
}

// isOpen reports whether all requests can be answered.
func (p *progress) isOpen() bool {
	open, _, _ := p.look()
	return open
}

// wait returns when requests can be answered, or an error that wraps
// errStarting and says what keeps the agent: at once where that is an obstacle,
// else when patience, ctx or the agent ends.
func (p *progress) wait(ctx context.Context, stopping <-chan struct{}) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		open, o, changed := p.look()
		switch {
		case open:
			return nil
		case o.reason != "":
			return fmt.Errorf("%w: %s", errStarting, o.reason)
		}
		select {
		case <-changed:
		case <-late.C:
			return fmt.Errorf("%w: %s", errStarting, p.said())
		case <-ctx.Done():
			return fmt.Errorf("%w: %s: %w", errStarting, p.said(), context.Cause(ctx))
		case <-stopping:
			return errors.New("the agent stops")
		}
	}
}

// said is what the start is at, as text.
func (p *progress) said() string {
	w := p.waiting()
	text := fmt.Sprintf("%s for %s", w.Part, time.Since(w.Since).Truncate(time.Millisecond))
	if w.Reason != "" {
		text += ": " + w.Reason
	}
	return text
}
