package bpf

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"myelin/packet"
	"myelin/packet/packettest"
)

// nextEvent reads one event, or reports that there is none.
func nextEvent(t testing.TB, r *ringbuf.Reader) (e DatapathEvent, ok bool) {
	t.Helper()
	r.SetDeadline(time.Now().Add(50 * time.Millisecond))
	record, err := r.Read()
	if err != nil {
		return e, false
	}
	must(t, binary.Read(bytes.NewReader(record.RawSample), binary.NativeEndian, &e))
	return e, true
}

func TestEvents(t *testing.T) {
	w := newWorld(t, settingsOf(tracking, func(s *Settings) { s.Monitor, s.EventRate = 1, 1000 }), onlyForwarding)
	must(t, w.Listening.Set(uint32(1)))
	r, err := ringbuf.NewReader(w.Events)
	must(t, err)
	defer r.Close()
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

// A flood of drops is counted to the last one, and told of only as often as was allowed.
func TestEventsAreLimited(t *testing.T) {
	const rate, packets = 20, 500
	w := newWorld(t, settingsOf(func(s *Settings) { s.EventRate = rate }), onlyForwarding)
	r, err := ringbuf.NewReader(w.Events)
	must(t, err)
	defer r.Close()
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
		lost += c.Budget.Lost
	}
	if lost != packets-uint64(got) {
		t.Errorf("%d events are counted as lost, want %d", lost, packets-got)
	}
}
