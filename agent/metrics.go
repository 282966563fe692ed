package agent

import (
	"context"
	"errors"
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
	"github.com/vishvananda/netlink"
	"google.golang.org/grpc"

	"myelin/bpf"
	"myelin/drop"
	"myelin/identity"
)

// metrics reads the agent's parts when somebody asks.
type metrics struct {
	agent    *Agent
	registry *prometheus.Registry
	cni      *prometheus.HistogramVec
}

func newMetrics(a *Agent) *metrics {
	m := &metrics{agent: a, registry: prometheus.NewRegistry(), cni: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "myelin_cni_duration_seconds", Help: "Time that CNI requests took in the agent.",
		Buckets: []float64{.001, .0025, .005, .01, .02, .05, .1, .25, .5, 1, 2.5, 10},
	}, []string{"command", "result"})}
	version := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "myelin_version", Help: "Always 1."}, []string{"version", "revision", "arch"})
	version.WithLabelValues(a.version, revision(), runtime.GOARCH).Set(1)
	m.registry.MustRegister(m, m.cni, version, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
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
func (m *metrics) observe(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
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
	s := sink{out}
	m.kubernetes(s)
	ready := m.agent.readyAfter()
	if ready == 0 {
		return
	}
	s.gauge("myelin_agent_bootstrap_seconds", "Time from the agent's start until it was ready.", ready.Seconds(),
		prometheus.Labels{"scope": "overall", "outcome": "success"})
	s.counter("myelin_reloads_total", "How often the agent has loaded its programs anew, for what they were loaded with had changed.",
		float64(m.agent.lives.reloads), nil)
	m.counters(s)
	m.events(s)
	m.maps(s)
	m.tables(s)
	m.pods(s)
	m.cluster(s)
	m.services(s)
	m.policies(s)
	m.healthChecks(s)
}

func (m *metrics) counters(s sink) {
	list, err := drop.Counters{Cpus: m.agent.datapath.Cpus}.Read()
	if err != nil {
		s.failed("myelin_drop_count_total", err)
		return
	}
	for _, c := range list {
		labels := prometheus.Labels{"direction": direction(c.Hook), "hook": string(c.Hook)}
		if c.Outcome.IsDrop() {
			labels["reason"] = c.Outcome.Label()
			s.counter("myelin_drop_count_total", "Dropped packets by direction, hook and reason.", float64(c.Packets), labels)
			s.counter("myelin_drop_bytes_total", "Dropped bytes, from the Ethernet header on.", float64(c.Bytes), labels)
			continue
		}
		labels["way"] = c.Outcome.Label()
		s.counter("myelin_forward_count_total", "Forwarded packets by direction, hook and way.", float64(c.Packets), labels)
		s.counter("myelin_forward_bytes_total", "Forwarded bytes, from the Ethernet header on.", float64(c.Bytes), labels)
	}
}

// direction is what Cilium calls the direction of the packets at a hook: into the node or a pod, or out of it.
func direction(h bpf.Hook) string {
	if h == bpf.FromPod || h == bpf.ToWire {
		return "EGRESS"
	}
	return "INGRESS"
}

func (m *metrics) events(s sink) {
	const name, help = "myelin_events_lost_total", "Events that subscribers missed: the kernel could not send them, or the subscriber was slow."
	slow, kernel := m.agent.hub.Lost()
	s.counter(name, help, float64(slow), prometheus.Labels{"where": "subscriber"})
	s.counter(name, help, float64(kernel), prometheus.Labels{"where": "kernel"})
	s.counter("myelin_flows_expired_total", "Flows whose row was deleted since no packet was seen for too long.", float64(m.agent.collector.Expired()), nil)
	for _, u := range m.agent.conntrack() {
		labels := prometheus.Labels{"table": u.Table}
		s.gauge("myelin_conntrack_entries", "Entries of a conntrack table, as the agent counted last.", float64(u.Entries), labels)
		s.gauge("myelin_conntrack_max_entries", "Room in a conntrack table.", float64(u.Max), labels)
		if u.Most > 0 {
			labels = prometheus.Labels{"table": u.Table, "pod": u.Pod}
			s.gauge("myelin_conntrack_top_entries", "Entries of the pod that has the most of a conntrack table.", float64(u.Most), labels)
		}
	}
}

func (m *metrics) maps(s sink) {
	list, err := m.agent.usages.Read()
	if err != nil {
		s.failed("myelin_bpf_map_bytes", err)
		return
	}
	var all uint64
	for _, u := range list {
		all += u.Bytes
		labels := prometheus.Labels{"map_name": u.Name}
		s.gauge("myelin_bpf_map_bytes", "Kernel memory of a BPF map.", float64(u.Bytes), labels)
		s.gauge("myelin_bpf_map_capacity", "Room in a BPF map, in entries; of a ring buffer in bytes.", float64(u.Max), prometheus.Labels{"map_group": u.Name})
		if u.Entries >= 0 {
			s.gauge("myelin_bpf_map_entries", "Entries of a BPF map.", float64(u.Entries), labels)
			s.gauge("myelin_bpf_map_pressure", "Part of a BPF map that is in use, 0 to 1.", u.Pressure(), labels)
		}
	}
	s.gauge("myelin_bpf_maps_virtual_memory_max_bytes", "Kernel memory of all BPF maps of the datapath.", float64(all), nil)
}

// tables counts rows by the state of their reconciliation.
func (m *metrics) tables(s sink) {
	txn := m.agent.db.ReadTxn()
	for _, meta := range m.agent.db.GetTables(txn) {
		t := statedb.AnyTable{Meta: meta}
		states := map[string]int{}
		for row := range t.All(txn) {
			states[rowState(row)]++
		}
		delete(states, "")
		for state, n := range states {
			s.gauge("myelin_table_rows", "Rows of a table by the state of their reconciliation.", float64(n),
				prometheus.Labels{"table": meta.Name(), "state": state})
		}
		if len(states) > 0 {
			s.gauge("myelin_reconcile_errors", "Rows of a table that the kernel does not have as wanted, for an error.",
				float64(states["error"]), prometheus.Labels{"table": meta.Name()})
		}
	}
}

// rowState is "done", "pending", "refreshing" or "error"; empty for a row that
// nobody reconciles.
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

func (m *metrics) pods(s sink) {
	states := map[string]int{}
	for e := range m.agent.endpoints.All(m.agent.db.ReadTxn()) {
		states[e.State]++
	}
	for state, n := range states {
		s.gauge("myelin_endpoint_state", "Endpoints of this node by state.", float64(n), prometheus.Labels{"endpoint_state": state})
	}
	s.gauge("myelin_endpoint", "Endpoints of this node.", float64(m.agent.endpoints.NumObjects(m.agent.db.ReadTxn())), nil)
	for _, u := range m.agent.ipam.Dump() {
		labels := prometheus.Labels{"family": "ipv6", "prefix": u.Prefix.String()}
		if u.Prefix.Addr().Is4() {
			labels["family"] = "ipv4"
		}
		s.gauge("myelin_ip_addresses", "Addresses of a podCIDR that pods have.", float64(u.InUse), labels)
		s.gauge("myelin_ipam_capacity", "Addresses of a podCIDR that pods can have.", float64(u.Capacity), labels)
	}
	s.gauge("myelin_ipam_addresses_outside", "Addresses that pods have and that are in no podCIDR any more.", float64(len(m.agent.ipam.Outside())), nil)
	links, err := m.agent.host.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		s.failed("myelin_stray_links", err)
		return
	}
	s.gauge("myelin_stray_links", "Pod links that belong to no endpoint, for their state was lost.", float64(len(m.agent.manager.Strays(links))), nil)
}

// cluster counts nodes and identities.
func (m *metrics) cluster(s sink) {
	txn := m.agent.db.ReadTxn()
	s.gauge("myelin_nodes_all_num", "Nodes of the cluster.", float64(m.agent.cluster.Nodes.NumObjects(txn)), nil)
	types := map[string]int{"reserved": 0, "node_local": 0}
	for id := range m.agent.identities.Identities().All(txn) {
		if id.ID < identity.First {
			types["reserved"]++
		} else {
			types["node_local"]++
		}
	}
	for kind, n := range types {
		s.gauge("myelin_identity", "Identities of label sets on this node by type.", float64(n), prometheus.Labels{"type": kind})
	}
}

// sink makes metrics of values.
type sink struct{ out chan<- prometheus.Metric }

func (s sink) gauge(name, help string, value float64, labels prometheus.Labels) {
	s.out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, labels), prometheus.GaugeValue, value)
}

func (s sink) counter(name, help string, value float64, labels prometheus.Labels) {
	s.out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, labels), prometheus.CounterValue, value)
}

func (s sink) failed(name string, err error) {
	s.out <- prometheus.NewInvalidMetric(prometheus.NewDesc(name, "Could not be read.", nil, nil), err)
}
