package hubble

import (
	"net/netip"
	"time"

	"myelin/bpf"
	"myelin/event"
	"myelin/l7/control"
	"myelin/l7/dns"
	"myelin/l7/dns/message"
)

// DNS writes a DNS message that has passed in the datapath, as a record of the proxy. It keeps neither argument.
func (r *Recorder) DNS(e *event.Raw, m *event.DNS) {
	source, destination := addrPort(e.Src, e.Sport), addrPort(e.Dst, e.Dport)
	if x := addrPort(e.XlatedSrc, e.XlatedSport); x.Addr().IsValid() { // the proxy would see both after translation
		source, destination = x, addrPort(e.XlatedDst, e.XlatedDport)
	}
	record := control.Record{Flow: control.Flow{Source: source, Destination: destination, Proto: e.Proto}}
	record.DNS = dnsRecord(e, m)
	record.DNS.Source, record.DNS.Destination = source, destination
	n := r.Ring.l7.put(record, r.Ring.Capacity())
	r.writeL7(&record, n, time.Duration(e.TimeNs), record.DNS.Response)
}

// dnsRecord is what the event says about the message. All records of an answer that passes are addresses of the name
// that was asked for.
func dnsRecord(e *event.Raw, m *event.DNS) *dns.Record {
	r := &dns.Record{Proto: e.Proto, Response: bpf.DatapathOutcome(e.Outcome) == bpf.DatapathOutcomeFORWARD_DNS_ANSWER,
		Code: m.Code, TTL: m.Ttl, Latency: time.Duration(m.Latency)}
	var q message.Question
	if _, ok := q.Read(m.Question[:min(int(m.Length), len(m.Question))], 0); !ok {
		return r
	}
	r.Query, r.QueryTypes = q.Name.String(), []uint16{q.Type}
	n := min(int(m.Records), len(m.Addr))
	if n == 0 {
		return r
	}
	r.Addresses, r.AnswerTypes = make([]netip.Addr, n), make([]uint16, n)
	for i := range n {
		r.Addresses[i], r.AnswerTypes[i] = m.Addr[i].Netip(), q.Type
	}
	return r
}
