package agent

import (
	"context"
	"path"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc"

	"myelin/agent/feature"
)

// metrics reads the features on request.
type metrics struct {
	agent    *agent
	registry *prometheus.Registry
	cni      *prometheus.HistogramVec
}

func newMetrics(a *agent) *metrics {
	m := &metrics{agent: a, registry: prometheus.NewRegistry(),
		cni: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "myelin_cni_duration_seconds", Help: "Time that CNI requests took in the agent.",
			Buckets: []float64{.001, .0025, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 10},
		}, []string{"command", "result"})}
	version := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "myelin_version", Help: "Always 1."},
		[]string{"version", "revision", "arch"})
	version.WithLabelValues(a.version, revision(), runtime.GOARCH).Set(1)
	m.registry.MustRegister(m, m.cni, version, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// revision is the commit that the program was built of; empty where the build does not tell.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}

// observe measures CNI requests.
func (m *metrics) observe(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	next grpc.UnaryHandler) (any, error) {
	begin := time.Now()
	answer, err := next(ctx, req)
	if strings.HasPrefix(info.FullMethod, "/myelin.v1.CNI/") {
		result := "ok"
		if err != nil {
			result = "error"
		}
		m.cni.WithLabelValues(strings.ToUpper(path.Base(info.FullMethod)), result).Observe(time.Since(begin).Seconds())
	}
	return answer, err
}

// Describe implements prometheus.Collector. What is collected depends on the
// agent, so that nothing is promised.
func (m *metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. Before the agent is ready its parts
// are not there.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	s := feature.Sink{Out: out}
	m.agent.source.metrics(s)
	ready := m.agent.readyAfter()
	if ready == 0 {
		return
	}
	s.Gauge("myelin_agent_bootstrap_seconds", "Time from the agent's start until it was ready.", ready.Seconds(),
		prometheus.Labels{"scope": "overall", "outcome": "success"})
	s.Counter("myelin_reloads_total",
		"How often the agent has loaded its programs anew, for what they were loaded with had changed.",
		float64(m.agent.restarts.count), nil)
	m.tables(s)
	for _, f := range m.agent.list {
		if f.Metrics != nil {
			f.Metrics(s)
		}
	}
}

// tables counts rows by the state of their reconciliation.
func (m *metrics) tables(s feature.Sink) {
	txn := m.agent.DB.ReadTxn()
	for _, meta := range m.agent.DB.GetTables(txn) {
		t := statedb.AnyTable{Meta: meta}
		states := map[string]int{}
		for row := range t.All(txn) {
			states[rowState(row)]++
		}
		delete(states, "")
		for state, n := range states {
			s.Gauge("myelin_table_rows", "Rows of a table by the state of their reconciliation.", float64(n),
				prometheus.Labels{"table": meta.Name(), "state": state})
		}
		if len(states) > 0 {
			s.Gauge("myelin_reconcile_errors", "Rows of a table that the kernel does not have as wanted, for an error.",
				float64(states["error"]), prometheus.Labels{"table": meta.Name()})
		}
	}
}

// rowState is "done", "pending", "refreshing" or "error", or empty for a row without a reconciler.
func rowState(row any) string {
	v := reflect.Indirect(reflect.ValueOf(row))
	if v.Kind() != reflect.Struct {
		return ""
	}
	field := v.FieldByName("Status")
	if !field.IsValid() {
		return ""
	}
	s, ok := field.Interface().(reconciler.Status)
	if !ok {
		return ""
	}
	return strings.ToLower(s.Kind.String())
}
