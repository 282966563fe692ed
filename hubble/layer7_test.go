package hubble

import (
	"net/netip"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/bpf"
	"myelin/l7/control"
	"myelin/l7/httpproxy"
)

// TestHTTP: a request that passes is two flows, with the ID of its trace and without its headers.
func TestHTTP(t *testing.T) {
	ring := newRing(t, 255)
	rec, c := &Recorder{Ring: ring}, newConverter()
	c.L7Records = ring.L7
	for _, header := range []string{"00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01",
		"00-00000000000000000000000000000000-0102030405060708-01", "00-0102-0102030405060708-01", "", "ff-a-b-c"} {
		rec.L7(control.Record{
			Flow: control.Flow{Source: netip.MustParseAddrPort("10.0.1.2:40000"), Proto: protoTCP,
				Destination: netip.MustParseAddrPort("10.0.2.3:80")},
			HTTP: &httpproxy.Record{Time: boot(), Latency: time.Millisecond, Protocol: "HTTP/1.1", Method: "GET",
				Path: "/a", Host: "web", Status: 200, Denied: -1,
				Headers: []httpproxy.Header{{Name: "Traceparent", Value: header}}},
		}, func(at time.Time) time.Duration { return at.Sub(boot()) })
	}
	r := &reader{ring: ring, convert: c, tracker: newTracker(time.Second)}
	var flows []*flowpb.Flow
	for r.step(boot) {
		it, _, _ := r.take()
		flows = append(flows, it.flow)
	}
	if len(flows) != 10 {
		t.Fatalf("%d flows", len(flows))
	}
	const trace = `"trace_context":{"parent":{"trace_id":"0102030405060708090a0b0c0d0e0f10"}}`
	expect(t, flows[0], trace, `"type":"REQUEST"`, `"http":{"method":"GET","url":"http://web/a","protocol":"HTTP/1.1"}`)
	expect(t, flows[1], trace, `"type":"RESPONSE"`, `"latency_ns":"1000000"`,
		`"http":{"code":200,"method":"GET","url":"http://web/a","protocol":"HTTP/1.1"}`, `"is_reply":true`,
		`"Summary":"HTTP/1.12001ms(GEThttp://web/a)"`)
	for _, f := range flows[2:] {
		if f.GetTraceContext() != nil || len(f.GetL7().GetHttp().GetHeaders()) > 0 {
			t.Error(f)
		}
	}
}

// TestDNSNames: either end has the names by which the other one knows it.
func TestDNSNames(t *testing.T) {
	flows := convertAll(t, packet(bpf.DatapathEventTypeEVENT_TRACE, protoUDP, "10.0.1.2:40000", "192.0.2.1:443"),
		packet(bpf.DatapathEventTypeEVENT_TRACE, protoUDP, "192.0.2.1:443", "10.0.1.2:40000"),
		packet(bpf.DatapathEventTypeEVENT_TRACE, protoUDP, "10.0.2.3:40000", "192.0.2.1:443"))
	expect(t, flows[0], `"destination_names":["www.example.com"]`)
	expect(t, flows[1], `"source_names":["www.example.com"]`)
	for _, f := range []*flowpb.Flow{flows[0], flows[2]} {
		if f.GetSourceNames() != nil || f == flows[2] && f.GetDestinationNames() != nil {
			t.Error(f)
		}
	}
}
