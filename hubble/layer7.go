package hubble

import (
	"fmt"
	"math/bits"
	"net/url"
	"strings"
	"sync"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/bpf"
	"myelin/event"
	"myelin/hubble/eventtype"
	"myelin/l7/control"
	"myelin/l7/dns"
	"myelin/l7/httpproxy"
	"myelin/policy"
)

// l7Entry in the place of an event's type: a record of the proxy. Cookie is its number among the records that the ring
// keeps.
const l7Entry = 0xfe

// l7Response in the place of an event's TCP flags: the record's response, not its request.
const l7Response = 1

// Redaction is what flows of layer 7 leave out.
type Redaction struct {
	// URLQuery and UserInfo leave out these parts of URLs.
	URLQuery, UserInfo bool
}

// records keeps the records that events in the ring name by their number.
type records struct {
	mu   sync.Mutex
	list []control.Record // by number, modulo its length
	next uint64
	// first is the first one that was there when the list was last resized.
	first uint64
}

func (r *records) put(record control.Record, capacity uint64) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.list == nil {
		r.list = make([]control.Record, recordsOf(capacity))
	}
	n := r.next
	r.list[n%uint64(len(r.list))] = record
	r.next++
	return n
}

// resize keeps the last records that a ring of a capacity has.
func (r *records) resize(capacity uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.list == nil {
		return
	}
	old := r.list
	r.list = make([]control.Record, recordsOf(capacity))
	for n := r.next - min(r.next, uint64(min(len(old), len(r.list)))); n < r.next; n++ {
		r.list[n%uint64(len(r.list))] = old[n%uint64(len(old))]
	}
	r.first = max(r.first, r.next-min(r.next, uint64(len(old))))
}

// recordsOf is how many records a ring of a capacity keeps, a power of two.
func recordsOf(capacity uint64) int { return 1 << bits.Len64(min(capacity, maxRecords)-1) }

// maxRecords bounds the memory of records, some 500 bytes each.
const maxRecords = 1 << 14

// get returns a record, and whether it is still there.
func (r *records) get(n uint64) (control.Record, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n >= r.next || n < r.first || r.next-n > uint64(len(r.list)) {
		return control.Record{}, false
	}
	return r.list[n%uint64(len(r.list))], true
}

// L7 writes a record of the proxy. monotonic is CLOCK_MONOTONIC at a wall clock time.
func (r *Recorder) L7(record control.Record, monotonic func(time.Time) time.Duration) {
	n := r.Ring.l7.put(record, r.Ring.Capacity())
	switch {
	case record.DNS != nil:
		r.writeL7(&record, n, monotonic(record.DNS.Time), record.DNS.Response)
	case record.HTTP != nil:
		at := monotonic(record.HTTP.Time)
		r.writeL7(&record, n, at, false)
		if record.HTTP.Denied < 0 && record.HTTP.Status != 0 {
			r.writeL7(&record, n, at+record.HTTP.Latency, true)
		}
	}
}

func (r *Recorder) writeL7(record *control.Record, n uint64, at time.Duration, response bool) {
	source, destination := record.Flow.Source, record.Flow.Destination
	raw := event.Raw{Type: l7Entry, TimeNs: uint64(at), Cookie: n, Proto: record.Flow.Proto, Rule: record.Flow.Rules,
		Family: 4}
	if response {
		raw.TcpFlags = l7Response
		if record.HTTP != nil { // records of DNS have the ends of their own message
			source, destination = destination, source
		}
	}
	if source.Addr().Is6() {
		raw.Family = 6
	}
	raw.Src, raw.Sport = bpf.Addr(source.Addr()), bpf.Port(source.Port())
	raw.Dst, raw.Dport = bpf.Addr(destination.Addr()), bpf.Port(destination.Port())
	r.Ring.Write(&raw)
}

// l7Way is the direction of a record's message.
func l7Way(r *event.Raw) way {
	if r.TcpFlags == l7Response {
		return reply
	}
	return request
}

// l7 completes the flow of a record.
func (c *Converter) l7(f *flowpb.Flow, r *event.Raw) {
	f.Type, f.Verdict = flowpb.FlowType_L7, flowpb.Verdict_FORWARDED
	f.EventType = &flowpb.CiliumEventType{Type: eventtype.AccessLog}
	f.TrafficDirection = direction(r.Rule[bpf.DatapathPolicyDirectionPOLICY_EGRESS] != 0)
	f.L7 = &flowpb.Layer7{Type: flowpb.L7FlowType_REQUEST}
	if r.TcpFlags == l7Response {
		f.L7.Type = flowpb.L7FlowType_RESPONSE
	}
	if c.L7Records == nil {
		return
	}
	record, ok := c.L7Records(r.Cookie)
	switch {
	case !ok:
	case record.DNS != nil:
		c.dns(f, record.DNS)
	case record.HTTP != nil:
		c.http(f, &record)
	}
}

func (c *Converter) dns(f *flowpb.Flow, r *dns.Record) {
	f.TrafficDirection = flowpb.TrafficDirection_EGRESS
	d := &flowpb.DNS{Query: r.Query, ObservationSource: "proxy", Rcode: uint32(r.Code), Ttl: r.TTL, Cnames: r.CNAMEs}
	for _, a := range r.Addresses {
		d.Ips = append(d.Ips, a.String())
	}
	for _, t := range r.QueryTypes {
		d.Qtypes = append(d.Qtypes, dns.TypeName(t))
	}
	for _, t := range r.AnswerTypes {
		d.Rrtypes = append(d.Rrtypes, dns.TypeName(t))
	}
	f.L7.LatencyNs, f.L7.Record = uint64(r.Latency), &flowpb.Layer7_Dns{Dns: d}
	if r.Verdict == dns.Denied {
		f.Verdict = flowpb.Verdict_DROPPED
	}
	f.Summary = dnsSummary(r)
}

func dnsSummary(r *dns.Record) string {
	if !r.Response {
		return "DNS Query " + r.Query
	}
	text := "DNS Answer "
	if r.Code != 0 {
		return text + "RCode: " + dns.CodeName(r.Code) + " " + r.Query
	}
	for i, a := range r.Addresses {
		if i > 0 {
			text += ","
		}
		text += a.String()
	}
	return text + " (" + r.Query + ")"
}

func (c *Converter) http(f *flowpb.Flow, record *control.Record) {
	r := record.HTTP
	h := &flowpb.HTTP{Method: r.Method, Url: c.redacted(r.URL()), Protocol: r.Protocol}
	for _, one := range r.Headers {
		if strings.EqualFold(one.Name, httpproxy.TraceHeader) {
			f.TraceContext = traceContext(one.Value)
			continue
		}
		h.Headers = append(h.Headers, &flowpb.HTTPHeader{Key: one.Name, Value: one.Value})
	}
	f.L7.Record = &flowpb.Layer7_Http{Http: h}
	f.Summary = r.Protocol + " " + r.Method + " " + h.GetUrl()
	if f.L7.GetType() == flowpb.L7FlowType_RESPONSE {
		h.Code = uint32(r.Status)
		f.L7.LatencyNs = uint64(r.Latency)
		f.Summary = fmt.Sprintf("%s %d %dms (%s %s)", r.Protocol, r.Status, r.Latency.Milliseconds(), r.Method,
			h.GetUrl())
	}
	if r.Denied >= 0 {
		f.Verdict, f.DropReasonDesc = flowpb.Verdict_DROPPED, flowpb.DropReason_POLICY_DENIED
		h.Code = uint32(r.Status)
	}
	f.IngressAllowedBy = l7Policies(r, policy.Ingress)
	f.EgressAllowedBy = l7Policies(r, policy.Egress)
	if f.GetIngressAllowedBy() != nil && f.GetEgressAllowedBy() == nil {
		f.TrafficDirection = flowpb.TrafficDirection_INGRESS
	}
}

// traceContext is that of a traceparent header (W3C Trace Context, section 3.2), nil if it is not valid.
func traceContext(header string) *flowpb.TraceContext {
	const zero = "00000000000000000000000000000000"
	parts := strings.Split(header, "-")
	if len(parts) < 4 || len(parts[0]) != 2 || parts[0] == "ff" || len(parts[1]) != len(zero) || parts[1] == zero ||
		strings.Trim(parts[1], "0123456789abcdef") != "" {
		return nil
	}
	return &flowpb.TraceContext{Parent: &flowpb.TraceParent{TraceId: parts[1]}}
}

// l7Policies are the objects whose rules allowed the request in a direction.
func l7Policies(r *httpproxy.Record, d policy.Direction) (list []*flowpb.Policy) {
	for _, part := range r.Parts {
		if part == nil || !strings.Contains(part.Origin.Path, "."+d.String()) {
			continue
		}
		ref := part.Origin.Ref
		list = append(list, &flowpb.Policy{Name: ref.Name, Namespace: ref.Namespace, Kind: ref.Kind})
	}
	return list
}

// redacted is a URL without what the configuration leaves out.
func (c *Converter) redacted(text string) string {
	if !c.Redact.URLQuery && !c.Redact.UserInfo {
		return text
	}
	u, err := url.Parse(text)
	if err != nil {
		return ""
	}
	if c.Redact.URLQuery {
		u.RawQuery, u.Fragment = "", ""
	}
	if c.Redact.UserInfo {
		u.User = nil
	}
	return u.String()
}
