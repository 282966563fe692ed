package ipsec

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cilium/hive/cell"

	"myelin/internal/table"
)

// lingerTime is how long a state that packets were sent with stays when they are sent with another one. The kernel
// drops a packet that has found its state already and not been encrypted with it when that is removed
// (XfrmOutStateInvalid), as on a processor that is held up meanwhile.
const lingerTime = 10 * time.Second

// retired are the states that linger. It is safe for concurrent use.
type retired struct {
	mu    sync.Mutex
	until map[id]time.Time
	queue []lingering   // earliest first; of a state that is wanted again, or was added again, an entry is left over
	added chan struct{} // closed when the queue is no longer empty
}

type lingering struct {
	id    id
	until time.Time
}

func newRetired() *retired { return &retired{until: map[id]time.Time{}, added: make(chan struct{})} }

// add has a state removed lingerTime after now.
func (r *retired) add(i id, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.until[i]; ok {
		return
	}
	r.until[i] = now.Add(lingerTime)
	if r.queue = append(r.queue, lingering{i, r.until[i]}); len(r.queue) == 1 {
		close(r.added)
		r.added = make(chan struct{})
	}
}

// keep has a state stay that is wanted again. It waits while states are removed.
func (r *retired) keep(i id) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.until, i)
}

// expire removes the states whose time is over. It returns when the next one's is, zero if there is none, and a channel
// that is closed when there is one. A state that can't be removed is tried again.
func (r *retired) expire(now time.Time, remove func(id) error) (next time.Time, added <-chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for len(r.queue) > 0 && !now.Before(r.queue[0].until) {
		first := r.queue[0]
		r.queue = r.queue[1:]
		if until, ok := r.until[first.id]; !ok || !until.Equal(first.until) {
			continue
		}
		delete(r.until, first.id)
		if err := remove(first.id); err != nil {
			errs = append(errs, err)
			r.until[first.id] = now.Add(lingerTime)
			r.queue = append(r.queue, lingering{first.id, r.until[first.id]})
		}
	}
	if len(r.queue) > 0 {
		next = r.queue[0].until
	}
	return next, r.added, errors.Join(errs...)
}

// runRetired removes states that have lingered.
func (e *IPsec) runRetired(ctx context.Context, _ cell.Health) error {
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		next, added, err := e.peers.retired.expire(e.params.Now(), func(i id) error { return i.remove(e.kernel) })
		if err != nil {
			e.params.Log.Warn("states of IPsec that are not wanted stay", "error", err)
		}
		w.Add(added)
		if !next.IsZero() {
			w.After(max(next.Sub(e.params.Now()), 0))
		}
		return nil
	})
}
