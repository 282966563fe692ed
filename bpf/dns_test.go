package bpf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/l7/dns/dnstest"
)

func cachingDNS(s *Settings) { s.DnsCache = 1 }

// dnsHeader and dnsTail are what surrounds the name of a message's question.
const (
	dnsHeader = 12
	dnsTail   = 4
)

// udpOf is a datagram of a DNS message, which is written as dnstest does.
func udpOf(ports, message string) string {
	m, err := dnstest.Message(message)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf("udp %s | hex:%x", ports, m)
}

// asked is the question of a message.
func asked(message []byte) []byte {
	end := dnsHeader + bytes.IndexByte(message[dnsHeader:], 0) + 1
	return message[dnsHeader : end+dnsTail]
}

// unpacked replaces pointers to the name of the question by the name.
func unpacked(message []byte) []byte {
	question := asked(message)
	name := question[:len(question)-dnsTail]
	body := bytes.ReplaceAll(message[dnsHeader+len(question):], []byte{0xc0, dnsHeader}, name)
	return append(bytes.Clone(message[:dnsHeader+len(question)]), body...)
}

// dnsEntry is what the proxy writes for a question of pod a to a server.
type dnsEntry struct {
	server, question string
	seconds          int // until it expires
	addresses        []string
	slot             uint16 // 0: of a
}

// entries writes entries, for servers of both families.
func entries(list ...dnsEntry) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		for _, e := range list {
			for _, server := range families(worldNames()[e.server]) {
				key, row := e.row(t, w, server)
				must(t, w.DnsEntries.Put(key, row))
			}
		}
	}
}

func (e dnsEntry) row(t testing.TB, w *world, server netip.Addr) (key DatapathDnsKey, row DatapathDnsEntry) {
	t.Helper()
	m, err := dnstest.Message("query 1 | " + e.question)
	must(t, err)
	if e.slot == 0 {
		e.slot = slotA
	}
	key = DatapathDnsKey{Server: Addr(server), Port: be16(53), Slot: uint32(e.slot), Length: uint16(len(asked(m)))}
	copy(key.Question[:], asked(m))
	var now unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	row.Expires = uint64(now.Nano() + int64(e.seconds)*int64(time.Second))
	for _, slot := range []uint16{0, 0, e.slot} {
		n, err := EpochOf(w.Epochs, slot)
		must(t, err)
		row.Epoch += n
	}
	for i, a := range e.addresses {
		row.Addr[i], row.Addresses = Addr(netip.MustParseAddr(a)), uint32(i+1)
	}
	return key, row
}

// asksC has pod a ask the server c by the proxy.
func asksC() func(testing.TB, *world) {
	return isolates(slotA, egress, proxies("c", udp, 53), proxies("", udp, 53))
}

// knowsIO is asksC, with the entry of a question.
func knowsIO(seconds int, addresses ...string) func(testing.TB, *world) {
	return all(asksC(), entries(dnsEntry{server: "c", question: "a.io A", seconds: seconds, addresses: addresses}))
}

func dnsFromA(ports, message string) string {
	return `eth a > gw | ip a > c | ` + udpOf(ports, message)
}

func dnsFromC(ports, message string) string {
	return `eth node2 > node | ip c > a | ` + udpOf(ports, message)
}

const (
	dnsQuery1  = "query 1 | a.io A"
	dnsAnswer1 = "response 1 | a.io A | a.io 30 A 192.0.2.1"
)

// seen checks what entries say of answers that have passed: the addresses, and the longest TTL in seconds.
func seen(addresses uint32, longest int) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		var now unix.Timespec
		must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
		found := false
		must(t, Each(w.DnsEntries, func(_ *DatapathDnsKey, row *DatapathDnsEntry) bool {
			left := time.Duration(int64(row.Seen) - now.Nano())
			end := time.Duration(longest) * time.Second
			found = found || row.SeenAddr == addresses && left <= end && left > end-time.Second
			return true
		}))
		if !found {
			t.Errorf("no entry has seen addresses %#b for %d s", addresses, longest)
		}
	}
}

// dnsRows are messages that pass.
func dnsRows() []row {
	raw := func(m []byte) string {
		return fmt.Sprintf(`eth node2 > node | ip c > a | udp 53 > 40000 | hex:%x`, m)
	}
	long, err := dnstest.Message(dnsAnswer1 + " | a.io 59 A 192.0.2.2")
	if err != nil {
		panic(err)
	}
	return []row{
		{name: "a query and its answer", steps: []step{
			{at: "from_pod linka", in: dnsFromA("40000 > 53", dnsQuery1), want: "FORWARD_DNS_QUERY",
				before: knowsIO(60, "192.0.2.1"),
				out: `eth 00:00:00:00:00:00 > 00:00:00:00:00:00 | ip a > c ttl 63 | ` +
					udpOf("40000 > 53", dnsQuery1)},
			{at: "from_proxy proxy0", want: "FORWARD_RESOLVE",
				out: `eth node > node2 | ip a > c ttl 62 | ` + udpOf("40000 > 53", dnsQuery1)},
			{at: "from_wire eth0", in: dnsFromC("53 > 40000", dnsAnswer1), want: "FORWARD_DNS_ANSWER"},
			{at: "from_proxy proxy0", want: "FORWARD_POD",
				out: `eth gw > a | ip c > a ttl 62 | ` + udpOf("53 > 40000", dnsAnswer1)},
			{at: "from_wire eth0", in: dnsFromC("53 > 40000", dnsAnswer1), want: "FORWARD_PROXY"},
			{at: "from_pod linka", in: dnsFromA("40001 > 53", "query 2 | a.io A"), want: "FORWARD_DNS_QUERY"},
			{at: "from_wire eth0", in: dnsFromC("53 > 40001", "response 2 | a.io A"), want: "FORWARD_DNS_ANSWER"},
			{at: "from_pod linka", in: dnsFromA("40001 > 53", "query 3 | a.io A"), want: "FORWARD_DNS_QUERY"},
			{at: "from_wire eth0", in: dnsFromC("53 > 40001", "response 3 code 3 | a.io A"),
				want: "FORWARD_DNS_ANSWER"},
		}},
		{name: "names that are not compressed, more than one address", steps: []step{
			{at: "from_pod linka", in: dnsFromA("40000 > 53", dnsQuery1), want: "FORWARD_DNS_QUERY",
				before: knowsIO(60, "192.0.2.2", "192.0.2.1")},
			{at: "from_wire eth0", in: dnsFromC("53 > 40000", "response 1 | a.io A | a.io 59 A 192.0.2.1"),
				want: "FORWARD_DNS_ANSWER", after: seen(0b10, 59)},
			{at: "from_pod linka", in: dnsFromA("40000 > 53", dnsQuery1), want: "FORWARD_DNS_QUERY"},
			{at: "from_wire eth0", in: raw(unpacked(long)), want: "FORWARD_DNS_ANSWER", after: seen(0b11, 59)},
			{at: "from_pod linka", in: dnsFromA("40000 > 53", dnsQuery1), want: "FORWARD_DNS_QUERY"},
			{at: "from_wire eth0", in: raw(long), want: "FORWARD_DNS_ANSWER"},
		}},
		{name: "IPv6 addresses", steps: []step{
			{at: "from_pod linka", in: dnsFromA("40000 > 53", "query 7 | a.io AAAA"), want: "FORWARD_DNS_QUERY",
				before: all(asksC(), entries(dnsEntry{server: "c", question: "a.io AAAA", seconds: 60,
					addresses: []string{"2001:db8::2", "2001:db8::1"}}))},
			{at: "from_wire eth0", in: dnsFromC("53 > 40000", "response 7 | a.io AAAA | a.io 9 AAAA 2001:db8::1"),
				want: "FORWARD_DNS_ANSWER"},
		}},
		{name: "a name without addresses", steps: []step{
			{at: "from_pod linka", in: dnsFromA("40000 > 53", dnsQuery1), want: "FORWARD_DNS_QUERY",
				before: knowsIO(60)},
			{at: "from_wire eth0", in: dnsFromC("53 > 40000", dnsAnswer1), want: "FORWARD_PROXY"},
			{at: "from_wire eth0", in: dnsFromC("53 > 40000", "response 1 code 3 | a.io A"),
				want: "FORWARD_DNS_ANSWER"},
		}},
	}
}

// dnsQueryRows are queries that go to the proxy although there is an entry.
func dnsQueryRows() []row {
	long := "query 1 | " + string(bytes.Repeat([]byte("a.b.c."), 6)) + "io A" // more labels than are read
	raw := func(change func(m []byte) []byte) string {
		m, err := dnstest.Message(dnsQuery1)
		if err != nil {
			panic(err)
		}
		return fmt.Sprintf(`eth a > gw | ip a > c | udp 40000 > 53 | hex:%x`, change(m))
	}
	flags := func(bits byte) string { return raw(func(m []byte) []byte { m[2] |= bits; return m }) }
	var steps []step
	for _, in := range []string{
		`eth a > gw | ip a > world | ` + udpOf("40000 > 53", dnsQuery1),
		dnsFromA("40000 > 53", "query 1 | b.io A"),
		dnsFromA("40000 > 53", "query 1 | A.io A"), // 0x20 (draft-vixie-dnsext-dns0x20)
		dnsFromA("40000 > 53", "query 1 | a.io AAAA"),
		dnsFromA("40000 > 53", "query 1 | a.io A | b.io A"),
		dnsFromA("40000 > 53", "query 1 opcode 4 | a.io A"),
		dnsFromA("40000 > 53", "query 1 | a.io A | a.io 1 A 192.0.2.1"),
		dnsFromA("40000 > 53", "query 1 | www.a.io A"),
		dnsFromA("40000 > 53", dnsAnswer1),
		dnsFromA("40000 > 53", long),
		flags(2),
		raw(func(m []byte) []byte { return m[:len(m)-1] }),
		raw(func(m []byte) []byte { return m[:dnsHeader] }),
		raw(func(m []byte) []byte { m[dnsHeader] = 0xc0; return m }),
		raw(func(m []byte) []byte { m[dnsHeader] = 63; return m }),
		raw(func(m []byte) []byte { binary.BigEndian.PutUint16(m[4:], 0); return m }),
		`eth a > gw | ip a > c | udp 40000 > 53`,
	} {
		steps = append(steps, step{at: "from_pod linka", in: in, want: "FORWARD_PROXY"})
	}
	steps[0].before = all(knowsIO(60, "192.0.2.1"), entries(dnsEntry{server: "c", question: long[10:], seconds: 60}))
	padded := dnsFromA("40000 > 53 len 12", dnsQuery1)
	return []row{
		{name: "queries of which the proxy decides", steps: steps},
		{name: "behind the end of a datagram", steps: []step{
			{at: "from_pod linka", in: padded, want: "FORWARD_PROXY", before: knowsIO(60, "192.0.2.1")},
		}},
		{name: "no more queries than are remembered", steps: []step{
			{at: "from_pod linka", in: dnsFromA("40000 > 53", dnsQuery1), want: "FORWARD_DNS_QUERY",
				before: knowsIO(60, "192.0.2.1")},
			{at: "from_pod linka", in: dnsFromA("40000 > 53", "query 9 | a.io A"), want: "FORWARD_DNS_QUERY"},
			{at: "from_pod linka", in: dnsFromA("40000 > 53", "query 17 | a.io A"), want: "FORWARD_PROXY"},
			{at: "from_pod linka", in: dnsFromA("40000 > 53", dnsQuery1), want: "FORWARD_DNS_QUERY"},
			{at: "from_wire eth0", in: dnsFromC("53 > 40000", "response 9 | a.io A"), want: "FORWARD_DNS_ANSWER"},
			{at: "from_pod linka", in: dnsFromA("40000 > 53", "query 17 | a.io A"), want: "FORWARD_DNS_QUERY"},
		}},
	}
}

// dnsAnswerRows are answers to a query that has passed, which go to the proxy.
func dnsAnswerRows() []row {
	raw := func(change func(m []byte)) string {
		m, err := dnstest.Message(dnsAnswer1)
		if err != nil {
			panic(err)
		}
		change(m)
		return fmt.Sprintf(`eth node2 > node | ip c > a | udp 53 > 40000 | hex:%x`, m)
	}
	const record = dnsHeader + 6 + dnsTail // the offset of the first record
	many := "response 1 | a.io A"
	for range 9 {
		many += " | a.io 30 A 192.0.2.1"
	}
	steps := []step{{at: "from_pod linka", in: dnsFromA("40000 > 53", dnsQuery1), want: "FORWARD_DNS_QUERY",
		before: all(knowsIO(60, "192.0.2.1"), entries(dnsEntry{server: "c", question: "b.io A", seconds: 60}))}}
	for _, in := range []string{
		dnsFromC("53 > 40000", "response 2 | a.io A | a.io 30 A 192.0.2.1"),
		dnsFromC("53 > 40000", "response 1 | b.io A"),
		dnsFromC("53 > 40000", "response 1 | A.io A"),
		dnsFromC("53 > 40000", "response 1 | a.io A | a.io 30 A 192.0.2.2"),
		dnsFromC("53 > 40000", dnsAnswer1+" | a.io 30 A 192.0.2.2"),
		dnsFromC("53 > 40000", "response 1 | a.io A | a.io 61 A 192.0.2.1"),
		dnsFromC("53 > 40000", "response 1 | a.io A | a.io 2147483648 A 192.0.2.1"),
		dnsFromC("53 > 40000", "response 1 | a.io A | b.io 30 A 192.0.2.1"),
		dnsFromC("53 > 40000", "response 1 | a.io A | A.io 30 A 192.0.2.1"),
		dnsFromC("53 > 40000", "response 1 | a.io A | a.io 30 CNAME b.io | b.io 30 A 192.0.2.1"),
		dnsFromC("53 > 40000", "response 1 | a.io A | a.io 30 AAAA 2001:db8::1"),
		dnsFromC("53 > 40000", "response 1 | a.io A | a.io 30 TXT t"),
		dnsFromC("53 > 40000", "response 1 code 3 | a.io A | a.io 30 A 192.0.2.1"),
		dnsFromC("53 > 40000", "response 1 tc | a.io A | a.io 30 A 192.0.2.1"),
		dnsFromC("53 > 40000", "response 1 opcode 4 | a.io A | a.io 30 A 192.0.2.1"),
		dnsFromC("53 > 40000", many),
		raw(func(m []byte) { m[record+1] = record }), // a pointer elsewhere: to itself, and into the question
		raw(func(m []byte) { m[record+1] = dnsHeader + 2 }),
		raw(func(m []byte) { m[record+5]++ }),  // the class
		raw(func(m []byte) { m[record+11]-- }), // the length of the address
		raw(func(m []byte) { m[7]++ }),         // more records than there are
	} {
		steps = append(steps, step{at: "from_wire eth0", in: in, want: "FORWARD_PROXY"})
	}
	steps = append(steps,
		// Not a reply of this flow: a new one, which no policy isolates the pod from.
		step{at: "from_wire eth0", in: `eth router > node | ip world > a | ` + udpOf("53 > 40000", dnsAnswer1),
			want: "FORWARD_POD"},
		step{at: "from_pod linka", in: dnsFromA("40001 > 53", "query 4 | b.io A"), want: "FORWARD_DNS_QUERY"},
		step{at: "from_wire eth0", in: dnsFromC("53 > 40001", dnsAnswer1), want: "FORWARD_PROXY"},
		step{at: "from_wire eth0", in: dnsFromC("53 > 40000", dnsAnswer1), want: "FORWARD_DNS_ANSWER"})
	return []row{{name: "answers that the proxy has to see", steps: steps}}
}

// dnsChangeRows are about entries that are not valid any more, or not of the pod.
func dnsChangeRows() []row {
	query := step{at: "from_pod linka", in: dnsFromA("40000 > 53", dnsQuery1), want: "FORWARD_DNS_QUERY"}
	toProxy := query
	toProxy.want = "FORWARD_PROXY"
	with := func(s step, before func(testing.TB, *world)) step { s.before = before; return s }
	answer := step{at: "from_wire eth0", in: dnsFromC("53 > 40000", dnsAnswer1), want: "FORWARD_PROXY"}
	return []row{
		{name: "policies change between query and answer", steps: []step{
			with(query, knowsIO(60, "192.0.2.1")), with(answer, asksC()), toProxy,
		}},
		{name: "the proxy no longer allows the query", steps: []step{
			with(query, knowsIO(60, "192.0.2.1")),
			{at: "from_pod linka", in: dnsFromA("40000 > 53", dnsQuery1), want: "DROP_POLICY_NO_RULE", out: "=",
				before: isolates(slotA, egress)},
		}},
		{name: "expired", steps: []step{with(toProxy, knowsIO(-1, "192.0.2.1"))}},
		{name: "of another pod", steps: []step{
			with(toProxy, all(asksC(), entries(dnsEntry{server: "c", question: "a.io A", seconds: 60, slot: slotB}))),
		}},
		{name: "another pod has the slot", steps: []step{
			with(query, knowsIO(60, "192.0.2.1")),
			with(toProxy, func(t testing.TB, w *world) { must(t, (&Epochs{Map: w.Epochs}).Begin(slotA)) }),
		}},
	}
}

// dnsWorldRows have a server in the world, to which pods are masqueraded.
func dnsWorldRows() []row {
	return []row{{name: "masqueraded", steps: []step{
		{at: "from_pod linka", in: `eth a > gw | ip a > world | ` + udpOf("40000 > 53", dnsQuery1),
			want: "FORWARD_DNS_QUERY", before: all(asksC(), entries(dnsEntry{server: "world", question: "a.io A",
				seconds: 60, addresses: []string{"192.0.2.1"}}))},
		{at: "from_proxy proxy0", want: "FORWARD_RESOLVE",
			out: `eth node > router | ip node > world ttl 62 | ` + udpOf("50000 > 53", dnsQuery1)},
		{at: "from_wire eth0", in: `eth router > node | ip world > node | ` + udpOf("53 > 50000", dnsAnswer1),
			want: "FORWARD_DNS_ANSWER"},
		{at: "from_proxy proxy0", want: "FORWARD_POD",
			out: `eth gw > a | ip world > a ttl 62 | ` + udpOf("53 > 40000", dnsAnswer1)},
		{at: "from_wire eth0", in: `eth router > node | ip world > node | ` + udpOf("53 > 50000", dnsAnswer1),
			want: "FORWARD_PROXY"},
	}}}
}
