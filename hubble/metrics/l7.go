package metrics

import (
	"slices"
	"strconv"
	"strings"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
)

func (b *builder) dns() func(*flowpb.Flow) {
	const help = "Number of DNS queries observed"
	withQuery, ignoreAAAA := b.metric.Has("query"), b.metric.Has("ignoreaaaa")
	own, typeOwn := []string{"rcode", "qtypes", "ips_returned"}, []string{"type", "qtypes"}
	if withQuery {
		own, typeOwn = append(own, "query"), append(typeOwn, "query")
	}
	queries := b.counter("dns_queries_total", help, own...)
	responses := b.counter("dns_responses_total", help, own...)
	types := b.counter("dns_response_types_total", help, typeOwn...)
	return func(f *flowpb.Flow) {
		dns := f.GetL7().GetDns()
		if dns == nil || ignoreAAAA && slices.Equal(dns.GetQtypes(), []string{"AAAA"}) {
			return
		}
		qtypes, s := strings.Join(dns.GetQtypes(), ","), sample{flow: f}
		values := func(first ...string) []string {
			if withQuery {
				first = append(first, dns.GetQuery())
			}
			return first
		}
		ips := strconv.Itoa(len(dns.GetIps()))
		switch {
		case f.GetVerdict() == flowpb.Verdict_DROPPED:
			queries.count(s, values("Policy denied", qtypes, ips)...)
		case !f.GetIsReply().GetValue():
			queries.count(s, values("", qtypes, ips)...)
		default:
			responses.count(s, values(rcode(dns.GetRcode()), qtypes, ips)...)
			for _, t := range dns.GetRrtypes() {
				types.count(s, values(t, qtypes)...)
			}
		}
	}
}

// rcode names a response code (IANA, DNS RCODEs) as Hubble does; empty for one without a name.
func rcode(code uint32) string {
	switch {
	case code <= 11:
		return []string{"No Error", "Format Error", "Server Failure", "Non-Existent Domain", "Not Implemented",
			"Query Refused", "Name Exists when it should not", "RR Set Exists when it should not",
			"RR Set that should exist does not", "Not Authorized", "Name not contained in zone",
			"DSO-TYPE Not Implemented"}[code]
	case code >= 16 && code <= 23:
		return []string{"Bad OPT Version", "Key not recognized", "Signature out of time window", "Bad TKEY Mode",
			"Duplicate key name", "Algorithm not supported", "Bad Truncation",
			"Bad/missing Server Cookie"}[code-16]
	}
	return ""
}

// reporter is which end's node has seen an L7 flow.
func reporter(f *flowpb.Flow) string {
	switch f.GetTrafficDirection() {
	case flowpb.TrafficDirection_EGRESS:
		return "client"
	case flowpb.TrafficDirection_INGRESS:
		return "server"
	}
	return "unknown"
}

func seconds(f *flowpb.Flow) float64 {
	return time.Duration(f.GetL7().GetLatencyNs()).Seconds()
}

// sample is one with an exemplar, if these are on and the flow is of a trace.
func (b *builder) sample(f *flowpb.Flow) sample {
	s := sample{flow: f}
	if b.metric.Has("exemplars") {
		// More than 128 runes are no exemplar (OpenMetrics 1.0), and the id came by the network.
		if id := f.GetTraceContext().GetParent().GetTraceId(); len(id) <= 64 {
			s.trace = strings.ToValidUTF8(id, "")
		}
	}
	return s
}

const (
	requestsHelp = "Count of HTTP requests"
	durationHelp = "Quantiles of HTTP request duration in seconds"
)

func (b *builder) http() func(*flowpb.Flow) {
	requests := b.counter("http_requests_total", requestsHelp, "method", "protocol", "reporter")
	responses := b.counter("http_responses_total", "Count of HTTP responses",
		"method", "protocol", "status", "reporter")
	duration := b.histogram("http_request_duration_seconds", durationHelp, "method", "reporter")
	return func(f *flowpb.Flow) {
		http := f.GetL7().GetHttp()
		if http == nil {
			return
		}
		s, by := b.sample(f), reporter(f)
		switch f.GetL7().GetType() {
		case flowpb.L7FlowType_REQUEST:
			requests.count(s, http.GetMethod(), http.GetProtocol(), by)
		case flowpb.L7FlowType_RESPONSE:
			responses.count(s, http.GetMethod(), http.GetProtocol(), strconv.Itoa(int(http.GetCode())), by)
			duration.observe(s, seconds(f), http.GetMethod(), by)
		}
	}
}

// httpV2 counts requests when their responses are observed. Source and destination are the request's.
func (b *builder) httpV2() func(*flowpb.Flow) {
	requests := b.counter("http_requests_total", requestsHelp, "method", "protocol", "status", "reporter")
	duration := b.histogram("http_request_duration_seconds", durationHelp, "method", "reporter")
	return func(f *flowpb.Flow) {
		http := f.GetL7().GetHttp()
		if http == nil || f.GetL7().GetType() != flowpb.L7FlowType_RESPONSE {
			return
		}
		s, by := b.sample(f), reporter(f)
		s.inverted = true
		requests.count(s, http.GetMethod(), http.GetProtocol(), strconv.Itoa(int(http.GetCode())), by)
		duration.observe(s, seconds(f), http.GetMethod(), by)
	}
}

func (b *builder) kafka() func(*flowpb.Flow) {
	requests := b.counter("kafka_requests_total", "Count of Kafka requests by topic",
		"topic", "api_key", "error_code", "reporter")
	duration := b.histogram("kafka_request_duration_seconds", "Kafka request duration in seconds by topic",
		"topic", "api_key", "reporter")
	return func(f *flowpb.Flow) {
		kafka := f.GetL7().GetKafka()
		if kafka == nil || f.GetL7().GetType() != flowpb.L7FlowType_REQUEST {
			return
		}
		s, by := sample{flow: f}, reporter(f)
		requests.count(s, kafka.GetTopic(), kafka.GetApiKey(), strconv.Itoa(int(kafka.GetErrorCode())), by)
		duration.observe(s, seconds(f), kafka.GetTopic(), kafka.GetApiKey(), by)
	}
}
