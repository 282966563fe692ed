package bpf

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

func reportingDNS(s *Settings) {
	traced(s)
	s.DnsReports = 1
}

// nextDNS returns the next event of a DNS message as text: that of the event, then question, code, TTL and addresses.
func (w *world) nextDNS(t testing.TB, r *eventReader) (text string, latency time.Duration) {
	t.Helper()
	for e, ok := nextEvent(t, r); ok; e, ok = nextEvent(t, r) {
		if e.Type != uint8(DatapathEventTypeEVENT_DNS) {
			continue
		}
		dns := r.dns[0]
		r.dns = r.dns[1:]
		var addresses []netip.Addr
		for _, a := range dns.Addr[:dns.Records] {
			addresses = append(addresses, a.Netip())
		}
		return fmt.Sprintf("%s %q %d %d %v", w.eventText(&e), dns.Question[:dns.Length], dns.Code, dns.Ttl, addresses),
			time.Duration(dns.Latency)
	}
	return "", 0
}

// TestDNSReports: messages that pass without the proxy are events, with the ends that the proxy would see.
func TestDNSReports(t *testing.T) {
	w := newWorld(t, settingsOf(redirecting, cachingDNS, masquerading, reportingDNS, longTimes),
		onlyPrograms("from_pod", "from_wire", "from_proxy"))
	r := w.listen(t, DatapathListenLISTEN_TRACE)
	const io = `"\x01a\x02io\x00\x00\x01\x00\x01"`
	const query, answer = `eth a > gw | ip a > world | `, `eth router > node | ip world > node | `
	const passed = "dns FORWARD_DNS_ANSWER world:53 > node:50000 as world:53 > a:40000 "
	const wait = 3 * time.Millisecond
	known := all(opens, asksC(), entries(dnsEntry{server: "world", question: "a.io A", seconds: 60,
		addresses: []string{"192.0.2.1", "192.0.2.2"}}))
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		defer w.enter(t)()
		w.forget(t)
		known(t, w)
		for _, s := range []struct {
			step
			event string
		}{
			{step{at: "from_pod linka", in: query + udpOf("40000 > 53", dnsQuery1), want: "FORWARD_DNS_QUERY"},
				"dns FORWARD_DNS_QUERY a:40000 > world:53 " + io + " 0 0 []"},
			{step{at: "from_proxy proxy0", in: `eth proxy > gwp | ip a > world | ` + udpOf("40000 > 53", dnsQuery1),
				want: "FORWARD_RESOLVE"}, ""},
			{step{at: "from_wire eth0", in: answer + udpOf("53 > 50000", "response 1 | a.io A | a.io 30 A 192.0.2.2"+
				" | a.io 20 A 192.0.2.1"), want: "FORWARD_DNS_ANSWER"},
				passed + io + " 0 20 [192.0.2.2 192.0.2.1]"},
			{step{at: "from_pod linka", in: query + udpOf("40000 > 53", "query 2 | a.io A"),
				want: "FORWARD_DNS_QUERY"},
				"dns FORWARD_DNS_QUERY a:40000 > world:53 " + io + " 0 0 []"},
			{step{at: "from_wire eth0", in: answer + udpOf("53 > 50000", "response 2 code 3 | a.io A"),
				want: "FORWARD_DNS_ANSWER"},
				passed + io + " 3 0 []"},
			{step{at: "from_pod linka", in: query + udpOf("40000 > 53", "query 3 | b.io A"),
				want: "FORWARD_PROXY"}, ""},
		} {
			w.run(t, f, s.step)
			got, latency := w.nextDNS(t, r)
			isAnswer := strings.Contains(got, "ANSWER")
			if got != s.event || isAnswer && latency < wait-time.Microsecond*5 || !isAnswer && latency != 0 ||
				latency > time.Minute {
				t.Errorf("%s:\ngot  %s, latency %s\nwant %s", s.in, got, latency, s.event)
			}
			time.Sleep(wait)
		}
		must(t, w.Listening.Set(uint32(0)))
		w.run(t, f, step{at: "from_pod linka", in: query + udpOf("40000 > 53", dnsQuery1), want: "FORWARD_DNS_QUERY"})
		if got, _ := w.nextDNS(t, r); got != "" {
			t.Errorf("%s is reported although no agent reads", got)
		}
		must(t, w.Listening.Set(uint32(DatapathListenLISTEN_TRACE)))
	})
}

// TestDNSReportsAreCounted: a message that exceeds the budget of events passes, and its event is counted as lost.
func TestDNSReportsAreCounted(t *testing.T) {
	const messages = 20
	w := newWorld(t, settingsOf(redirecting, cachingDNS, reportingDNS, longTimes, func(s *Settings) {
		s.TraceRate, s.TraceBurst = 1, 5
	}), onlyPrograms("from_pod", "from_wire", "from_proxy"))
	r := w.listen(t, DatapathListenLISTEN_TRACE)
	defer w.enter(t)()
	all(opens, knowsIO(60))(t, w)
	events, lost := 0, w.traceLost(t)
	for range messages {
		w.run(t, packet.IPv4, step{at: "from_pod linka", in: dnsFromA("40000 > 53", dnsQuery1),
			want: "FORWARD_DNS_QUERY"})
	}
	for got, _ := w.nextDNS(t, r); got != ""; got, _ = w.nextDNS(t, r) {
		events++
	}
	// Each message is an event of its own; other events are the verdict on their flow, and its first packet.
	if lost = w.traceLost(t) - lost; events == 0 || lost == 0 || uint64(events)+lost < messages ||
		uint64(events)+lost > messages+2 {
		t.Errorf("%d events and %d lost of %d messages", events, lost, messages)
	}
}
