package metrics

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"myelin/hubble/eventtype"
	"myelin/hubble/options"
)

func metrics(t *testing.T, limit int, items ...string) *Metrics {
	t.Helper()
	list, err := options.Metrics(items)
	if err != nil {
		t.Fatal(err)
	}
	return New(Params{Metrics: list, MaxSeries: limit, OpenMetrics: true})
}

// want compares what is served, without comments, the sizes of metrics, and sources that have lost no events.
func want(t *testing.T, m *Metrics, lines ...string) {
	t.Helper()
	got := scrape(t, m, "")
	var kept []string
	for line := range strings.Lines(got) {
		if strings.HasPrefix(line, "hubble_lost_events_total") && strings.HasSuffix(line, " 0\n") {
			continue
		}
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "hubble_metrics_") &&
			!strings.Contains(line, "_bucket") {
			kept = append(kept, strings.TrimSpace(line))
		}
	}
	if got, want := strings.Join(kept, "\n"), strings.Join(lines, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestNothingLost: the series of lost events are there before the first loss.
func TestNothingLost(t *testing.T) {
	got := scrape(t, metrics(t, 0), "")
	for _, source := range []string{"hubble_ring_buffer", "observer_events_queue", "perf_event_ring_buffer"} {
		if line := `hubble_lost_events_total{source="` + source + `"} 0` + "\n"; !strings.Contains(got, line) {
			t.Errorf("no %q in\n%s", line, got)
		}
	}
}

func scrape(t *testing.T, m *Metrics, accept string) string {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	m.Handler(slog.Default()).ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatal(w.Code, w.Body)
	}
	return w.Body.String()
}

// tcp is a flow from x/a to the world's port 80.
func tcp(flags *flowpb.TCPFlags) *flowpb.Flow {
	return &flowpb.Flow{
		Verdict: flowpb.Verdict_FORWARDED, EventType: &flowpb.CiliumEventType{Type: eventtype.Trace, SubType: 11},
		IP:      &flowpb.IP{Source: "10.0.0.1", Destination: "192.0.2.1", IpVersion: flowpb.IPVersion_IPv4},
		IsReply: wrapperspb.Bool(false), TrafficDirection: flowpb.TrafficDirection_EGRESS,
		L4: &flowpb.Layer4{Protocol: &flowpb.Layer4_TCP{TCP: &flowpb.TCP{
			SourcePort: 40000, DestinationPort: 80, Flags: flags}}},
		Source: &flowpb.Endpoint{Namespace: "x", PodName: "a", Identity: 5000,
			Labels:    []string{"k8s:app=shop", "k8s:io.kubernetes.pod.namespace=x"},
			Workloads: []*flowpb.Workload{{Kind: "Deployment", Name: "front"}}},
		Destination:      &flowpb.Endpoint{Identity: 2, Labels: []string{"reserved:world"}},
		DestinationNames: []string{"example.com", "example.org"},
	}
}

func denied() *flowpb.Flow {
	f := tcp(&flowpb.TCPFlags{SYN: true})
	f.Verdict, f.DropReasonDesc = flowpb.Verdict_DROPPED, flowpb.DropReason_POLICY_DENIED
	f.EventType = &flowpb.CiliumEventType{Type: eventtype.Drop, SubType: 133}
	return f
}

func TestL4(t *testing.T) {
	m := metrics(t, 0, "flow", "drop", "tcp", "port-distribution", "icmp", "policy", "flows-to-world:port;syn-only")
	verdict := denied()
	verdict.EventType, verdict.PolicyMatchType = &flowpb.CiliumEventType{Type: eventtype.PolicyVerdict}, 2
	fromHost := tcp(nil)
	fromHost.EventType, fromHost.Source = verdict.EventType, &flowpb.Endpoint{Identity: 1}
	fromHost.L4, fromHost.Destination = nil, nil
	reply := tcp(&flowpb.TCPFlags{SYN: true, ACK: true})
	reply.IsReply = wrapperspb.Bool(true)
	ping := tcp(nil)
	ping.L4 = &flowpb.Layer4{Protocol: &flowpb.Layer4_ICMPv4{ICMPv4: &flowpb.ICMPv4{Type: 8}}}
	for _, f := range []*flowpb.Flow{tcp(&flowpb.TCPFlags{SYN: true}), tcp(&flowpb.TCPFlags{FIN: true, ACK: true}),
		tcp(&flowpb.TCPFlags{RST: true}), reply, denied(), verdict, fromHost, ping} {
		m.Consume(f)
	}
	m.Lost(&flowpb.LostEvent{Source: flowpb.LostEventSource_HUBBLE_RING_BUFFER, NumEventsLost: 7})
	want(t, m,
		`hubble_drop_total{protocol="TCP",reason="POLICY_DENIED"} 2`,
		`hubble_flows_processed_total{protocol="ICMPv4",subtype="to-network",type="Trace",verdict="FORWARDED"} 1`,
		`hubble_flows_processed_total{protocol="TCP",subtype="",type="Drop",verdict="DROPPED"} 1`,
		`hubble_flows_processed_total{protocol="TCP",subtype="",type="PolicyVerdict",verdict="DROPPED"} 1`,
		`hubble_flows_processed_total{protocol="TCP",subtype="to-network",type="Trace",verdict="FORWARDED"} 4`,
		`hubble_flows_processed_total{protocol="Unknown L4",subtype="",type="PolicyVerdict",verdict="FORWARDED"} 1`,
		`hubble_flows_to_world_total{port="80",protocol="TCP",verdict="DROPPED"} 2`,
		`hubble_flows_to_world_total{port="80",protocol="TCP",verdict="FORWARDED"} 1`,
		`hubble_icmp_total{family="IPv4",type="EchoRequest"} 1`,
		`hubble_lost_events_total{source="hubble_ring_buffer"} 7`,
		`hubble_policy_verdicts_total{action="dropped",direction="egress",match="l3-l4"} 1`,
		`hubble_port_distribution_total{port="0",protocol="ICMPv4"} 1`,
		`hubble_port_distribution_total{port="80",protocol="TCP"} 3`,
		`hubble_tcp_flags_total{family="IPv4",flag="FIN"} 1`,
		`hubble_tcp_flags_total{family="IPv4",flag="RST"} 1`,
		`hubble_tcp_flags_total{family="IPv4",flag="SYN"} 1`,
		`hubble_tcp_flags_total{family="IPv4",flag="SYN-ACK"} 1`)
}

func TestContexts(t *testing.T) {
	for kind, labels := range map[string]string{
		"identity": `destination="reserved:world",source="k8s:app=shop,k8s:io.kubernetes.pod.namespace=x"`,
		"pod":      `destination="",source="x/a"`, "pod-name": `destination="",source="a"`,
		"namespace": `destination="",source="x"`, "dns": `destination="example.com,example.org",source=""`,
		"ip": `destination="192.0.2.1",source="10.0.0.1"`, "workload": `destination="",source="x/front"`,
		"reserved-identity": `destination="reserved:world",source=""`, "app": `destination="",source="shop"`,
		"workload-name":            `destination="",source="front"`,
		"pod|dns|ip":               `destination="example.com,example.org",source="x/a"`,
		"reserved-identity|app|ip": `destination="reserved:world",source="shop"`,
	} {
		m := metrics(t, 0, "drop:sourceContext="+kind+";destinationContext="+kind)
		m.Consume(denied())
		before, after, _ := strings.Cut(labels, ",source=")
		want(t, m, fmt.Sprintf(`hubble_drop_total{%s,protocol="TCP",reason="POLICY_DENIED",source=%s} 1`,
			before, after))
	}
}

func TestDirections(t *testing.T) {
	m := metrics(t, 0, "drop:sourceEgressContext=pod;sourceContext=ip;destinationIngressContext=ip")
	in := denied()
	in.TrafficDirection = flowpb.TrafficDirection_INGRESS
	m.Consume(denied())
	m.Consume(in)
	want(t, m, `hubble_drop_total{destination="",protocol="TCP",reason="POLICY_DENIED",source="x/a"} 1`,
		`hubble_drop_total{destination="192.0.2.1",protocol="TCP",reason="POLICY_DENIED",source="10.0.0.1"} 1`)
}

func TestLabelsContext(t *testing.T) {
	m := metrics(t, 0, "drop:labelsContext="+strings.Join(options.ContextLabels(), ","))
	m.Consume(denied())
	want(t, m, `hubble_drop_total{destination_app="",destination_ip="192.0.2.1",destination_namespace="",`+
		`destination_pod="",destination_workload="",destination_workload_kind="",protocol="TCP",`+
		`reason="POLICY_DENIED",source_app="shop",source_ip="10.0.0.1",source_namespace="x",source_pod="a",`+
		`source_workload="front",source_workload_kind="Deployment",traffic_direction="egress"} 1`)
}

func l7(kind flowpb.L7FlowType, record any) *flowpb.Flow {
	f := tcp(nil)
	f.EventType = &flowpb.CiliumEventType{Type: eventtype.AccessLog}
	f.L7 = &flowpb.Layer7{Type: kind, LatencyNs: 250e6}
	switch r := record.(type) {
	case *flowpb.HTTP:
		f.L7.Record = &flowpb.Layer7_Http{Http: r}
	case *flowpb.DNS:
		f.L7.Record = &flowpb.Layer7_Dns{Dns: r}
	case *flowpb.Kafka:
		f.L7.Record = &flowpb.Layer7_Kafka{Kafka: r}
	}
	return f
}

func TestHTTPV2(t *testing.T) {
	m := metrics(t, 0, "httpV2:exemplars=true;sourceContext=pod;destinationContext=pod|ip;labelsContext=source_ip")
	f := l7(flowpb.L7FlowType_RESPONSE, &flowpb.HTTP{Code: 404, Method: "GET", Protocol: "HTTP/1.1"})
	f.TraceContext = &flowpb.TraceContext{Parent: &flowpb.TraceParent{TraceId: "abc123"}}
	m.Consume(f)
	m.Consume(l7(flowpb.L7FlowType_REQUEST, &flowpb.HTTP{Method: "GET"}))
	ends, from := `destination="x/a",method="GET",`, `source="192.0.2.1",source_ip="192.0.2.1"`
	want(t, m,
		`hubble_http_request_duration_seconds_sum{`+ends+`reporter="client",`+from+`} 0.25`,
		`hubble_http_request_duration_seconds_count{`+ends+`reporter="client",`+from+`} 1`,
		`hubble_http_requests_total{`+ends+
			`protocol="HTTP/1.1",reporter="client",`+from+`,status="404"} 1`)
	open := scrape(t, m, "application/openmetrics-text; version=1.0.0")
	if strings.Count(open, `# {traceID="abc123"} 0.25`) != 1 || strings.Count(open, `# {traceID="abc123"} 1.0`) != 1 {
		t.Errorf("no exemplars in\n%s", open)
	}
}

func TestHTTPAndKafka(t *testing.T) {
	m := metrics(t, 0, "http", "kafka")
	m.Consume(l7(flowpb.L7FlowType_REQUEST, &flowpb.HTTP{Method: "GET", Protocol: "HTTP/2"}))
	m.Consume(l7(flowpb.L7FlowType_RESPONSE, &flowpb.HTTP{Code: 200, Method: "GET", Protocol: "HTTP/2"}))
	m.Consume(l7(flowpb.L7FlowType_REQUEST, &flowpb.Kafka{ApiKey: "produce", Topic: "t\xff"}))
	const server = `reporter="client"`
	want(t, m, `hubble_http_request_duration_seconds_sum{method="GET",`+server+`} 0.25`,
		`hubble_http_request_duration_seconds_count{method="GET",`+server+`} 1`,
		`hubble_http_requests_total{method="GET",protocol="HTTP/2",`+server+`} 1`,
		`hubble_http_responses_total{method="GET",protocol="HTTP/2",`+server+`,status="200"} 1`,
		`hubble_kafka_request_duration_seconds_sum{api_key="produce",`+server+`,topic="t�"} 0.25`,
		`hubble_kafka_request_duration_seconds_count{api_key="produce",`+server+`,topic="t�"} 1`,
		`hubble_kafka_requests_total{api_key="produce",error_code="0",`+server+`,topic="t�"} 1`)
}

func TestDNS(t *testing.T) {
	m := metrics(t, 0, "dns:query;ignoreAAAA")
	query := &flowpb.DNS{Query: "a.test.", Qtypes: []string{"A"}}
	m.Consume(l7(flowpb.L7FlowType_REQUEST, query))
	m.Consume(l7(flowpb.L7FlowType_REQUEST, &flowpb.DNS{Query: "a.test.", Qtypes: []string{"AAAA"}}))
	refused := l7(flowpb.L7FlowType_REQUEST, query)
	refused.Verdict = flowpb.Verdict_DROPPED
	m.Consume(refused)
	answer := l7(flowpb.L7FlowType_RESPONSE, &flowpb.DNS{Query: "a.test.", Qtypes: []string{"A"}, Rcode: 3,
		Ips: []string{"192.0.2.1", "192.0.2.2"}, Rrtypes: []string{"CNAME", "A"}})
	answer.IsReply = wrapperspb.Bool(true)
	m.Consume(answer)
	want(t, m, `hubble_dns_queries_total{ips_returned="0",qtypes="A",query="a.test.",rcode=""} 1`,
		`hubble_dns_queries_total{ips_returned="0",qtypes="A",query="a.test.",rcode="Policy denied"} 1`,
		`hubble_dns_response_types_total{qtypes="A",query="a.test.",type="A"} 1`,
		`hubble_dns_response_types_total{qtypes="A",query="a.test.",type="CNAME"} 1`,
		`hubble_dns_responses_total{ips_returned="2",qtypes="A",query="a.test.",rcode="Non-Existent Domain"} 1`)
}

func TestOverflow(t *testing.T) {
	m := metrics(t, 3, "drop:sourceContext=pod")
	from := func(pod string) *flowpb.Flow {
		f := denied()
		f.Source = &flowpb.Endpoint{Namespace: "x", PodName: pod}
		return f
	}
	for i := range 10 {
		m.Consume(from(fmt.Sprint(i)))
	}
	m.Consume(from("0"))
	line := func(pod string, n int) string {
		return fmt.Sprintf(`hubble_drop_total{protocol="TCP",reason="POLICY_DENIED",source="x/%s"} %d`, pod, n)
	}
	over := func(n int) string {
		return fmt.Sprintf(`hubble_drop_total{protocol="overflow",reason="overflow",source="overflow"} %d`, n)
	}
	want(t, m, line("0", 2), line("1", 1), line("2", 1), over(7))
	for _, text := range []string{`hubble_metrics_series{metric="hubble_drop_total"} 3`,
		`hubble_metrics_overflow_total{metric="hubble_drop_total"} 7`} {
		if got := scrape(t, m, ""); !strings.Contains(got, text) {
			t.Errorf("%s is not in\n%s", text, got)
		}
	}
	m.Forget("x", "1")
	m.Forget("y", "2")
	m.Consume(from("9"))
	want(t, m, line("0", 2), line("2", 1), line("9", 1), over(7))
}

func TestForgetByLabels(t *testing.T) {
	m := metrics(t, 0, "drop:labelsContext=source_pod,source_namespace", "tcp:sourceContext=pod-name")
	m.Consume(denied())
	m.Consume(tcp(&flowpb.TCPFlags{SYN: true}))
	m.Forget("x", "a")
	want(t, m, `hubble_tcp_flags_total{family="IPv4",flag="SYN",source="a"} 1`)
}

// TestLint holds names and help to Prometheus' rules.
func TestLint(t *testing.T) {
	for _, name := range options.MetricNames() {
		m := metrics(t, 0, name)
		for _, f := range []*flowpb.Flow{tcp(&flowpb.TCPFlags{SYN: true}), denied()} {
			m.Consume(f)
		}
		families, err := m.Gatherer().Gather()
		if err != nil {
			t.Fatal(err)
		}
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		if err != nil || len(problems) > 0 {
			t.Errorf("%s: %v %v", name, problems, err)
		}
	}
}
