package otlp

import (
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/slim/otlp/logs/v1"

	"myelin/hubble/consumer"
)

// attributes returns the attributes of a record, without unknown values.
type attributes []*commonpb.KeyValue

func (a *attributes) text(key, value string) {
	if value != "" {
		value = strings.ToValidUTF8(value, "\ufffd")
		*a = append(*a, &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{
			Value: &commonpb.AnyValue_StringValue{StringValue: value}}})
	}
}

func (a *attributes) number(key string, value int64) {
	if value != 0 {
		*a = append(*a, &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{
			Value: &commonpb.AnyValue_IntValue{IntValue: value}}})
	}
}

// logRecord is a flow as a log record, with attributes of OpenTelemetry's semantic conventions where these have some.
func logRecord(f *flowpb.Flow) *logspb.LogRecord {
	r := &logspb.LogRecord{TimeUnixNano: uint64(f.GetTime().AsTime().UnixNano()), EventName: "hubble.flow",
		SeverityNumber: logspb.SeverityNumber_SEVERITY_NUMBER_INFO, SeverityText: "INFO"}
	r.ObservedTimeUnixNano = r.TimeUnixNano
	if f.GetVerdict() == flowpb.Verdict_DROPPED || f.GetVerdict() == flowpb.Verdict_ERROR {
		r.SeverityNumber, r.SeverityText = logspb.SeverityNumber_SEVERITY_NUMBER_WARN, "WARN"
	}
	var a attributes
	a.text("hubble.uuid", f.GetUuid())
	a.text("hubble.verdict", f.GetVerdict().String())
	a.text("hubble.type", f.GetType().String())
	if f.GetVerdict() == flowpb.Verdict_DROPPED {
		a.text("hubble.drop_reason", f.GetDropReasonDesc().String())
	}
	if d := f.GetTrafficDirection(); d != flowpb.TrafficDirection_TRAFFIC_DIRECTION_UNKNOWN {
		a.text("hubble.traffic_direction", d.String())
	}
	network(&a, f)
	layer7(&a, f.GetL7())
	r.Body = &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{
		StringValue: strings.ToValidUTF8(line(f), "\ufffd")}}
	if id, err := hex.DecodeString(f.GetTraceContext().GetParent().GetTraceId()); err == nil && len(id) == 16 {
		r.TraceId = id
	}
	r.Attributes = a
	return r
}

// network adds both ends of a flow.
func network(a *attributes, f *flowpb.Flow) {
	if v := f.GetIP().GetIpVersion(); v != flowpb.IPVersion_IP_NOT_USED {
		a.text("network.type", strings.ToLower(v.String()))
	}
	a.text("network.transport", strings.ToLower(consumer.L4(f)))
	from, to, _ := consumer.Ports(f)
	a.text("source.address", f.GetIP().GetSource())
	a.number("source.port", int64(from))
	a.text("destination.address", f.GetIP().GetDestination())
	a.number("destination.port", int64(to))
	for _, side := range []struct {
		name     string
		endpoint *flowpb.Endpoint
		service  *flowpb.Service
		names    []string
	}{{"source", f.GetSource(), f.GetSourceService(), f.GetSourceNames()},
		{"destination", f.GetDestination(), f.GetDestinationService(), f.GetDestinationNames()}} {
		a.text(side.name+".k8s.namespace.name", side.endpoint.GetNamespace())
		a.text(side.name+".k8s.pod.name", side.endpoint.GetPodName())
		a.number(side.name+".hubble.identity", int64(side.endpoint.GetIdentity()))
		if w := side.endpoint.GetWorkloads(); len(w) > 0 {
			a.text(side.name+".k8s.workload.kind", w[0].GetKind())
			a.text(side.name+".k8s.workload.name", w[0].GetName())
		}
		a.text(side.name+".k8s.service.name", side.service.GetName())
		a.text(side.name+".domain", strings.Join(side.names, ","))
	}
	packets, bytes, _ := consumer.Counts(consumer.Extension(f))
	a.number("hubble.packets", int64(packets))
	a.number("hubble.bytes", int64(bytes))
}

func layer7(a *attributes, l7 *flowpb.Layer7) {
	if http := l7.GetHttp(); http != nil {
		a.text("http.request.method", http.GetMethod())
		a.text("url.full", http.GetUrl())
		a.number("http.response.status_code", int64(http.GetCode()))
	}
	a.text("dns.question.name", l7.GetDns().GetQuery())
}

// line is a flow for people.
func line(f *flowpb.Flow) string {
	from, to, ports := consumer.Ports(f)
	end := func(e *flowpb.Endpoint, ip string, port uint32) string {
		name := ip
		if e.GetPodName() != "" {
			name = e.GetNamespace() + "/" + e.GetPodName()
		}
		if ports {
			return net.JoinHostPort(name, strconv.Itoa(int(port)))
		}
		return name
	}
	text := fmt.Sprintf("%s -> %s %s %s", end(f.GetSource(), f.GetIP().GetSource(), from),
		end(f.GetDestination(), f.GetIP().GetDestination(), to), consumer.Protocol(f), f.GetVerdict())
	if f.GetVerdict() == flowpb.Verdict_DROPPED {
		text += " (" + f.GetDropReasonDesc().String() + ")"
	}
	return text
}
