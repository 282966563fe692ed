package metrics

import (
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"myelin/hubble/options"
)

// overflow is the value of all labels of the series that counts what has no series of its own.
const overflow = "overflow"

// vector is a Prometheus metric with labels.
type vector[T any] interface {
	prometheus.Collector
	WithLabelValues(...string) T
	DeleteLabelValues(...string) bool
}

// family is one metric: its series, of which there are at most limit. The
// own labels of a series come before those of its context.
type family[T any] struct {
	name    string
	labels  []string
	context *options.Context
	limit   int // of series, that of the overflow not in it

	mu         sync.Mutex
	vec        vector[T]
	known      map[string]series[T] // by its values
	overflowed uint64               // samples without a series of their own
}

type series[T any] struct {
	values []string
	metric T
}

// key joins values by a byte that is in no UTF-8 text.
func key(values []string) string { return strings.Join(values, "\xff") }

// with gives the series of some values to a function, or that of the overflow. Values are the caller's again
// afterwards.
func (f *family[T]) with(values []string, use func(T)) {
	k := key(values)
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.known[k]
	if !ok {
		if len(f.known) >= f.limit {
			f.overflowed++
			use(f.vec.WithLabelValues(slices.Repeat([]string{overflow}, len(f.labels))...))
			return
		}
		values = valid(values)
		s = series[T]{values, f.vec.WithLabelValues(values...)}
		f.known[k] = s
	}
	use(s.metric)
}

// valid replaces invalid UTF-8 in values: Prometheus panics on it, and names of DNS and HTTP come from the network.
func valid(values []string) []string {
	out := slices.Clone(values)
	for i := range out {
		out[i] = strings.ToValidUTF8(out[i], "\ufffd")
	}
	return out
}

// forget deletes the series of a pod that is gone: those that name it with its namespace.
func (f *family[T]) forget(namespace, pod string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, s := range f.known {
		if f.names(s.values, namespace, pod) {
			f.vec.DeleteLabelValues(s.values...)
			delete(f.known, k)
		}
	}
}

// names reports whether one end of a series is a pod.
func (f *family[T]) names(values []string, namespace, pod string) bool {
	value := func(label string) string {
		if i := slices.Index(f.labels, label); i >= 0 {
			return values[i]
		}
		return ""
	}
	full := namespace + "/" + pod
	for _, side := range []struct {
		label string
		kinds []string
	}{
		{"source", slices.Concat(f.context.Source, f.context.SourceEgress, f.context.SourceIngress)},
		{"destination", slices.Concat(f.context.Destination, f.context.DestinationEgress,
			f.context.DestinationIngress)},
	} {
		if slices.Contains(side.kinds, "pod") && value(side.label) == full {
			return true
		}
		if value(side.label+"_pod") == pod && value(side.label+"_namespace") == namespace {
			return true
		}
	}
	return false
}

// size is how many series there are, and how many samples the overflow has taken.
func (f *family[T]) size() (name string, count int, overflowed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.name, len(f.known), f.overflowed
}

// counted is implemented by all families.
type counted interface {
	forget(namespace, pod string)
	size() (name string, count int, overflowed uint64)
}
