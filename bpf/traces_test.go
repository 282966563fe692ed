package bpf

import (
	"slices"
	"testing"
	"unsafe"
)

// traceMemory is the memory of the map traces for some CPUs, written as the datapath does.
type traceMemory struct {
	*Traces

	slots []DatapathTraceSlot
}

func newTraceMemory(cpus, slots int) *traceMemory {
	m := &traceMemory{slots: make([]DatapathTraceSlot, cpus*(slots+1))}
	m.Traces = &Traces{slots: uint64(slots), cpus: make([]traceCPU, cpus)}
	for i := range m.cpus {
		m.cpus[i].base = &m.slots[i*(slots+1)]
	}
	return m
}

// write adds an event of a CPU at each time.
func (m *traceMemory) write(cpu int, times ...uint64) {
	head := m.cpus[cpu].base
	for _, at := range times {
		next := head.Seq + 1
		s := (*DatapathTraceSlot)(unsafe.Add(unsafe.Pointer(head), uintptr(1+(next-1)%m.Traces.slots)*traceSlotSize))
		s.Seq, s.Event.TimeNs = next, at
		head.Seq = next
	}
}

// read returns the times of the events until a time, and how many are missing.
func (m *traceMemory) read(until uint64) (times []uint64, missed uint64) {
	missed = m.Read(until, func(e *DatapathEvent, _ *DatapathDnsReport) { times = append(times, e.TimeNs) })
	return times, missed
}

func (m *traceMemory) expect(t *testing.T, until, missed uint64, want ...uint64) {
	t.Helper()
	if got, lost := m.read(until); !slices.Equal(got, want) || lost != missed {
		t.Errorf("until %d: %v, %d missed; want %v, %d", until, got, lost, want, missed)
	}
}

// TestTracesOfCPUs has several CPUs write: their events come in the order of time, each once.
func TestTracesOfCPUs(t *testing.T) {
	t.Parallel()
	m := newTraceMemory(3, 8)
	m.expect(t, 100, 0)
	m.write(0, 10, 13, 16)
	m.write(1, 11, 12, 20)
	m.expect(t, 15, 0, 10, 11, 12, 13)
	m.write(2, 14) // older than what is read ahead of the other CPUs
	m.write(0, 21)
	m.expect(t, 15, 0, 14)
	m.expect(t, 100, 0, 16, 20, 21)
	m.expect(t, 100, 0)
}

// TestTracesOverwritten has one CPU be faster than the reader. Nothing of the other one is lost, and each event of the
// first is read or counted.
func TestTracesOverwritten(t *testing.T) {
	t.Parallel()
	m := newTraceMemory(2, 8)
	m.write(1, 5, 50)
	for at := uint64(1); at <= 20; at++ {
		m.write(0, 2*at)
	}
	if got := m.Fill(); got != 22.0/8 {
		t.Errorf("%v of the slots are written", got)
	}
	// The slot after the newest event may be written at any time, so 7 of 8 can be read.
	m.expect(t, 39, 13, 5, 28, 30, 32, 34, 36, 38)
	m.write(0, 60)
	m.expect(t, 100, 0, 40, 50, 60)
	if got := m.Fill(); got != 0 {
		t.Errorf("%v of the slots are written, all of them read", got)
	}
}

// TestTracesWithDNS: an event of a DNS message comes with the report in its slot; without reports, it is counted.
func TestTracesWithDNS(t *testing.T) {
	t.Parallel()
	const slots = 8
	m := newTraceMemory(2, slots)
	reports := make([]DatapathDnsReport, 2*(slots+1))
	m.cpus[1].reports = &reports[slots+1]
	for at := range uint64(3) {
		m.write(1, at+1)
		m.slots[slots+2+at].Event.Type = uint8(DatapathEventTypeEVENT_DNS)
		reports[slots+2+at].Ttl = 10 + uint32(at)
	}
	var ttls []uint32
	missed := m.Read(100, func(_ *DatapathEvent, dns *DatapathDnsReport) { ttls = append(ttls, dns.Ttl) })
	if missed != 0 || !slices.Equal(ttls, []uint32{10, 11, 12}) {
		t.Errorf("TTLs %v, %d missed", ttls, missed)
	}
	m.write(0, 4, 5)
	m.slots[1].Event.Type = uint8(DatapathEventTypeEVENT_DNS)
	m.expect(t, 100, 1, 5)
}

// TestTracesCleared has the map be cleared, as on a restart with other sizes.
func TestTracesCleared(t *testing.T) {
	t.Parallel()
	m := newTraceMemory(2, 8)
	m.write(0, 1, 2, 3)
	m.write(1, 4, 5)
	m.expect(t, 100, 0, 1, 2, 3, 4, 5)
	clear(m.slots)
	if got := m.Fill(); got != 0 {
		t.Errorf("%v of the cleared slots are written", got)
	}
	m.write(0, 7)
	m.write(1, 6)
	m.expect(t, 100, 0, 6, 7)
}
