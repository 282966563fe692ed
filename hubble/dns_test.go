package hubble

import (
	"net/netip"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/proto"

	"myelin/bpf"
	"myelin/event"
	"myelin/l7/control"
	"myelin/l7/dns"
)

// dnsEvent is a message of the pod 10.0.1.2 to a resolver, or its answer, as the datapath reports it.
func dnsEvent(outcome bpf.DatapathOutcome, at time.Duration, m event.DNS, addresses ...string,
) (*event.Raw, *event.DNS) {
	e := packet(bpf.DatapathEventTypeEVENT_DNS, protoUDP, "10.0.1.2:40000", "192.0.2.53:53")
	if outcome == bpf.DatapathOutcomeFORWARD_DNS_ANSWER { // to the node's address and port, until it is translated
		e = packet(bpf.DatapathEventTypeEVENT_DNS, protoUDP, "192.0.2.53:53", "192.168.0.1:50000")
		e.XlatedSrc, e.XlatedSport = e.Src, e.Sport
		e.XlatedDst, e.XlatedDport = bpf.Addr(netip.MustParseAddr("10.0.1.2")), bpf.Port(40000)
	}
	e.Outcome, e.TimeNs = uint8(outcome), uint64(at)
	m.Length = uint16(copy(m.Question[:], "\x01a\x02io\x00\x00\x01\x00\x01"))
	for i, a := range addresses {
		m.Addr[i], m.Records = bpf.Addr(netip.MustParseAddr(a)), uint8(i+1)
	}
	return e, &m
}

// TestDNS: a message that has passed in the datapath is the same flow as one that the proxy has recorded.
func TestDNS(t *testing.T) {
	pod, resolver := netip.MustParseAddrPort("10.0.1.2:40000"), netip.MustParseAddrPort("192.0.2.53:53")
	addresses := []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")}
	const query, answer = bpf.DatapathOutcomeFORWARD_DNS_QUERY, bpf.DatapathOutcomeFORWARD_DNS_ANSWER
	for name, test := range map[string]struct {
		outcome   bpf.DatapathOutcome
		report    event.DNS
		addresses []string
		want      dns.Record
	}{
		"a query": {outcome: query, want: dns.Record{Source: pod, Destination: resolver}},
		"an answer": {outcome: answer, report: event.DNS{Latency: 5000, Ttl: 20},
			addresses: []string{"198.51.100.1", "198.51.100.2"},
			want: dns.Record{Source: resolver, Destination: pod, Response: true, Latency: 5 * time.Microsecond, TTL: 20,
				Addresses: addresses, AnswerTypes: []uint16{1, 1}}},
		"no such name": {outcome: answer, report: event.DNS{Latency: 7000, Code: 3},
			want: dns.Record{Source: resolver, Destination: pod, Response: true, Code: 3,
				Latency: 7 * time.Microsecond}},
	} {
		ring := newRing(t, 255)
		rec, c := &Recorder{Ring: ring}, newConverter()
		c.L7Records = ring.L7
		const at = 3 * time.Second
		e, m := dnsEvent(test.outcome, at, test.report, test.addresses...)
		rec.DNS(e, m)
		want := test.want
		want.Query, want.QueryTypes, want.Proto, want.Time = "a.io.", []uint16{1}, protoUDP, boot().Add(at)
		rec.L7(control.Record{DNS: &want, Flow: control.Flow{Source: want.Source, Destination: want.Destination,
			Proto: protoUDP}}, func(at time.Time) time.Duration { return at.Sub(boot()) })
		r := &reader{ring: ring, convert: c, tracker: newTracker(time.Second)}
		var flows []*flowpb.Flow
		for r.step(boot) {
			it, _, _ := r.take()
			it.flow.Uuid = "" // it is made from the number of the record
			flows = append(flows, it.flow)
		}
		if len(flows) != 2 || !proto.Equal(flows[0], flows[1]) || flows[0].GetL7().GetDns().GetQuery() != "a.io." {
			t.Errorf("%s: got and want\n%v", name, flows)
		}
	}
}

// TestDNSOfNoName: a question that is not understood leaves a flow without a name.
func TestDNSOfNoName(t *testing.T) {
	ring := newRing(t, 255)
	rec, c := &Recorder{Ring: ring}, newConverter()
	c.L7Records = ring.L7
	e, m := dnsEvent(bpf.DatapathOutcomeFORWARD_DNS_QUERY, time.Second, event.DNS{})
	m.Length, m.Records = 60000, 200 // more than there is
	m.Question[0] = 0xc0
	rec.DNS(e, m)
	r := &reader{ring: ring, convert: c, tracker: newTracker(time.Second)}
	if !r.step(boot) {
		t.Fatal("no flow")
	}
	it, _, _ := r.take()
	expect(t, it.flow, `"type":"REQUEST"`, `"dns":{`)
}
