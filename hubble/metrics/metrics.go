// Package metrics counts flows under the names and labels of Hubble's metrics.
package metrics

import (
	"log/slog"
	"net/http"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"myelin/hubble/consumer"
	"myelin/hubble/options"
)

// defaultMaxSeries is how many series a metric has at most by default.
const defaultMaxSeries = 10000

// Params of New.
type Params struct {
	Metrics []options.Metric
	// MaxSeries bounds the series of each metric; 0: defaultMaxSeries.
	MaxSeries int
	// OpenMetrics lets clients have that format, the only one with exemplars.
	OpenMetrics bool
}

// Metrics is a consumer.Consumer that counts, and a registry of its own.
type Metrics struct {
	registry    *prometheus.Registry
	openMetrics bool
	handlers    []func(*flowpb.Flow)
	families    []counted
	lost        *prometheus.CounterVec
}

// New makes the metrics that are configured.
func New(p Params) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), openMetrics: p.OpenMetrics,
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "hubble_lost_events_total", Help: "Number of lost events",
		}, []string{"source"})}
	limit := p.MaxSeries
	if limit == 0 {
		limit = defaultMaxSeries
	}
	m.registry.MustRegister(m.lost, sizes{m})
	for source := range flowpb.LostEventSource_name { // rate() misses the first loss of a series that begins with it
		if source != int32(flowpb.LostEventSource_UNKNOWN_LOST_EVENT_SOURCE) {
			m.lost.WithLabelValues(consumer.LostSource(&flowpb.LostEvent{Source: flowpb.LostEventSource(source)}))
		}
	}
	for i := range p.Metrics {
		b := &builder{metrics: m, metric: &p.Metrics[i], limit: limit}
		m.handlers = append(m.handlers, b.handler())
	}
	return m
}

// Consume implements consumer.Consumer.
func (m *Metrics) Consume(f *flowpb.Flow) {
	for _, count := range m.handlers {
		count(f)
	}
}

// Lost implements consumer.Consumer.
func (m *Metrics) Lost(l *flowpb.LostEvent) {
	m.lost.WithLabelValues(consumer.LostSource(l)).Add(float64(l.GetNumEventsLost()))
}

// Forget deletes the series of a pod that is gone. Its last flows may be read
// after that: the caller waits for a minute.
func (m *Metrics) Forget(namespace, pod string) {
	for _, f := range m.families {
		f.forget(namespace, pod)
	}
}

// Register adds metrics of others to those that are served.
func (m *Metrics) Register(c prometheus.Collector) error { return m.registry.Register(c) }

// Gatherer returns the metrics to serve.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// Handler answers requests for /metrics.
func (m *Metrics) Handler(log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{EnableOpenMetrics: m.openMetrics,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)})
}

// sizes exposes the number of series.
type sizes struct{ metrics *Metrics }

func (sizes) series() *prometheus.Desc {
	return prometheus.NewDesc("hubble_metrics_series", "Series of a metric of flows.", []string{"metric"}, nil)
}

func (sizes) overflow() *prometheus.Desc {
	return prometheus.NewDesc("hubble_metrics_overflow_total",
		"Samples that were counted by the series \"overflow\", for the metric has as many as it may have.",
		[]string{"metric"}, nil)
}

// Describe implements prometheus.Collector.
func (s sizes) Describe(out chan<- *prometheus.Desc) {
	out <- s.series()
	out <- s.overflow()
}

// Collect implements prometheus.Collector.
func (s sizes) Collect(out chan<- prometheus.Metric) {
	for _, f := range s.metrics.families {
		name, count, overflowed := f.size()
		out <- prometheus.MustNewConstMetric(s.series(), prometheus.GaugeValue, float64(count), name)
		out <- prometheus.MustNewConstMetric(s.overflow(), prometheus.CounterValue, float64(overflowed), name)
	}
}
