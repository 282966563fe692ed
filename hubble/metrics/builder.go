package metrics

import (
	"slices"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"github.com/prometheus/client_golang/prometheus"

	"myelin/hubble/options"
)

// builder makes the families of one metric of the configuration.
type builder struct {
	metrics *Metrics
	metric  *options.Metric
	limit   int
}

// handler counts flows.
func (b *builder) handler() func(*flowpb.Flow) {
	return map[string]func() func(*flowpb.Flow){
		"dns": b.dns, "drop": b.drop, "flow": b.flow, "flows-to-world": b.flowsToWorld, "http": b.http,
		"httpV2": b.httpV2, "icmp": b.icmp, "kafka": b.kafka, "policy": b.policy,
		"port-distribution": b.portDistribution, "tcp": b.tcp,
	}[b.metric.Name]()
}

// counter is a family of counters, histogram one of histograms.
type (
	counter   struct{ *family[prometheus.Counter] }
	histogram struct{ *family[prometheus.Observer] }
)

// observers hides what HistogramVec has beside vector.
type observers struct{ *prometheus.HistogramVec }

// counter registers a counter "hubble_NAME" with labels of its own.
func (b *builder) counter(name, help string, own ...string) counter {
	name = "hubble_" + name
	labels := append(slices.Clone(own), b.metric.Context.Names()...)
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	b.metrics.registry.MustRegister(vec)
	f := newFamily(b, name, labels, vector[prometheus.Counter](vec))
	b.metrics.families = append(b.metrics.families, f)
	return counter{f}
}

// histogram registers a histogram "hubble_NAME" of seconds.
func (b *builder) histogram(name, help string, own ...string) histogram {
	name = "hubble_" + name
	labels := append(slices.Clone(own), b.metric.Context.Names()...)
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help}, labels)
	b.metrics.registry.MustRegister(vec)
	f := newFamily(b, name, labels, vector[prometheus.Observer](observers{vec}))
	b.metrics.families = append(b.metrics.families, f)
	return histogram{f}
}

func newFamily[T any](b *builder, name string, labels []string, vec vector[T]) *family[T] {
	return &family[T]{name: name, labels: labels, context: &b.metric.Context, limit: b.limit, vec: vec,
		known: map[string]series[T]{}}
}

// sample is a flow, and how it is counted.
type sample struct {
	flow     *flowpb.Flow
	inverted bool   // its ends are exchanged
	trace    string // id of an exemplar; empty: none
}

// count adds one to the series of the own values and the flow's context.
func (c counter) count(s sample, own ...string) {
	c.with(contextValues(own, c.context, s.flow, s.inverted), func(one prometheus.Counter) {
		if adder, ok := one.(prometheus.ExemplarAdder); ok && s.trace != "" {
			adder.AddWithExemplar(1, prometheus.Labels{"traceID": s.trace})
			return
		}
		one.Inc()
	})
}

// observe adds a duration, in seconds.
func (h histogram) observe(s sample, seconds float64, own ...string) {
	h.with(contextValues(own, h.context, s.flow, s.inverted), func(one prometheus.Observer) {
		if o, ok := one.(prometheus.ExemplarObserver); ok && s.trace != "" {
			o.ObserveWithExemplar(seconds, prometheus.Labels{"traceID": s.trace})
			return
		}
		one.Observe(seconds)
	})
}
