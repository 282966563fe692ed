package bpf

import (
	"testing"
)

// keptTables test the per-CPU flow cache, and when its counters are flushed.
func keptTables() []table {
	const udp = `eth a > gw | ip a > b | udp 1 > 2`
	at := func(at, in, want string, row, pending uint64) step {
		return step{at: at, in: in, want: want, after: keptIs(row, pending)}
	}
	by := func(in, want string, row, pending uint64) step { return at("from_pod linka", in, want, row, pending) }
	answer := func(tcp string, row, pending uint64) step {
		return at("from_pod linkb", `eth b > gwb | ip b > a | `+tcp, "FORWARD_POD", row, pending)
	}
	return []table{{name: "per-CPU flow cache", settings: settingsOf(tracking, longTimes), rows: []row{
		{name: "counters are flushed when the copy is old", steps: []step{
			by(udp, "FORWARD_POD", 1, 0),
			by(udp, "FORWARD_POD", 1, 1),
			by(udp, "FORWARD_POD", 1, 2),
			{at: "from_pod linka", in: udp, want: "FORWARD_POD", before: agesKept, after: keptIs(3, 1)},
			by(udp, "FORWARD_POD", 3, 2),
		}},
		{name: "a connection's end is flushed by the next packet", steps: []step{
			by(`eth a > gw | ip a > b | tcp 40000 > 80 S`, "FORWARD_POD", 1, 0),
			answer(`tcp 80 > 40000 SA`, 2, 0),
			by(`eth a > gw | ip a > b | tcp 40000 > 80 FA`, "FORWARD_POD", 2, 1),
			answer(`tcp 80 > 40000 FA`, 2, 2),
			by(`eth a > gw | ip a > b | tcp 40000 > 80 A`, "FORWARD_POD", 5, 0),
		}},
		{name: "an answer on a cached path is not flushed", steps: []step{
			answer(`udp 80 > 40000`, 1, 0),
			by(`eth a > gw | ip a > b | tcp 40000 > 80 S`, "FORWARD_POD", 2, 0),
			answer(`tcp 80 > 40000 SA`, 2, 1),
		}},
		{name: "a reset is flushed at once", steps: []step{
			by(`eth a > gw | ip a > b | tcp 40000 > 80 S`, "FORWARD_POD", 1, 0),
			answer(`tcp 80 > 40000 RA`, 2, 0),
		}},
		{name: "a connection that begins where another one's copy is left", steps: []step{
			by(`eth a > gw | ip a > b | tcp 40000 > 80 S`, "FORWARD_POD", 1, 0),
			by(`eth a > gw | ip a > b | tcp 40000 > 80 A`, "FORWARD_POD", 1, 1),
			{at: "from_pod linka", in: `eth a > gw | ip a > b | tcp 40000 > 80 S`, want: "FORWARD_POD",
				before: deletesFlows, after: keptIs(1, 0)},
		}},
		{name: "an epoch that moved, nothing lost", steps: []step{
			by(udp, "FORWARD_POD", 1, 0),
			by(udp, "FORWARD_POD", 1, 1),
			{at: "from_pod linka", in: udp, want: "FORWARD_POD", before: func(t testing.TB, w *world) {
				w.bump(t, 2)
			}, after: keptIs(3, 0)},
		}},
		{name: "a copy is for one link and one MAC", steps: []step{
			by(udp, "FORWARD_POD", 1, 0),
			{at: "from_pod linkb", in: udp, want: "DROP_SPOOFED_MAC", out: "=", after: keptIs(1, 0)},
			{at: "from_pod linka", in: `eth b > gw | ip a > b | udp 1 > 2`, want: "DROP_SPOOFED_MAC", out: "=",
				after: keptIs(1, 0)},
		}},
		{name: "from the wire", steps: []step{
			at("from_wire eth0", `eth node2 > node | ip c > a | udp 1 > 2`, "FORWARD_POD", 1, 0),
			at("from_wire eth0", `eth node2 > node | ip c > a | udp 1 > 2`, "FORWARD_POD", 1, 1),
			{at: "from_wire eth0", in: `eth node2 > node | ip c > a | udp 1 > 2`, want: "FORWARD_POD", before: agesKept,
				after: keptIs(2, 1)},
		}},
	}}}
}

// keptIs compares the packets that the only row knows of, and those that it does not.
func keptIs(row, pending uint64) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		var known, more uint64
		for _, f := range rowsIn[DatapathFlowKey, DatapathFlow](t, w.Flows) {
			known += f.Side[0].Packets + f.Side[1].Packets
		}
		must(t, cachedFlows(w.FlowCache, func(_ int, _ uint32, k *DatapathCachedFlow) bool {
			more += uint64(k.Way[0].Packets) + uint64(k.Way[1].Packets)
			return true
		}))
		if known != row || more != pending {
			t.Fatalf("the row knows of %d packets, CPUs of %d more; want %d and %d", known, more, row, pending)
		}
	}
}

// agesKept makes all copies too old to be followed.
func agesKept(t testing.TB, w *world) {
	t.Helper()
	now, err := readJiffies()
	must(t, err)
	must(t, cachedFlows(w.FlowCache, func(cpu int, i uint32, _ *DatapathCachedFlow) bool {
		var rows []DatapathCachedFlow
		must(t, w.FlowCache.Lookup(i, &rows))
		rows[cpu].ValidUntil = uint32(now) - 1
		must(t, w.FlowCache.Put(i, rows))
		return true
	}))
}

// deletesFlows takes the rows away, as the agent's collector does.
func deletesFlows(t testing.TB, w *world) {
	t.Helper()
	for k := range rowsIn[DatapathFlowKey, DatapathFlow](t, w.Flows) {
		must(t, w.Flows.Delete(&k))
	}
}
