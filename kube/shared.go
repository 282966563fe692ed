package kube

import (
	"hash/maphash"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"myelin/cluster"
)

// poolSize is how many values a pool keeps before it forgets those that were not
// asked for since. Twice as many may be there.
const poolSize = 4096

// pool makes equal values the same one: the pods of a Deployment have their labels
// once in memory. What is not in use is kept for a while, what is in use is not
// kept for ever: then it is there twice, and no worse.
type pool[T any] struct {
	hash  func(maphash.Seed, T) uint64
	equal func(a, b T) bool

	mu          sync.Mutex
	seed        maphash.Seed
	now, before map[uint64]T
}

func newPool[T any](hash func(maphash.Seed, T) uint64, equal func(a, b T) bool) *pool[T] {
	return &pool[T]{hash: hash, equal: equal, seed: maphash.MakeSeed(), now: map[uint64]T{}}
}

// of returns a value that is equal, which must not be changed.
func (p *pool[T]) of(v T) T {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := p.hash(p.seed, v)
	known, ok := p.now[key]
	if !ok {
		known, ok = p.before[key]
	}
	if ok && p.equal(known, v) {
		v = known
	}
	if len(p.now) >= poolSize {
		p.now, p.before = map[uint64]T{}, p.now
	}
	p.now[key] = v
	return v
}

// podReader makes rows of Pods.
type podReader struct {
	labels *pool[map[string]string]
	ports  *pool[[]cluster.Port]
}

func newPodReader() *podReader {
	return &podReader{
		labels: newPool(func(seed maphash.Seed, labels map[string]string) (sum uint64) {
			for k, v := range labels { // in any order
				sum += maphash.Comparable(seed, [2]string{k, v})
			}
			return sum
		}, maps.Equal[map[string]string]),
		ports: newPool(func(seed maphash.Seed, ports []cluster.Port) (sum uint64) {
			for _, p := range ports {
				sum = sum*31 + maphash.Comparable(seed, p)
			}
			return sum
		}, slices.Equal[[]cluster.Port]),
	}
}

// read leaves out annotations that are not used: controllers write them all the
// time, and each would be a change.
func (r *podReader) read(pod *corev1.Pod, source string) (*cluster.Pod, error) {
	maps.DeleteFunc(pod.Annotations, func(name, _ string) bool { return !cluster.UsesAnnotation(name) })
	if len(pod.Annotations) == 0 {
		pod.Annotations = nil
	}
	row, err := cluster.FromPod(pod, source)
	if err != nil {
		return nil, err
	}
	row.Labels, row.Ports = r.labels.of(row.Labels), r.ports.of(row.Ports)
	return row, nil
}
