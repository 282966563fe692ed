package gateway

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"myelin/bpf"
)

// BenchmarkSnapshot has a peer get a million flows when it connects, and measures a walk that finds nothing new. All of
// it is in this process.
func BenchmarkSnapshot(b *testing.B) {
	const flows = 1_000_000
	at := [2]string{freeAddress(b), freeAddress(b)}
	from := newRig(b, false, flows*11/10, peering(at[0], at[1], trusted))
	to := newRig(b, false, flows*23/10, peering(at[1], at[0], trusted))
	r, _ := parse(from.flow(40000))
	key, e := r.key(), r.entry(from.clock(), member{service: 1, backend: 1})
	e.Packets[0] = 5
	for i := range flows {
		client := [4]byte{10}
		binary.BigEndian.PutUint32(client[:], 10<<24+uint32(i))
		key.Src = bpf.Addr(netip.AddrFrom4(client))
		if err := from.Datapath.NatEntries.Put(&key, &e); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		before, cpu, began := heap(), cpuTime(), time.Now()
		stopTo, stopFrom := to.run(), from.run()
		for from.senders[0].sent.Load() < flows {
			time.Sleep(10 * time.Millisecond)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s/snapshot")
		b.ReportMetric((cpuTime() - cpu).Seconds(), "cpu-s/snapshot")
		b.ReportMetric(float64(heap()-before)/flows, "B/flow")
		stopTo()
		stopFrom()
		if n := from.Peers()[0].refusals(); n > 0 {
			b.Fatalf("%d flows were refused", n)
		}
		cpu, began = cpuTime(), time.Now()
		if err := from.walk.pass(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "s/walk")
		b.ReportMetric((cpuTime() - cpu).Seconds(), "cpu-s/walk")
	}
}

// heap returns the bytes in use after a garbage collection.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// cpuTime returns the CPU time of this process.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
