package consumer

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// State is the progress of an exporter, and its last error.
type State struct {
	Name    string // "static", or as its configuration names it
	Target  string // a file, or an address
	Written uint64 // flows
	// Lost are flows that did not fit into the exporter's queue, or were not taken
	// by the target.
	Lost uint64
	// Err is why the last attempt failed; nil after one that did not.
	Err error
	// Ended is set after the end that is configured.
	Ended bool
}

// Exporter is a Consumer that writes flows elsewhere.
type Exporter interface {
	Consumer
	State() State
}

// Progress counts what an exporter writes. The zero value is ready.
type Progress struct {
	written, failed atomic.Uint64
	mu              sync.Mutex
	err             error
}

// Wrote notes that n flows were taken. It reports whether the attempt before has failed.
func (p *Progress) Wrote(n int) (again bool) {
	p.written.Add(uint64(n))
	return p.set(nil) != nil
}

// Failed notes that n flows were not taken. It reports whether the attempt before has not failed for the same reason:
// then it is worth a line of the log.
func (p *Progress) Failed(n int, err error) (first bool) {
	p.failed.Add(uint64(n))
	before := p.set(err)
	return before == nil || before.Error() != err.Error()
}

func (p *Progress) set(err error) (before error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before, p.err = p.err, err
	return before
}

// State returns the state of an exporter with a queue.
func (p *Progress) State(name, target string, q *Queue) State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return State{Name: name, Target: target, Written: p.written.Load(), Lost: p.failed.Load() + q.Dropped(), Err: p.err}
}

// Collector makes metrics of the states of exporters, which are read at each scrape.
type Collector func() []State

// Describe implements prometheus.Collector.
func (Collector) Describe(out chan<- *prometheus.Desc) {
	out <- written()
	out <- lost()
	out <- up()
}

func written() *prometheus.Desc {
	return prometheus.NewDesc("hubble_exporter_flows_total", "Flows that an exporter has written.",
		[]string{"exporter"}, nil)
}

func lost() *prometheus.Desc {
	return prometheus.NewDesc("hubble_exporter_lost_total",
		"Flows that an exporter has lost: its queue was full, or its target did not take them.",
		[]string{"exporter"}, nil)
}

func up() *prometheus.Desc {
	return prometheus.NewDesc("hubble_exporter_up", "Whether the last attempt of an exporter to write did not fail.",
		[]string{"exporter"}, nil)
}

// Collect implements prometheus.Collector.
func (c Collector) Collect(out chan<- prometheus.Metric) {
	for _, s := range c() {
		ok := 1.0
		if s.Err != nil {
			ok = 0
		}
		out <- prometheus.MustNewConstMetric(written(), prometheus.CounterValue, float64(s.Written), s.Name)
		out <- prometheus.MustNewConstMetric(lost(), prometheus.CounterValue, float64(s.Lost), s.Name)
		out <- prometheus.MustNewConstMetric(up(), prometheus.GaugeValue, ok, s.Name)
	}
}
