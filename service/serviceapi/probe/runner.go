package probe

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Job is a backend and its check.
type Job struct {
	Backend netip.AddrPort
	Check   Check
}

// Params are what a Runner needs.
type Params[K comparable] struct {
	// Run runs one check.
	Run func(ctx context.Context, key K, job Job) Result
	// Report is called with the first result of a job, and when its state, its error or the way of its packets changes.
	// last is the result of the last check. Report may be called for a job that is being removed.
	Report func(key K, job Job, passing bool, last Result)
	// Parallel bounds the number of checks at a time.
	Parallel int
}

// Runner checks many backends, each at its own times.
type Runner[K comparable] struct {
	params         Params[K]
	slots          chan struct{}
	passed, failed atomic.Uint64
	ends           sync.WaitGroup

	mu     sync.Mutex
	jobs   map[K]running
	closed bool
}

type running struct {
	Job
	cancel context.CancelFunc
}

// NewRunner makes a Runner without jobs.
func NewRunner[K comparable](p Params[K]) *Runner[K] {
	return &Runner[K]{params: p, slots: make(chan struct{}, p.Parallel), jobs: map[K]running{}}
}

// Set makes job the job of key, or removes that if job is nil. An unchanged job keeps its times and its state.
func (r *Runner[K]) Set(key K, job *Job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old, ok := r.jobs[key]
	if ok && job != nil && old.Job == *job {
		return
	}
	if ok {
		old.cancel()
		delete(r.jobs, key)
	}
	if job == nil || r.closed {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.jobs[key] = running{*job, cancel}
	r.ends.Go(func() { r.run(ctx, key, *job) })
}

// Counts are how many checks passed and failed since the start.
func (r *Runner[K]) Counts() (passed, failed uint64) { return r.passed.Load(), r.failed.Load() }

// Close removes all jobs, waits for running checks, and accepts no more jobs. Report must not wait for the caller of
// Close.
func (r *Runner[K]) Close() {
	r.mu.Lock()
	r.closed = true
	for key, j := range r.jobs {
		j.cancel()
		delete(r.jobs, key)
	}
	r.mu.Unlock()
	r.ends.Wait()
}

// firstWithin is the time over which the first checks of jobs that are added together are spread.
const firstWithin = 200 * time.Millisecond

// A job's first result waits this long for the datapath to learn of a new Service. Until then it is early: the check
// went directly, and would hide that clients' packets don't arrive. It is repeated after a pause.
const (
	settleWithin = time.Second
	settlePause  = 50 * time.Millisecond
)

func (r *Runner[K]) run(ctx context.Context, key K, job Job) {
	s := score{rise: job.Check.Rise, fall: job.Check.Fall}
	wait := rand.N(min(firstWithin, job.Check.Interval))
	for begin := time.Now(); pause(ctx, wait); {
		select {
		case r.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		result := r.params.Run(ctx, key, job)
		<-r.slots
		if ctx.Err() != nil {
			return
		}
		if result.Early && !s.known && time.Since(begin) < settleWithin {
			wait = settlePause
			continue
		}
		if result.Err == nil {
			r.passed.Add(1)
		} else {
			r.failed.Add(1)
		}
		if s.note(result) {
			r.params.Report(key, job, s.passing, s.last)
		}
		wait = job.Check.Interval*9/10 + rand.N(job.Check.Interval/5)
	}
}

// score derives the state from results in a row. The first result decides, because a new job must not wait.
type score struct {
	rise, fall int
	known      bool
	passing    bool
	against    int // results in a row that contradict passing
	last       Result
}

// note records a result and reports whether the state, the error or the way has changed.
func (s *score) note(r Result) bool {
	same := s.known && text(r.Err) == text(s.last.Err) && r.Via == s.last.Via
	s.last = r
	passes := r.Err == nil
	if s.known && passes == s.passing {
		s.against = 0
		return !same
	}
	s.against++
	need := s.fall
	if passes {
		need = s.rise
	}
	if s.known && s.against < need {
		return !same
	}
	s.known, s.passing, s.against = true, passes, 0
	return true
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
