package hubble

import (
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/bpf"
	"myelin/event"
)

// lostEntry in the place of an event's type: events are missing. Cookie is how many, Outcome the source.
const lostEntry = 0xff

// Recorder writes those events into a ring that are flows to Hubble.
type Recorder struct {
	Ring *Ring
	// NoVerdicts leaves out verdicts of policies: drops are flows then, and what rules allowed or audited is none.
	NoVerdicts bool
}

// Record writes an event, unless it is no flow. It may be called concurrently, and keeps nothing of the event.
//
// A drop, a forwarded packet and a socket are flows. A drop by policies is two, as with Cilium: their verdict, and the
// drop. The beginning of a conntrack entry is one if policies have a
// verdict on it. Other beginnings and ends of entries, which the datapath reports to monitors, are packets that it has
// reported as forwarded.
func (r *Recorder) Record(e *event.Raw) {
	switch bpf.DatapathEventType(e.Type) {
	case bpf.DatapathEventTypeEVENT_TRACE, bpf.DatapathEventTypeEVENT_SOCKET, event.Report:
	case bpf.DatapathEventTypeEVENT_DROP:
		if e.Denied != 0 && !r.NoVerdicts {
			verdict := *e
			verdict.Type = uint8(bpf.DatapathEventTypeEVENT_FLOW_BEGIN)
			r.Ring.Write(&verdict)
		}
	case bpf.DatapathEventTypeEVENT_FLOW_BEGIN:
		if r.NoVerdicts || e.Rule == [2]uint32{} && e.Flags&uint16(bpf.DatapathEventFlagEVENT_AUDIT) == 0 {
			return
		}
	default:
		return
	}
	r.Ring.Write(e)
}

// Overwritten notes that the kernel's ring overwrote n events before they were read. before is a time of
// CLOCK_MONOTONIC.
func (r *Recorder) Overwritten(n uint64, before time.Duration) {
	r.Lost(flowpb.LostEventSource_HUBBLE_RING_BUFFER, n, before)
}

// Lost notes that n events are missing before what is written next. now is the time of CLOCK_MONOTONIC.
func (r *Recorder) Lost(source flowpb.LostEventSource, n uint64, now time.Duration) {
	r.Ring.notes.Add(1)
	r.Ring.Write(&event.Raw{Type: lostEntry, TimeNs: uint64(now), Cookie: n, Outcome: uint8(source)})
}
