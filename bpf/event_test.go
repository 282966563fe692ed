package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"myelin/test/packet"
	"myelin/test/packet/packettest"
)

// eventReader reads the events of the ring buffer and of the map traces, those that there are.
type eventReader struct {
	ring   *ringbuf.Reader
	traces *Traces
	queue  []DatapathEvent
	dns    []DatapathDnsReport // of those in the queue that are EVENT_DNS, and of those before
}

// listen has the datapath send events, and returns their reader, which ends with the test.
func (w *world) listen(t testing.TB, to DatapathListen) *eventReader {
	t.Helper()
	must(t, w.Listening.Set(uint32(to)))
	ring, err := ringbuf.NewReader(w.Events)
	must(t, err)
	t.Cleanup(func() { ring.Close() })
	r := &eventReader{ring: ring}
	if w.settings.TraceSlots != 0 {
		r.traces, err = OpenTraces(w.Traces, w.DnsReports, w.settings.TraceSlots)
		must(t, err)
		t.Cleanup(func() { must(t, r.traces.Close()) })
	}
	return r
}

// nextEvent returns the next event of the ring buffer, and then of the map, or reports that there is none.
func nextEvent(t testing.TB, r *eventReader) (e DatapathEvent, ok bool) {
	t.Helper()
	if len(r.queue) == 0 {
		r.drain(t)
	}
	if len(r.queue) == 0 {
		return e, false
	}
	e, r.queue = r.queue[0], r.queue[1:]
	return e, true
}

func (r *eventReader) drain(t testing.TB) {
	t.Helper()
	must(t, r.ring.Flush())
	for {
		record, err := r.ring.Read()
		if errors.Is(err, ringbuf.ErrFlushed) {
			break
		}
		must(t, err)
		var e DatapathEvent
		must(t, binary.Read(bytes.NewReader(record.RawSample), binary.NativeEndian, &e))
		r.queue = append(r.queue, e)
	}
	if r.traces == nil {
		return
	}
	missed := r.traces.Read(math.MaxUint64, func(e *DatapathEvent, dns *DatapathDnsReport) {
		r.queue = append(r.queue, *e)
		if e.Type == uint8(DatapathEventTypeEVENT_DNS) {
			r.dns = append(r.dns, *dns)
		}
	})
	if missed > 0 {
		t.Errorf("%d events are overwritten", missed)
	}
}

func TestEvents(t *testing.T) {
	w := newWorld(t, settingsOf(tracking, traced), onlyForwarding)
	r := w.listen(t, DatapathListenLISTEN_FLOWS)
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		defer w.enter(t)()
		w.forget(t)
		toB, toA := `eth a > gw | ip a > b | tcp 40000 > 80 `, `eth b > gwb | ip b > a | tcp 80 > 40000 `
		for _, step := range []struct {
			step
			kind, flags, outcome uint8
			slot                 uint16
			src, dst             string
			none                 bool
		}{
			{step: step{at: "from_pod linka", in: toB + "S", want: "FORWARD_POD"},
				kind: uint8(DatapathEventTypeEVENT_FLOW_BEGIN), flags: tcpSYN, slot: 2, src: "a", dst: "b"},
			{step: step{at: "from_pod linkb", in: toA + "SA", want: "FORWARD_POD"}, none: true},
			{step: step{at: "from_pod linka", in: toB + "FA", want: "FORWARD_POD"}, none: true},
			{step: step{at: "from_pod linkb", in: toA + "FA", want: "FORWARD_POD"},
				kind: uint8(DatapathEventTypeEVENT_FLOW_END), flags: tcpFIN | tcpACK, slot: 3, src: "b", dst: "a"},
			{step: step{at: "from_pod linka", in: toB + "A", want: "FORWARD_POD"}, none: true},
			{step: step{at: "from_pod linka", in: `eth a > gw | ip b > world | tcp 40000 > 80 R`,
				want: "DROP_SPOOFED_ADDRESS"}, kind: uint8(DatapathEventTypeEVENT_DROP), flags: tcpRST,
				outcome: uint8(DatapathOutcomeDROP_SPOOFED_ADDRESS), slot: 2, src: "b", dst: "world"},
		} {
			w.run(t, f, step.step)
			e, ok := nextEvent(t, r)
			if ok == step.none {
				t.Fatalf("%s: event %v, want %v", step.in, ok, !step.none)
			}
			if step.none {
				continue
			}
			n := worldNames()
			src, dst := families(n[step.src])[(f-4)/2], families(n[step.dst])[(f-4)/2]
			if e.Type != step.kind || e.Outcome != step.outcome || e.TcpFlags != step.flags || e.Slot != step.slot ||
				e.Family != uint8(f) ||
				e.Src.Netip() != src || e.Dst.Netip() != dst || e.Proto != 6 {
				t.Errorf("%s:\ngot  %+v\nwant type %d outcome %d flags %#x slot %d from %s to %s", step.in, e,
					step.kind, step.outcome, step.flags, step.slot, src, dst)
			}
		}
	})
}

// Events about drops and flows have the type of ICMP, and its code.
func TestEventsOfICMP(t *testing.T) {
	w := newWorld(t, settingsOf(tracking, traced), onlyForwarding)
	r := w.listen(t, DatapathListenLISTEN_FLOWS)
	packettest.Both(t, func(t *testing.T, f packet.Family) {
		defer w.enter(t)()
		w.forget(t)
		echo := map[packet.Family]uint8{packet.IPv4: 8, packet.IPv6: 128}[f]
		for _, s := range []step{
			{at: "from_pod linka", in: `eth a > gw | ip a > b | icmp echo id 7 seq 1`, want: "FORWARD_POD"},
			{at: "from_pod linka", in: `eth a > gw | ip b > world | icmp echo id 8 seq 1`,
				want: "DROP_SPOOFED_ADDRESS"},
		} {
			w.run(t, f, s)
			e, ok := nextEvent(t, r)
			spoofed := e.Type == uint8(DatapathEventTypeEVENT_DROP)
			if !ok || spoofed != (s.want != "FORWARD_POD") || !spoofed && (e.IcmpType != echo || e.IcmpCode != 0) {
				t.Errorf("%s: event %v %+v, want type %d", s.in, ok, e, echo)
			}
		}
	})
}

// A burst has a bound of its own, which the rate restores.
func TestEventBurst(t *testing.T) {
	const rate, burst, packets, pause = 10, 100, 300, 250 * time.Millisecond
	const slower = 10 // than real ones are seconds of a world
	w := newWorld(t, settingsOf(func(s *Settings) { s.EventRate, s.EventBurst = slower*rate, burst }), onlyForwarding)
	r := w.listen(t, 0)
	defer w.enter(t)()
	flood := func() (got int) {
		for range packets {
			w.run(t, packet.IPv4, step{at: "from_pod linka", in: `eth a > gw | ip a > none | udp 1 > 2`,
				want: "DROP_MARTIAN"})
		}
		for _, ok := nextEvent(t, r); ok; _, ok = nextEvent(t, r) {
			got++
		}
		return got
	}
	began := time.Now()
	if got, most := flood(), burst+int(rate*time.Since(began).Seconds())+1; got < burst || got > most {
		t.Errorf("%d events of a flood, want %d to %d", got, burst, most)
	}
	began = time.Now()
	time.Sleep(pause)
	if got, most := flood(), int(rate*time.Since(began).Seconds())+2; got < 2 || got > most {
		t.Errorf("%d events after a pause, want 2 to %d", got, most)
	}
}

// A flood of drops is counted to the last one, and told of only as often as was allowed.
func TestEventsAreLimited(t *testing.T) {
	const rate, packets = 20, 500
	w := newWorld(t, settingsOf(func(s *Settings) { s.EventRate = rate }), onlyForwarding)
	r := w.listen(t, 0)
	defer w.enter(t)()
	began := time.Now()
	for range packets {
		w.run(t, packet.IPv4, step{at: "from_pod linka", in: `eth a > gw | ip a > none | udp 1 > 2`,
			want: "DROP_MARTIAN"})
	}
	got := 0
	for {
		e, ok := nextEvent(t, r)
		if !ok {
			break
		}
		if e.Dst.Netip() != netip.IPv4Unspecified() {
			t.Errorf("event to %s", e.Dst.Netip())
		}
		got++
	}
	// Seconds are the kernel's, so one more than have passed can have begun.
	if most := rate * (2 + int(time.Since(began).Seconds())); got < rate || got > most {
		t.Errorf("%d events, want %d to %d", got, rate, most)
	}
	var cpus []DatapathCpu
	must(t, w.Cpus.Lookup(uint32(0), &cpus))
	lost := uint64(0)
	for _, c := range cpus {
		lost += c.DropBudget.Lost
	}
	if lost != packets-uint64(got) {
		t.Errorf("%d events are counted as lost, want %d", lost, packets-got)
	}
}
