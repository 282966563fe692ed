package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func (w *world) flows(t testing.TB) map[DatapathFlowKey]DatapathFlow {
	t.Helper()
	rows := rowsIn[DatapathFlowKey, DatapathFlow](t, w.Flows)
	pending, err := ReadPending(&Datapath{Objects: w.Objects})
	must(t, err)
	for k, f := range rows {
		pending.Add(&k, &f)
		rows[k] = f
	}
	return rows
}

// unkeep flushes the per-CPU flow caches of all CPUs to the conntrack entries, and empties them.
func (w *world) unkeep(t testing.TB) {
	t.Helper()
	for k, f := range w.flows(t) {
		must(t, w.Flows.Put(k, f))
	}
	none := make([]DatapathCachedFlow, ebpf.MustPossibleCPU())
	must(t, cachedFlows(w.FlowCache, func(_ int, index uint32, _ *DatapathCachedFlow) bool {
		must(t, w.FlowCache.Put(index, none))
		return true
	}))
}

// flow is the only row there is.
func (w *world) flow(t testing.TB) (DatapathFlowKey, DatapathFlow) {
	t.Helper()
	rows := w.flows(t)
	if len(rows) != 1 {
		t.Fatalf("%d flows have rows, want 1: %+v", len(rows), rows)
	}
	for k, f := range rows {
		return k, f
	}
	panic("unreachable")
}

func flowsAre(n int) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		if rows := w.flows(t); len(rows) != n {
			t.Fatalf("%d flows have rows, want %d: %+v", len(rows), n, rows)
		}
	}
}

// ages makes all rows look as if their last packet was that long ago.
func ages(seconds uint32) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		w.unkeep(t)
		for k, f := range w.flows(t) {
			f.Seen -= seconds * w.settings.Hz
			f.Created -= uint64(seconds * w.settings.Hz)
			must(t, w.Flows.Put(k, f))
		}
	}
}

// hostSocket opens a dual-stack socket of the host's until the test ends.
func hostSocket(t testing.TB, kind, port int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	must(t, unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0))
	must(t, unix.Bind(fd, &unix.SockaddrInet6{Port: port}))
	if kind == unix.SOCK_STREAM {
		must(t, unix.Listen(fd, 1))
	}
}
