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
	// Run runs one check. It is the function Run, except in tests.
	Run func(context.Context, Check, netip.AddrPort) error
	// Report is called with the first result of a job, and when its state or its error changes. err is that of the last
	// check, nil if it passed. Report may be called for a job that is being removed.
	Report func(key K, job Job, passing bool, err error)
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

func (r *Runner[K]) run(ctx context.Context, key K, job Job) {
	s := score{rise: job.Check.Rise, fall: job.Check.Fall}
	wait := rand.N(min(firstWithin, job.Check.Interval))
	for pause(ctx, wait) {
		select {
		case r.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		err := r.params.Run(ctx, job.Check, job.Backend)
		<-r.slots
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			r.passed.Add(1)
		} else {
			r.failed.Add(1)
		}
		if s.note(err) {
			r.params.Report(key, job, s.passing, s.err)
		}
		wait = job.Check.Interval*9/10 + rand.N(job.Check.Interval/5)
	}
}

// score derives the state from results in a row. The first result decides, because a new job must not wait.
type score struct {
	rise, fall int
	known      bool
	passing    bool
	against    int   // results in a row that contradict passing
	err        error // of the last check
}

// note records a result and reports whether the state or the error has changed.
func (s *score) note(err error) bool {
	same := s.known && text(err) == text(s.err)
	s.err = err
	passes := err == nil
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
