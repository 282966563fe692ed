package feature

import "github.com/prometheus/client_golang/prometheus"

// Sink takes the samples of one collection.
type Sink struct{ Out chan<- prometheus.Metric }

// Gauge writes a value that can go down.
func (s Sink) Gauge(name, help string, value float64, labels prometheus.Labels) {
	s.write(name, help, prometheus.GaugeValue, value, labels)
}

// Counter writes a value that only grows.
func (s Sink) Counter(name, help string, value float64, labels prometheus.Labels) {
	s.write(name, help, prometheus.CounterValue, value, labels)
}

func (s Sink) write(name, help string, kind prometheus.ValueType, value float64, labels prometheus.Labels) {
	s.Out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, labels), kind, value)
}

// Failed reports that a metric could not be read.
func (s Sink) Failed(name string, err error) {
	s.Out <- prometheus.NewInvalidMetric(prometheus.NewDesc(name, "Could not be read.", nil, nil), err)
}
