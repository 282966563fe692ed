package dns

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"myelin/l7/config"
	"myelin/l7/dns/dnstest"
	"myelin/policy"
)

// discard is a map that costs nothing.
type discard struct{}

func (discard) Put(uint16, netip.Addr, Entry) error { return nil }
func (discard) Delete(uint16, netip.Addr) error     { return nil }

// manyPolicies has a number of pods, all of which have all of the selectors.
func manyPolicies(b testing.TB, pods, selectors int) *world {
	w := &world{TB: b, clock: &fakeClock{}, names: &memory{}}
	w.clock.advance(time.Hour)
	var numbers []uint32
	for i := range selectors {
		number := uint32(i + 1)
		name := policy.NamePattern{Name: fmt.Sprintf("host%d.example.com", i)}
		if i%2 == 1 {
			name = policy.NamePattern{Pattern: fmt.Sprintf("*.zone%d.example.com", i)}
		}
		selector := config.Selector{Number: number, Names: []policy.NamePattern{name}}
		w.config.Selectors = append(w.config.Selectors, selector)
		numbers = append(numbers, number)
	}
	for slot := range pods {
		w.config.Endpoints = append(w.config.Endpoints, pod(slot+1, numbers...))
	}
	w.config.Rules = []config.Rule{rule(1, "**.example.com")}
	w.start(discard{})
	return w
}

// BenchmarkExchange is a query and its answer with two addresses.
func BenchmarkExchange(b *testing.B) {
	w := manyPolicies(b, 100, 10_000)
	w.rules = [2]uint32{1}
	query := dnstest.UDP(client(1), resolver(), message1(b, "query 1 | a.zone1.example.com A"))
	answer := dnstest.UDP(resolver(), client(1), message1(b, "response 1 | a.zone1.example.com A | "+
		"a.zone1.example.com 60 CNAME b.example.net | b.example.net 60 A 192.0.2.1 | b.example.net 60 A 192.0.2.2"))
	b.ReportAllocs()
	for b.Loop() {
		if w.Packet(query) == nil || w.Packet(answer) == nil {
			b.Fatal("dropped")
		}
	}
	if got := w.Counters(); got.Unmatched > 0 || got.Malformed > 0 || w.links.Load() != 4 {
		b.Fatalf("%+v, %d links", got, w.links.Load())
	}
}

func BenchmarkRefusal(b *testing.B) {
	w := manyPolicies(b, 1, 1)
	w.rules = [2]uint32{1}
	query := dnstest.UDP(client(1), resolver(), message1(b, "query 1 | a.example.org A"))
	p := make([]byte, len(query))
	b.ReportAllocs()
	for b.Loop() {
		copy(p, query)
		if w.Packet(p) == nil {
			b.Fatal("dropped")
		}
	}
}

// BenchmarkUpdate has answers for fresh names, by 100 pods with policies of 10,000 names.
func BenchmarkUpdate(b *testing.B) {
	w := manyPolicies(b, 100, 10_000)
	var times []time.Duration
	i := 0
	for b.Loop() {
		slot, name := i%100+1, fmt.Sprintf("n%d.zone%d.example.com", i, i%5000*2+1)
		w.send(slot, "query 1 | "+name+" A")
		address := fmt.Sprintf("198.%d.%d.%d", i>>16&255, i>>8&255, i&255)
		m := message1(b, fmt.Sprintf("response 1 | %s A | %s 60 A %s", name, name, address))
		answer := dnstest.UDP(resolver(), client(slot), m)
		start := time.Now()
		w.Packet(answer)
		times = append(times, time.Since(start))
		i++
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds()), "p99-ns")
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "p50-ns")
}

func BenchmarkConfigure(b *testing.B) {
	w := manyPolicies(b, 100, 10_000)
	fill(w, 10_000)
	for b.Loop() {
		w.config.Selectors[0].Names = patterns(fmt.Sprintf("x%d.io", b.N))
		w.configure()
	}
}

// fill lets a hundred pods learn names with ten addresses each.
func fill(w *world, names int) {
	for i := range names {
		name := fmt.Sprintf("n%d.zone%d.example.com", i, i%5000*2+1)
		var records []string
		for j := range 10 {
			n := i*10 + j
			records = append(records, fmt.Sprintf("%s 60 A 198.%d.%d.%d", name, n>>16&255, n>>8&255, n&255))
		}
		w.ask(i%100+1, name+" A", records...)
	}
}

// TestMemory has 10,000 names with 100,000 addresses.
func TestMemory(t *testing.T) {
	w := manyPolicies(t, 100, 10_000)
	before := heap()
	fill(w, 10_000)
	after := heap()
	if got := w.links.Load(); got != 100_000 {
		t.Fatalf("%d addresses were learnt", got)
	}
	size := after - before
	t.Logf("10,000 names with 100,000 addresses: %d bytes", size)
	if size > 40<<20 {
		t.Errorf("%d bytes, want at most 40 MiB", size)
	}
	runtime.KeepAlive(w)
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // pools keep their contents for one collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
