package bpf

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"myelin/test/packet/packettest"
)

// limiting has limits of pods. With departure times, packets of kernels that keep them wait.
func limiting(s *Settings) {
	s.Bandwidth = 1
	if HaveDepartureTimes() {
		s.Edt = 1
	}
}

const (
	bandwidthEgress  = uint16(DatapathBandwidthDirectionBANDWIDTH_EGRESS)
	bandwidthIngress = uint16(DatapathBandwidthDirectionBANDWIDTH_INGRESS)
)

// second is in ns.
const second = uint64(1e9)

// limits writes a limit of 1,000 bytes per second, under which a packet may wait for ten seconds; ahead, in ns, is how
// long the next one must.
func limits(slot, direction uint16, ahead uint64) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		key := DatapathBandwidthKey{Slot: slot, Direction: direction}
		row := DatapathBandwidth{Rate: 1000, Horizon: 10 * second, Next: now() + ahead, Paced: 1}
		must(t, w.Bandwidths.Put(key, row))
		t.Cleanup(func() { _ = w.Bandwidths.Delete(key) })
	}
}

// prefers writes a priority, as the datapath has it, and no limit.
func prefers(slot uint16, priority uint32) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		key := DatapathBandwidthKey{Slot: slot, Direction: bandwidthEgress}
		must(t, w.Bandwidths.Put(key, DatapathBandwidth{Priority: priority}))
		t.Cleanup(func() { _ = w.Bandwidths.Delete(key) })
	}
}

// leavesWith checks skb->priority, and that the packet does not wait.
func leavesWith(priority uint32) func(packettest.Result) error {
	return func(r packettest.Result) error {
		if r.Skb.Priority != priority {
			return fmt.Errorf("the packet has priority %d, want %d", r.Skb.Priority, priority)
		}
		return departs(0)(r)
	}
}

func now() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return uint64(ts.Nano())
}

// taken checks what packets have taken of the limit: bytes that were sent, to which IPv6 adds 20 for each packet, and
// dropped packets.
func taken(slot, direction uint16, packets, bytes, dropped uint64) func(testing.TB, *world) {
	return func(t testing.TB, w *world) {
		t.Helper()
		var b DatapathBandwidth
		must(t, w.Bandwidths.Lookup(DatapathBandwidthKey{Slot: slot, Direction: direction}, &b))
		if b.Sent.Packets != packets || b.Sent.Bytes != bytes && b.Sent.Bytes != bytes+20*packets ||
			b.Dropped.Packets != dropped {
			t.Errorf("sent %+v, dropped %+v, want %d packets of %d bytes and %d packets", b.Sent, b.Dropped, packets,
				bytes, dropped)
		}
	}
}

// departs checks skb->tstamp: seconds from now, rounded; 0: it is not set.
func departs(seconds uint64) func(packettest.Result) error {
	return func(r packettest.Result) error {
		if seconds == 0 {
			if r.Skb.Tstamp != 0 {
				return fmt.Errorf("the packet departs at %d, want no time", r.Skb.Tstamp)
			}
			return nil
		}
		wait := int64(r.Skb.Tstamp - now())
		if got := (wait + int64(second)/2) / int64(second); got != int64(seconds) {
			return fmt.Errorf("the packet departs in %d ns, want %d s", wait, seconds)
		}
		return nil
	}
}

func bandwidthTables() []table {
	tables := []table{
		{name: "bandwidth", settings: settingsOf(limiting), rows: bandwidthRows("FORWARD_RESOLVE", "FORWARD_WIRE")},
		{name: "bandwidth, tracking, masquerading", settings: settingsOf(limiting, tracking, masquerading, longTimes),
			rows: bandwidthRows("FORWARD_RESOLVE", "FORWARD_WIRE")},
		{name: "bandwidth, tunnel", settings: settingsOf(limiting, tunnel4),
			rows: bandwidthRows("FORWARD_TUNNEL", "FORWARD_TUNNEL")},
		{name: "bandwidth, encryption", settings: settingsOf(limiting, encrypting),
			rows: bandwidthRows("FORWARD_ENCRYPT", "FORWARD_ENCRYPT")},
		{name: "bandwidth, legacy", settings: settingsOf(limiting, legacy),
			rows: bandwidthRows("FORWARD_STACK", "FORWARD_STACK")},
		{name: "bandwidth, services", settings: settingsOf(limiting, servicing, tunnel4), rows: []row{
			pacedRow("to a Service", `eth a > gw | ip a > vip | udp 40000 > 81 | len 1000`, "FORWARD_TUNNEL",
				"FORWARD_TUNNEL"),
		}},
		{name: "bandwidth of what pods receive", settings: settingsOf(limiting), rows: ingressRows()},
	}
	return tables
}

// pacedRow is packets of 1,000 bytes of payload from a, the last of which would have to wait for too long.
func pacedRow(name, in, first, then string) row {
	var wait, long uint64
	if HaveDepartureTimes() {
		wait, long = 5, 6
	}
	const at = "from_pod linka"
	return row{name: name, steps: []step{
		{at: at, in: in, want: first, check: departs(0), before: limits(slotA, bandwidthEgress, 0)},
		{at: at, in: in, want: then, check: departs(wait), before: limits(slotA, bandwidthEgress, 5*second)},
		{at: at, in: in, want: then, check: departs(long), after: taken(slotA, bandwidthEgress, 2, 2*1042, 0)},
		{at: at, in: in, want: "DROP_BANDWIDTH", before: limits(slotA, bandwidthEgress, 11*second),
			after: taken(slotA, bandwidthEgress, 0, 0, 1)},
	}}
}

// bandwidthRows are packets that a sends; first is how the first packet of a decision leaves, then how others do.
func bandwidthRows(first, then string) []row {
	udp := `eth a > gw | ip a > c | udp 40000 > 53 | len 1000`
	rows := []row{
		pacedRow("to another node", udp, first, then),
		{name: "beside another pod's limit", steps: []step{
			{at: "from_pod linka", in: udp, want: first, check: departs(0),
				before: limits(slotB, bandwidthEgress, 5*second), after: taken(slotB, bandwidthEgress, 0, 0, 0)},
		}},
		{name: "segments have headers", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > c | tcp 40000 > 80 A | len 3000`, want: first,
				before:  limits(slotA, bandwidthEgress, 0),
				options: packettest.Options{GSOSize: 1000, GSOSegs: 3}, after: taken(slotA, bandwidthEgress, 1, 0, 0)},
		}},
	}
	priority := row{name: "with a priority alone", steps: []step{
		{at: "from_pod linka", in: udp, want: first, check: leavesWith(6), before: prefers(slotA, 7)},
		{at: "from_pod linka", in: udp, want: then, check: leavesWith(6),
			after: taken(slotA, bandwidthEgress, 0, 0, 0)},
		{at: "from_pod linka", in: udp, want: then, check: leavesWith(0), before: prefers(slotA, 1),
			options: packettest.Options{Priority: 5}},
	}}
	rows[2].steps[0].after = func(t testing.TB, w *world) {
		var b DatapathBandwidth
		must(t, w.Bandwidths.Lookup(DatapathBandwidthKey{Slot: slotA, Direction: bandwidthEgress}, &b))
		if b.Sent.Bytes != 3*1054 && b.Sent.Bytes != 3*1074 {
			t.Errorf("three segments have %d bytes, want 3,162, or 3,222 of IPv6", b.Sent.Bytes)
		}
	}
	return append(rows, priority)
}

// ingressRows are packets to b: they pass its link's qdisc, and wait there.
func ingressRows() []row {
	const forwarded = 0x6d796b66
	fromWire := `eth node2 > node | ip c > b | udp 53 > 40000`
	redirected := packettest.Options{CB: [5]uint32{1: forwarded}, WireLen: 2000}
	return []row{
		{name: "without a limit", steps: []step{
			{at: "from_wire eth0", in: fromWire, want: "FORWARD_POD", check: leaves(0, 0)},
			{at: "to_pod linkb", in: `eth gwb > b | ip gw > b | tcp 1 > 2 S`, out: "=", check: departs(0)},
		}},
		{name: "to the same node, with a priority", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 1 > 2`, want: "FORWARD_POD", check: leavesWith(0),
				before: prefers(slotA, 7)},
		}},
		{name: "from a wire", steps: []step{
			{at: "from_wire eth0", in: fromWire, want: "FORWARD_POD", check: leaves(forwarded, 0),
				before: limits(slotB, bandwidthIngress, 5*second)},
			{at: "to_pod linkb", in: `eth gwb > b | ip c > b ttl 63 | udp 53 > 40000`, out: "=", check: departs(5),
				options: redirected},
			{at: "to_pod linkb", in: `eth gwb > b | ip c > b ttl 63 | udp 53 > 40000`, out: "=", check: departs(7),
				options: redirected},
			{at: "to_pod linkb", in: `eth gwb > b | ip c > b ttl 63 | udp 53 > 40000`, want: "DROP_BANDWIDTH",
				options: redirected, before: limits(slotB, bandwidthIngress, 11*second),
				after: taken(slotB, bandwidthIngress, 0, 0, 1)},
		}},
		{name: "from a pod beside", steps: []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > b | udp 1 > 2`, want: "FORWARD_POD",
				check: leaves(forwarded, 0), before: limits(slotB, bandwidthIngress, 5*second)},
		}},
		{name: "from the host", steps: []step{
			{at: "to_pod linkb", in: `eth gwb > b | ip gw > b | tcp 1 > 2 S`, out: "=", check: departs(5),
				before: limits(slotB, bandwidthIngress, 5*second)},
			{at: "to_pod linkb", in: `eth gwb > b | ip gw > b | tcp 1 > 2 S`, out: "=", check: departs(5),
				before:  limits(slotB, bandwidthIngress, 5*second),
				options: packettest.Options{Tstamp: now() + 1000*second}},
			{at: "to_pod linkb", in: `eth gwb > b | ip gw > b | tcp 1 > 2 S`, want: "DROP_BANDWIDTH",
				before: limits(slotB, bandwidthIngress, 11*second)},
		}},
	}
}
