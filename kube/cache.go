package kube

import (
	"context"
	"log/slog"
	"reflect"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"myelin/cluster"
)

// Cache is what an API server has of one kind, each object made into a T. It is
// safe for concurrent use. An object never becomes an older one than it was: a reader that
// writes one and adds the answer sees nothing older after that.
type Cache[T any] struct {
	resource Resource
	client   *Client
	log      *slog.Logger
	read     func(raw []byte) (T, error)
	wake     func()

	mu      sync.Mutex
	objects map[cluster.Key]cached[T]
	known   bool // listed, or missing
	problem error
}

type cached[T any] struct {
	version string
	object  T
}

// NewCache makes a cache that is empty until it runs. read makes an object of its
// JSON; one that it refuses is left out, and logged. wake is called after each change of one.
func NewCache[T any](c *Client, r Resource, log *slog.Logger, read func(raw []byte) (T, error), wake func()) *Cache[T] {
	return &Cache[T]{resource: r, client: c, log: log, read: read, wake: wake, objects: map[cluster.Key]cached[T]{}}
}

// Resource is the kind.
func (c *Cache[T]) Resource() *Resource { return &c.resource }

// All are the objects, in a map that is the caller's own. known is false before
// the server has told of them, or that it has no such kind.
func (c *Cache[T]) All() (all map[cluster.Key]T, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all = make(map[cluster.Key]T, len(c.objects))
	for k, o := range c.objects {
		all[k] = o.object
	}
	return all, c.known
}

// Problem is why the kind can't be listed; nil if it can.
func (c *Cache[T]) Problem() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

// Put takes an object that a server answered with, unless it knows a newer one.
func (c *Cache[T]) Put(raw []byte) error {
	var head rawHead
	if err := head.read(raw); err != nil {
		return err
	}
	object, err := c.read(raw)
	if err == nil {
		c.set(cluster.Key{Namespace: head.Metadata.Namespace, Name: head.Metadata.Name},
			cached[T]{head.Metadata.ResourceVersion, object})
	}
	return err
}

// Run follows the server until ctx ends.
func (c *Cache[T]) Run(ctx context.Context) error {
	k := &kind{GroupVersionKind: c.resource.GroupVersionKind, resource: c.resource.Plural,
		optional: c.resource.Optional, object: &raw{}, list: &rawList{}}
	k.convert = func(o runtime.Object, _ time.Time) (any, cluster.FieldErrors) {
		object, err := c.read(o.(*raw).text)
		return object, cluster.Faults(err)
	}
	lw, err := c.client.clients.listWatch(k, time.Now)
	if err != nil {
		return err
	}
	lw.consistent = true
	began := time.Now()
	reflectKind(withLogger(ctx, c.log), lw, &cacheStore[T]{c}, func(err error) (time.Duration, <-chan struct{}) {
		if !k.optional || !apierrors.IsNotFound(err) {
			c.fails(err)
			return 0, nil
		}
		c.replace(nil, "")
		if time.Since(began) < beingInstalled {
			return backoffMin, nil
		}
		return wait.Jitter(missingAgain, 1), nil
	})
	return nil
}

// missingAgain is when to look for a kind that is not installed.
const missingAgain = 5 * time.Second

func (c *Cache[T]) fails(err error) {
	c.mu.Lock()
	said := c.problem != nil && c.problem.Error() == err.Error()
	c.problem = err
	c.mu.Unlock()
	if !said {
		c.log.Warn("the API server doesn't tell of a kind", "kind", c.resource.Kind, "error", err)
	}
}

func (c *Cache[T]) set(key cluster.Key, o cached[T]) {
	c.mu.Lock()
	old, ok := c.objects[key]
	if ok && newer(old.version, o.version) {
		c.mu.Unlock()
		return
	}
	c.objects[key] = o
	c.mu.Unlock()
	// Heartbeats change only what is not kept.
	if !ok || !reflect.DeepEqual(old.object, o.object) {
		c.wake()
	}
}

// replace keeps what is newer than the list.
func (c *Cache[T]) replace(objects map[cluster.Key]cached[T], version string) {
	c.mu.Lock()
	for key, old := range c.objects {
		if now, ok := objects[key]; version != "" && (ok && newer(old.version, now.version) ||
			!ok && newer(old.version, version)) {
			objects[key] = old
		}
	}
	if objects == nil {
		objects = map[cluster.Key]cached[T]{}
	}
	c.objects, c.known, c.problem = objects, true, nil
	c.mu.Unlock()
	c.wake()
}

// newer reports whether one version of an object is newer than another: they are
// numbers that count up (KEP 5504).
func newer(a, b string) bool {
	x, err1 := strconv.ParseUint(a, 10, 64)
	y, err2 := strconv.ParseUint(b, 10, 64)
	return err1 == nil && err2 == nil && x > y
}

// cacheStore is a Cache to client-go.
type cacheStore[T any] struct{ *Cache[T] }

func (s *cacheStore[T]) item(o any) (cluster.Key, cached[T], bool) {
	i, ok := o.(*item)
	if !ok {
		return cluster.Key{}, cached[T]{}, false
	}
	if len(i.faults) > 0 {
		s.log.Error("an object can't be read", "kind", s.resource.Kind, "object", i.key(), "error", i.faults)
		return i.key(), cached[T]{}, false
	}
	object, ok := i.row.(T)
	return i.key(), cached[T]{i.ResourceVersion, object}, ok
}

// Add implements cache.ReflectorStore.
func (s *cacheStore[T]) Add(o any) error {
	if key, c, ok := s.item(o); ok {
		s.set(key, c)
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (s *cacheStore[T]) Update(o any) error { return s.Add(o) }

// Delete implements cache.ReflectorStore.
func (s *cacheStore[T]) Delete(o any) error {
	if i, ok := o.(*item); ok {
		s.mu.Lock()
		delete(s.objects, i.key())
		s.mu.Unlock()
		s.wake()
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (s *cacheStore[T]) Replace(list []any, version string) error {
	objects := make(map[cluster.Key]cached[T], len(list))
	for _, o := range list {
		if key, c, ok := s.item(o); ok {
			objects[key] = c
		}
	}
	s.replace(objects, version)
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *cacheStore[T]) Resync() error { return nil }
