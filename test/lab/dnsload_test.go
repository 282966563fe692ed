package labtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// dnsSockets is how many queries wait for an answer at a time, as with dnsperf.
const dnsSockets = 100

// TestDNSLoad has one pod ask for names by the proxy and another one directly, in turn: queries a second as fast as
// answers come, and latencies at half of the rate that the proxy has; without flow records and with them.
//
//	┌─ node1 ─────────────────────────┐
//	│ backend ─► proxy ─┐       other │
//	└───────────────────┼─────────┬───┘
//	════════════════════╧═════════╧═══ world: resolver
func TestDNSLoad(t *testing.T) {
	names, rounds, each := 1000, 3, patience(time.Second)/2
	if os.Getenv(envRecord) == "1" {
		names, rounds, each = 10_000, 9, 2*time.Second
	}
	for _, suffix := range []string{"", "_hubble"} {
		t.Run("records"+suffix, func(t *testing.T) {
			c := up(t, setup{yaml: namedPods(), values: map[string]any{"hubble.enabled": suffix != ""}})
			c.serveNames(1)
			for _, f := range []int{4, 6} {
				l := dnsLoad{cluster: c, family: f, names: names, suffix: suffix}
				if f == 6 {
					l.suffix += "6"
				}
				for _, pod := range []string{"backend", "other"} {
					l.pods = append(l.pods, c.dnsClients(pod, f, dnsSockets))
				}
				l.measure(t, rounds, each)
			}
		})
	}
}

// dnsLoad is the sockets of a pod behind the proxy, and of one that is not.
type dnsLoad struct {
	cluster       *cluster
	family, names int
	suffix        string // of results
	pods          [][]*net.UDPConn
}

// dnsRound is what one pod had in a round.
type dnsRound struct {
	rate float64 // answers a second
	p99  time.Duration
	cpu  time.Duration // of all processes, for an answer
}

func (l *dnsLoad) measure(t *testing.T, rounds int, each time.Duration) {
	t.Helper()
	run := func(rate float64) (through, direct []dnsRound) {
		for i := range 2 * rounds {
			r, err := l.run(l.pods[i%2], rate, each)
			if err != nil {
				t.Fatalf("IPv%d, pod %d, round %d: %v", l.family, i%2, i/2, err)
			}
			if i%2 == 0 {
				through = append(through, r)
			} else {
				direct = append(direct, r)
			}
		}
		return through, direct
	}
	through, direct := run(0)
	kept, rate, slower := ratio(through, direct, byRate), medianOf(through, byRate), ratio(through, direct, byP99)
	t.Logf("IPv%d: %.0f queries a second by the proxy, %.0f directly; %.1f and %.1f µs of CPU each; p99 %.0f and "+
		"%.0f µs", l.family, rate, medianOf(direct, byRate), medianOf(through, byCPU)*1e6, medianOf(direct, byCPU)*1e6,
		medianOf(through, byP99)*1e6, medianOf(direct, byP99)*1e6)
	through, direct = run(rate / 2)
	t.Logf("IPv%d at %.0f queries a second: p99 %.0f µs by the proxy, %.0f µs directly", l.family,
		medianOf(through, byRate), medianOf(through, byP99)*1e6, medianOf(direct, byP99)*1e6)
	record(t, result{"dns/kept" + l.suffix, kept, "ratio"}, result{"dns/p99_x" + l.suffix, slower, "ratio"},
		result{"dns/p99_half_x" + l.suffix, ratio(through, direct, byP99), "ratio"})
}

// cpu is what the processes that take part have used.
func (l *dnsLoad) cpu() time.Duration {
	t := l.cluster.t
	return processTime(t, os.Getpid()) + processTime(t, l.cluster.proxy("node1").PID) +
		processTime(t, l.cluster.Node("node1").AgentProcess().PID)
}

func byCPU(r dnsRound) float64 { return r.cpu.Seconds() }

func byRate(r dnsRound) float64 { return r.rate }

func byP99(r dnsRound) float64 { return r.p99.Seconds() }

// ratio is the median of the ratios of rounds that followed each other.
func ratio(a, b []dnsRound, by func(dnsRound) float64) float64 {
	list := make([]float64, len(a))
	for i := range a {
		list[i] = by(a[i]) / by(b[i])
	}
	slices.Sort(list)
	return list[len(list)/2]
}

func medianOf(rounds []dnsRound, by func(dnsRound) float64) float64 {
	list := make([]float64, len(rounds))
	for i, r := range rounds {
		list[i] = by(r)
	}
	slices.Sort(list)
	return list[len(list)/2]
}

// run asks for a time: at a rate, or without one as fast as answers come. At a rate, latencies count from when a query
// was due.
func (l *dnsLoad) run(conns []*net.UDPConn, rate float64, each time.Duration) (r dnsRound, err error) {
	latencies := make([][]time.Duration, len(conns))
	begin, before := time.Now(), l.cpu()
	var g errgroup.Group
	for i, conn := range conns {
		g.Go(func() (err error) {
			latencies[i], err = l.ask(conn, i, rate/float64(len(conns)), begin, each)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return r, err
	}
	all := slices.Concat(latencies...)
	slices.Sort(all)
	rate = float64(len(all)) / time.Since(begin).Seconds()
	return dnsRound{rate, all[len(all)*99/100], (l.cpu() - before) / time.Duration(len(all))}, nil
}

// ask is one socket's part of run.
func (l *dnsLoad) ask(conn *net.UDPConn, first int, rate float64, begin time.Time, each time.Duration,
) (latencies []time.Duration, err error) {
	queries := make([][]byte, l.names/dnsSockets)
	for i := range queries {
		if queries[i], err = dnsQuery(l.family, first+i*dnsSockets); err != nil {
			return nil, err
		}
	}
	end := begin.Add(each)
	if err := conn.SetDeadline(end.Add(patience(3 * time.Second))); err != nil {
		return nil, err
	}
	buffer, id := make([]byte, 1500), uint16(rand.Uint32())
	due := begin
	if rate > 0 { // not all at once
		due = due.Add(time.Duration(float64(first) / dnsSockets / rate * float64(time.Second)))
	}
	for i := 0; ; i++ {
		if rate > 0 {
			time.Sleep(time.Until(due))
		} else {
			due = time.Now()
		}
		if !due.Before(end) {
			return latencies, nil
		}
		if _, err := dnsExchange(conn, queries[i%len(queries)], id+uint16(i), buffer); err != nil {
			return nil, fmt.Errorf("query %d: %w", i, err)
		}
		latencies = append(latencies, time.Since(due))
		if rate > 0 {
			due = due.Add(time.Duration(float64(time.Second) / rate))
		}
	}
}
