package bpf

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
)

// floodRoom is the number of NAT entries that there is room for.
const floodRoom = 4

func crowded(s *Settings) { s.NatEntryMax = floodRoom }

func crowd(spec *ebpf.CollectionSpec) {
	for _, name := range []string{"nat_entries", "nat_replies", "nat_ring"} {
		spec.Maps[name].MaxEntries = floodRoom
	}
}

func floodTables() []table {
	return []table{
		{name: "services, no room", settings: settingsOf(servicing, crowded), tweak: crowd, rows: crowdedRows()},
		{name: "services, flood", settings: settingsOf(servicing, direct, ipip, crowded), tweak: crowd,
			rows: append(statelessRows("from_wire eth0"), statelessRows(xdpAt)...)},
		{name: "services, flood, QUIC", settings: settingsOf(servicing, quic, direct, longTimes),
			rows: []row{xdp(floodQUICRow())}},
	}
}

// floodSYN begins a flow to pod b.
func floodSYN(port int, want string) step {
	return step{at: "from_wire eth0", want: want,
		in: fmt.Sprintf("eth router > node | ip world > lb ttl 60 | tcp %d > 80 S", port)}
}

// filled has flows in all entries, and each proven and idle for so many seconds.
func filled(proven bool, idle int, more ...step) []step {
	var steps []step
	for i := range floodRoom {
		steps = append(steps, floodSYN(40000+i, "FORWARD_POD"))
	}
	former := more[0].before
	more[0].before = func(t testing.TB, w *world) {
		if former != nil {
			former(t, w)
		}
		for k, r := range rowsIn[DatapathNatTuple, DatapathNatEntry](t, w.NatEntries) {
			if r.Seen -= uint32(idle) * w.settings.Hz; proven {
				r.Flags |= uint8(DatapathNatEntryFlagNAT_ENTRY_REPLIED)
				r.TcpFlags[0] |= 0x10
			}
			must(t, w.NatEntries.Put(k, r))
		}
	}
	return append(steps, more...)
}

// limited has the agent's limit of new flows per second, after which flows are counted anew.
func limited(rate uint32, s step) step {
	former := s.before
	s.before = func(t testing.TB, w *world) {
		if former != nil {
			former(t, w)
		}
		must(t, w.NewFlowRate.Set(rate))
	}
	return s
}

func crowdedRows() []row {
	another := floodSYN(41000, "FORWARD_POD")
	refused := floodSYN(41000, "DROP_MAP_FULL")
	full := withAfter(another, translationsAre(floodRoom))
	again := step{at: "from_pod linkb", in: `eth b > gwb | ip b > world ttl 64 | tcp 8080 > 40000 A`,
		want: "FORWARD_RESOLVE", out: `eth node > router | ip lb > world ttl 63 | tcp 80 > 40000 A`}
	return []row{
		{name: "a half-open flow makes room", steps: filled(false, 0, full)},
		{name: "flows in use stay", steps: filled(true, 50, refused, again)},
		{name: "an idle flow makes room", steps: filled(true, 70, full)},
		{name: "flows go on being evicted", steps: filled(false, 0, full, floodSYN(41001, "FORWARD_POD"),
			floodSYN(41002, "FORWARD_POD"), withAfter(floodSYN(41003, "FORWARD_POD"), translationsAre(floodRoom)))},
		{name: "a Service with its share of new flows", steps: append(filled(false, 0,
			limited(2, floodSYN(41000, "DROP_NEW_FLOW_RATE"))),
			step{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | tcp 40000 > 83 S`,
				want: "FORWARD_RESOLVE", after: unlimited})},
	}
}

func unlimited(t testing.TB, w *world) { must(t, w.NewFlowRate.Set(uint32(0))) }

// statelessRows are about flows by DSR to node2, for which the Service has a Maglev table or not.
func statelessRows(at string) []row {
	first := step{at: "from_wire eth0", in: `eth router > node | ip world > lb ttl 60 | udp 39999 > 81`}
	known := first
	first.want, known.want = "FORWARD_RESOLVE", "FORWARD_WIRE"
	known.before = consistent
	packet := func(port, entries int, stateless uint64) step {
		return step{at: at, in: fmt.Sprintf("eth router > node | ip world > lb ttl 60 | tcp %d > 81 S", port),
			want: "FORWARD_WIRE", after: func(t testing.TB, w *world) {
				t.Helper()
				translationsAre(entries)(t, w)
				if got := w.stateless(t); got != stateless {
					t.Errorf("%d packets without an entry, want %d", got, stateless)
				}
			}}
	}
	segment := packet(41000, 2, 2)
	segment.in = `eth router > node | ip world > lb ttl 60 | tcp 41000 > 81 A | "data"`
	rows := []row{
		{name: "above the rate, at " + at, steps: []step{first, known, packet(40000, 2, 0),
			limited(2, packet(41000, 2, 1)), segment, {at: at, in: known.in, want: "FORWARD_WIRE", after: unlimited}}},
		{name: "no room, at " + at, steps: []step{first, known, packet(40000, 2, 0), packet(40001, 3, 0),
			packet(40002, 4, 0), provenAll(packet(40003, 4, 1)), packet(40003, 4, 2)}},
	}
	if at == xdpAt {
		for i := range rows {
			rows[i] = xdp(rows[i])
		}
	}
	return rows
}

// floodQUICRow: a flow whose connection ID selected its backend has an entry, above the rate too.
func floodQUICRow() row {
	first := wayToC()[0]
	above := limited(1, step{at: xdpAt, in: asks(40000, short(serverC)), want: "FORWARD_QUIC FORWARD_WIRE",
		after: translationsAre(2)})
	consistently := above.before
	above.before = func(t testing.TB, w *world) { consistent(t, w); consistently(t, w) }
	return row{name: "a connection ID selects, above the rate", steps: []step{first, above,
		{at: "from_wire eth0", in: asks(40001, short(serverC)), want: "FORWARD_QUIC FORWARD_WIRE",
			after: func(t testing.TB, w *world) { translationsAre(3)(t, w); unlimited(t, w) }}}}
}

// provenAll makes all flows ones in use before the step.
func provenAll(s step) step {
	s.before = func(t testing.TB, w *world) {
		for k, r := range rowsIn[DatapathNatTuple, DatapathNatEntry](t, w.NatEntries) {
			r.TcpFlags[0] |= 0x10
			r.Packets[0] = 2
			must(t, w.NatEntries.Put(k, r))
		}
	}
	return s
}

// consistent gives the Services at lb Maglev tables, as far as flags tell.
func consistent(t testing.TB, w *world) {
	t.Helper()
	for k, f := range rowsIn[DatapathFrontendKey, DatapathFrontend](t, w.Frontends) {
		f.Flags |= uint32(DatapathFrontendFlagFRONTEND_MAGLEV)
		must(t, w.Frontends.Put(k, f))
	}
}

// stateless is the number of packets that were forwarded without an entry.
func (w *world) stateless(t testing.TB) (n uint64) {
	t.Helper()
	var cpus []DatapathCpu
	must(t, w.Cpus.Lookup(uint32(0), &cpus))
	for i := range cpus {
		n += cpus[i].Stateless
	}
	return n
}

// resetFlood forgets the rate of new flows and what was forwarded without an entry.
func (w *world) resetFlood(t testing.TB) {
	t.Helper()
	var cpus []DatapathCpu
	must(t, w.Cpus.Lookup(uint32(0), &cpus))
	for i := range cpus {
		cpus[i].Stateless = 0
	}
	must(t, w.Cpus.Put(uint32(0), cpus))
	for cell := range w.FlowRates.MaxEntries() {
		must(t, w.FlowRates.Put(cell, make([]DatapathFlowRate, len(cpus))))
	}
	must(t, w.NewFlowRate.Set(uint32(0)))
}
