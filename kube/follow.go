package kube

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"myelin/cluster"
)

const (
	// backoffMin and backoffMax bound the time between attempts, which doubles
	// and is up to twice as long by chance: nodes must not ask in step.
	backoffMin = 800 * time.Millisecond
	backoffMax = 30 * time.Second
	// healthyFor is how long it must go well for the next failure to be a first
	// one.
	healthyFor = 2 * time.Minute
	// lookAgain is when to look for a kind that is not installed, without a notification
	// that it is now.
	lookAgain = 2 * time.Minute
	// beingInstalled is how long a server may take from a definition to the kind.
	beingInstalled = 20 * time.Second
)

// backoff is the time to wait before the next attempt.
type backoff struct {
	wait.Backoff

	last time.Time
}

func (b *backoff) next() time.Duration {
	if time.Since(b.last) > healthyFor+backoffMax {
		b.Backoff = wait.Backoff{Duration: backoffMin, Cap: backoffMax, Steps: int(backoffMax / backoffMin), Factor: 2,
			Jitter: 1}
	}
	b.last = time.Now()
	return b.Step()
}

// follow keeps what is known of a kind equal to what the server has, until ctx
// ends.
func (s *Source) follow(ctx context.Context, k *kind, c *clients) {
	lw, err := c.listWatch(k, s.Now)
	if err != nil {
		s.failed(k, err)
		return
	}
	found := s.states[k].found
	reflectKind(ctx, lw, &store{source: s, kind: k}, func(err error) (time.Duration, <-chan struct{}) {
		if k.namespace != "" && apierrors.IsForbidden(err) {
			s.forbidden(k, err)
			return 0, nil
		}
		if !k.optional || !apierrors.IsNotFound(err) {
			s.failed(k, err)
			return 0, nil
		}
		s.absent(k)
		if time.Since(s.state(k).seen) < beingInstalled {
			return backoffMin, found
		}
		return wait.Jitter(lookAgain, 1), found
	})
}

// reflectKind lists and watches, again and again. failed says how long to wait, 0: as
// long as others do, and what ends the wait.
func reflectKind(ctx context.Context, lw *listWatch, to cache.ReflectorStore,
	failed func(error) (time.Duration, <-chan struct{})) {
	log := klog.FromContext(ctx)
	r := cache.NewReflectorWithOptions(lw, nil, to, cache.ReflectorOptions{Logger: &log, Name: lw.resource,
		TypeDescription: lw.Kind})
	var delay backoff
	for ctx.Err() == nil {
		var pause time.Duration
		var enough <-chan struct{}
		if err := r.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			pause, enough = failed(err)
		}
		if pause == 0 {
			pause = delay.next()
		}
		select {
		case <-ctx.Done():
		case <-enough:
		case <-time.After(pause):
		}
	}
}

// followDefinitions wakes the followers of a kind when it is installed. Where we
// may not see definitions, they find out by themselves.
func (s *Source) followDefinitions(ctx context.Context, c *clients) {
	lw, err := c.definitions()
	if err != nil {
		s.Log.Error("CustomResourceDefinitions are not watched", "error", err)
		return
	}
	reflectKind(ctx, lw, definitions{s}, func(error) (time.Duration, <-chan struct{}) { return 0, nil })
}

// store takes what the server says of a kind.
type store struct {
	source *Source
	kind   *kind
}

// Add implements cache.ReflectorStore.
func (t *store) Add(o any) error {
	if i, ok := o.(*item); ok {
		t.source.change(t.kind, func(p *pending) { p.items[i.key()] = i })
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (t *store) Update(o any) error { return t.Add(o) }

// Delete implements cache.ReflectorStore.
func (t *store) Delete(o any) error {
	if i, ok := o.(*item); ok {
		t.source.change(t.kind, func(p *pending) { p.items[i.key()] = nil })
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (t *store) Replace(list []any, _ string) error {
	items := make(map[cluster.Key]*item, len(list))
	for _, o := range list {
		if i, ok := o.(*item); ok {
			items[i.key()] = i
		}
	}
	t.source.listed(t.kind)
	t.source.change(t.kind, func(p *pending) { p.items, p.all = items, true })
	return nil
}

// Resync implements cache.ReflectorStore.
func (t *store) Resync() error { return nil }

// definitions takes names of CustomResourceDefinitions.
type definitions struct{ source *Source }

// Add implements cache.ReflectorStore.
func (d definitions) Add(o any) error {
	if i, ok := o.(*item); ok {
		for _, k := range d.source.kinds {
			if k.optional && k.definition() == i.Name {
				d.source.find(k)
			}
		}
	}
	return nil
}

// Update implements cache.ReflectorStore: a definition changes when it is
// established.
func (d definitions) Update(o any) error { return d.Add(o) }

// Delete implements cache.ReflectorStore. Objects of the kind are deleted before.
func (d definitions) Delete(any) error { return nil }

// Replace implements cache.ReflectorStore.
func (d definitions) Replace(list []any, _ string) error {
	for _, o := range list {
		_ = d.Add(o) // it can't fail
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (d definitions) Resync() error { return nil }

func noRow(runtime.Object, time.Time) (any, cluster.FieldErrors) { return nil, nil }
