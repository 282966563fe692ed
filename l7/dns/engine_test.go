package dns

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"myelin/cluster"
	"myelin/l7/config"
	"myelin/l7/dns/dnstest"
	"myelin/policy"
)

// fakeClock is set by tests.
type fakeClock struct{ monotonic atomic.Uint64 }

func (c *fakeClock) Now() time.Time          { return time.Unix(0, int64(c.monotonic.Load())) }
func (c *fakeClock) Monotonic() uint64       { return c.monotonic.Load() }
func (c *fakeClock) advance(d time.Duration) { c.monotonic.Add(uint64(d)) }

// world is an engine with pods.
type world struct {
	testing.TB
	*Engine
	clock  *fakeClock
	names  *memory
	rules  [2]uint32
	id     uint16
	config config.Config

	questions questions
	epoch     uint32 // of policies
}

const podSlot = 3

func podAddr(slot int, six bool) netip.Addr {
	if six {
		return netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(slot >> 8), 15: byte(slot)})
	}
	return netip.AddrFrom4([4]byte{10, 1, byte(slot >> 8), byte(slot)})
}

func pod(slot int, selectors ...uint32) config.Endpoint {
	return config.Endpoint{
		Pod: cluster.Key{Namespace: "default", Name: fmt.Sprint("pod", slot)}, Slot: uint16(slot),
		Addresses: []netip.Addr{podAddr(slot, false), podAddr(slot, true)}, Selectors: selectors,
	}
}

func patterns(texts ...string) []policy.NamePattern {
	var all []policy.NamePattern
	for _, text := range texts {
		if strings.Contains(text, "*") {
			all = append(all, policy.NamePattern{Pattern: text})
		} else {
			all = append(all, policy.NamePattern{Name: text})
		}
	}
	return all
}

// newWorld has a pod, and a selector for each of the texts, from 1 on.
func newWorld(t testing.TB, texts ...string) *world {
	w := &world{TB: t, clock: &fakeClock{}, names: &memory{}}
	w.clock.advance(time.Hour)
	var numbers []uint32
	for i, text := range texts {
		number := uint32(i + 1)
		w.config.Selectors = append(w.config.Selectors, config.Selector{Number: number, Names: patterns(text)})
		numbers = append(numbers, number)
	}
	w.config.Endpoints = []config.Endpoint{pod(podSlot, numbers...)}
	w.config.DNS.RejectCode = 5
	w.start(w.names)
	return w
}

// start makes an engine, as a process that starts does.
func (w *world) start(m Map) {
	w.Engine = New(Params{
		Map: m, Clock: w.clock, Log: slog.New(slog.DiscardHandler),
		Questions: &w.questions,
		Rules: func(source, _ netip.AddrPort, _ uint8) FlowRules {
			if source.Addr() == resolver().Addr() {
				return FlowRules{}
			}
			return FlowRules{Numbers: w.rules, Epoch: w.epoch}
		},
	})
	w.configure()
}

func (w *world) configure() {
	w.Helper()
	if err := w.Configure(&w.config); err != nil {
		w.Fatal(err)
	}
}

func message1(t testing.TB, text string) []byte {
	t.Helper()
	m, err := dnstest.Message(text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func client(slot int) netip.AddrPort { return netip.AddrPortFrom(podAddr(slot, false), 40000) }

func resolver() netip.AddrPort { return netip.MustParseAddrPort("10.96.0.10:53") }

// send lets a pod send a message to the resolver.
func (w *world) send(slot int, text string) []byte {
	w.Helper()
	return w.Packet(dnstest.UDP(client(slot), resolver(), message1(w, text)))
}

// receive lets the resolver send a message to a pod.
func (w *world) receive(slot int, text string) {
	w.Helper()
	b := dnstest.UDP(resolver(), client(slot), message1(w, text))
	before := slices.Clone(b)
	if got := w.Packet(b); !slices.Equal(got, before) {
		w.Fatalf("answer %q: got %x, want it unchanged", text, got)
	}
}

// ask lets a pod ask for a name and get an answer.
func (w *world) ask(slot int, question string, records ...string) {
	w.Helper()
	w.id++
	w.send(slot, fmt.Sprintf("query %d | %s", w.id, question))
	w.receive(slot, strings.Join(append([]string{fmt.Sprintf("response %d | %s", w.id, question)}, records...), " | "))
}

// entries are what the map has of a pod: "192.0.2.1 1,2" for an address with two selectors.
func (w *world) entries(slot int) string {
	var lines []string
	for k, e := range w.names.entries {
		if k.slot == uint16(slot) && e.Expires > w.clock.Monotonic() {
			numbers := strings.ReplaceAll(strings.Trim(fmt.Sprint(e.Selectors), "[]"), " ", ",")
			lines = append(lines, fmt.Sprint(k.addr, " ", numbers))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "; ")
}

func (w *world) want(slot int, want string) {
	w.Helper()
	if got := w.entries(slot); got != want {
		w.Errorf("map of pod %d: got %q, want %q", slot, got, want)
	}
}

func TestLearn(t *testing.T) {
	for _, test := range []struct {
		name      string
		selectors string
		question  string
		records   string
		want      string
	}{
		{"exact", "www.example.com", "www.example.com A", "www.example.com 60 A 192.0.2.1", "192.0.2.1 1"},
		{"capitals", "www.example.com", "WWW.Example.com A", "www.EXAMPLE.com 60 A 192.0.2.1", "192.0.2.1 1"},
		{"both families", "*.example.com", "a.example.com AAAA",
			"a.example.com 60 AAAA 2001:db8::1 | a.example.com 60 A 192.0.2.1", "192.0.2.1 1; 2001:db8::1 1"},
		{"mapped", "*.example.com", "a.example.com AAAA", "a.example.com 60 AAAA ::ffff:192.0.2.1", "192.0.2.1 1"},
		{"several selectors", "a.example.com *.example.com *.com **.com", "a.example.com A",
			"a.example.com 60 A 192.0.2.1", "192.0.2.1 1,2,4"},
		{"no selector", "www.example.com", "example.com A", "example.com 60 A 192.0.2.1", ""},
		{"chain, by question", "a.io", "a.io A", "a.io 60 CNAME b.io | b.io 60 CNAME c.net | c.net 60 A 192.0.2.1",
			"192.0.2.1 1"},
		{"chain, in the middle", "b.io", "a.io A", "a.io 60 CNAME b.io | b.io 60 CNAME c.net | c.net 60 A 192.0.2.1",
			"192.0.2.1 1"},
		{"chain, last name", "*.net", "a.io A", "a.io 60 CNAME b.io | b.io 60 CNAME c.net | c.net 60 A 192.0.2.1",
			"192.0.2.1 1"},
		{"chain, out of order", "a.io", "a.io A", "c.net 60 A 192.0.2.1 | b.io 60 CNAME c.net | a.io 60 CNAME b.io",
			"192.0.2.1 1"},
		{"loop", "*", "a.io A", "a.io 60 CNAME b.io | b.io 60 CNAME a.io | a.io 60 A 192.0.2.1", "192.0.2.1 1"},
		{"own alias", "*", "a.io A", "a.io 60 CNAME a.io | a.io 60 A 192.0.2.1", "192.0.2.1 1"},
		{"another name", "*.example.com bank.example.com", "evil.io A",
			"bank.example.com 60 A 192.0.2.1 | evil.io 60 A 192.0.2.2", ""},
		{"behind the chain", "*", "a.io A", "a.io 60 CNAME b.io | a.io 60 A 192.0.2.6 | c.io 60 A 192.0.2.7", ""},
		{"additional section", "*", "a.io A", "additional | a.io 60 A 192.0.2.1", ""},
		{"other types", "*", "a.io TXT", "a.io 60 TXT x | a.io 60 A 192.0.2.1", "192.0.2.1 1"},
		{"truncated record", "*", "a.io A", "a.io 60 A 192.0.2.1 | raw 00", "192.0.2.1 1"},
		{"search list", "www.example.com", "www.example.com.default.svc.cluster.local A",
			"www.example.com.default.svc.cluster.local 60 A 192.0.2.1", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, strings.Fields(test.selectors)...)
			w.ask(podSlot, test.question, test.records)
			w.want(podSlot, test.want)
			w.want(podSlot+1, "")
		})
	}
}

// TestUnmatched has answers that no query was sent for: nothing is learnt from them.
func TestUnmatched(t *testing.T) {
	const record = " | a.io 60 A 192.0.2.1"
	for _, test := range []struct{ name, query, response, want string }{
		{"matching", "query 1 | a.io A", "response 1 | a.io A" + record, "192.0.2.1 1"},
		{"truncated", "query 1 | a.io A", "response 1 tc | a.io A" + record, "192.0.2.1 1"},
		{"other ID", "query 1 | a.io A", "response 2 | a.io A" + record, ""},
		{"other name", "query 1 | b.io A", "response 1 | a.io A" + record, ""},
		{"other type", "query 1 | a.io AAAA", "response 1 | a.io A" + record, ""},
		{"not a response", "query 1 | a.io A", "query 1 | a.io A" + record, ""},
		{"no question", "query 1 | a.io A", "response 1 | a.io 60 A 192.0.2.1", ""},
		{"error", "query 1 | a.io A", "response 1 code 3 | a.io A" + record, ""},
		{"opcode", "query 1 | a.io A", "response 1 opcode 4 | a.io A" + record, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t, "a.io")
			w.send(podSlot, test.query)
			w.receive(podSlot, test.response)
			w.want(podSlot, test.want)
		})
	}
	w := newWorld(t, "a.io")
	w.config.Endpoints = append(w.config.Endpoints, pod(podSlot+1, 1))
	w.configure()
	w.send(podSlot+1, "query 1 | a.io A")
	w.receive(podSlot, "response 1 | a.io A"+record)
	w.want(podSlot, "")
	w.clock.advance(time.Duration(pendingTime) + time.Second)
	w.receive(podSlot+1, "response 1 | a.io A"+record)
	w.want(podSlot+1, "")
	w.send(podSlot+1, "query 1 | a.io A")
	other := netip.MustParseAddrPort("10.96.0.11:53")
	w.Packet(dnstest.UDP(other, client(podSlot+1), message1(w, "response 1 | a.io A"+record)))
	w.want(podSlot+1, "")
	if got := w.Counters().Unmatched; got != 3 {
		t.Errorf("%d unmatched answers, want 3", got)
	}
}

// failing is a map that refuses entries.
type failing struct{ memory }

func (*failing) Put(uint16, netip.Addr, Entry) error { return errors.New("full") }

func TestPutFails(t *testing.T) {
	w := newWorld(t, "a.io")
	w.start(&failing{})
	w.ask(podSlot, "a.io A", "a.io 60 A 192.0.2.1")
	if got := w.Counters().PutFailed; got != 1 {
		t.Errorf("%d failures are counted, want 1", got)
	}
}

func TestHeldUntilWritten(t *testing.T) {
	w := newWorld(t, "a.io")
	var answer []byte
	w.start(&checking{memory: w.names, put: func() {
		if answer != nil {
			t.Error("the answer was delivered before the address was written")
		}
	}})
	w.send(podSlot, "query 1 | a.io A")
	answer = w.Packet(dnstest.UDP(resolver(), client(podSlot), message1(w, "response 1 | a.io A | a.io 0 A 192.0.2.1")))
	w.want(podSlot, "192.0.2.1 1")
}

type checking struct {
	*memory
	put func()
}

func (c *checking) Put(slot uint16, a netip.Addr, e Entry) error {
	c.put()
	return c.memory.Put(slot, a, e)
}

func TestRecord(t *testing.T) {
	w := newWorld(t, "a.io")
	var got []Record
	w.Params.Record = func(r *Record) {
		kept := *r
		kept.QueryTypes, kept.AnswerTypes = slices.Clone(r.QueryTypes), slices.Clone(r.AnswerTypes)
		kept.Addresses, kept.CNAMEs = slices.Clone(r.Addresses), slices.Clone(r.CNAMEs)
		got = append(got, kept)
	}
	w.ask(podSlot, "a.io A")
	if len(got) > 0 {
		t.Errorf("records that are not wanted: %+v", got)
	}
	w.config.Records = true
	w.configure()
	query := Record{
		Time: w.clock.Now(), Slot: podSlot, Known: true, Source: client(podSlot), Destination: resolver(), Proto: 17,
		Query: "a.io.", QueryTypes: []uint16{1},
	}
	w.send(podSlot, "query 1 | a.io A")
	w.clock.advance(3 * time.Millisecond)
	w.receive(podSlot, "response 1 | a.io A | a.io 60 CNAME b.io | b.io 20 A 192.0.2.1")
	answer := query
	answer.Time, answer.Latency, answer.Response = w.clock.Now(), 3*time.Millisecond, true
	answer.Source, answer.Destination = resolver(), client(podSlot)
	answer.AnswerTypes, answer.CNAMEs, answer.TTL = []uint16{5, 1}, []string{"b.io."}, 20
	answer.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	for i, want := range []Record{query, answer} {
		if i >= len(got) || fmt.Sprintf("%+v", got[i]) != fmt.Sprintf("%+v", want) {
			t.Fatalf("record %d: got %+v, want %+v", i, got, want)
		}
	}
}
