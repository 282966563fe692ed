package hubble

import (
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/types/known/timestamppb"

	"myelin/event"
	"myelin/hubble/filter"
)

// pollEvery is the number of events after which a reader polls the source. Converting takes far longer than recording,
// and a goroutine that only records may not get a CPU before events are overwritten.
const pollEvery = 64

// reader converts the events of a ring in their order, those that pass its filters.
type reader struct {
	ring    *Ring
	source  Source
	convert *Converter
	tracker *tracker
	match   filter.Match // nil: all
	since   time.Time    // zero: all
	until   time.Time    // zero: all

	// shared has what other readers have converted; nil: this reader does not follow.
	shared *shared

	pos uint64 // of the next event
	// missed is how many events were overwritten before they were read, and not reported yet.
	missed              uint64
	missFirst, missLast time.Time
	raw                 event.Raw
}

// item is a flow, or a report of lost events.
type item struct {
	flow *flowpb.Flow
	lost *flowpb.LostEvent
	time time.Time
	// conversion is what other readers have of the flow, too; nil: nothing.
	conversion *conversion
}

// step reads the event at pos. It reports false if there is none yet.
func (r *reader) step(now func() time.Time) bool {
	for r.pos < r.ring.Next() {
		if r.ring.Read(r.pos, &r.raw) {
			r.pos++
			if r.pos%pollEvery == 0 {
				r.source.Poll()
			}
			return true
		}
		oldest := max(r.ring.Oldest(), r.pos+1)
		if r.missed == 0 {
			r.missFirst = now()
		}
		r.missLast = now()
		r.missed += oldest - r.pos
		r.ring.overtaken.Add(oldest - r.pos)
		r.pos = oldest
		r.tracker.lost(0) // the next event begins a time without losses
	}
	return false
}

// skip reads an event only to learn which flows there are.
func (r *reader) skip() {
	if r.raw.Type == lostEntry {
		r.tracker.lost(r.raw.TimeNs)
		return
	}
	if r.raw.Type == l7Entry || r.raw.Type == event.Report {
		return
	}
	v := viewOf(&r.raw)
	r.tracker.see(&r.raw, &v)
}

// take converts the event that step has read. ok is false for one that is filtered out, over for the first one after
// until.
func (r *reader) take() (it item, ok, over bool) {
	at := r.convert.time(&r.raw)
	if r.raw.Type == lostEntry {
		r.tracker.lost(r.raw.TimeNs)
		return item{lost: r.convert.lost(&r.raw), time: at}, true, false
	}
	if !r.until.IsZero() && at.After(r.until) {
		return item{}, false, true
	}
	v := viewOf(&r.raw)
	var w way
	var first bool
	switch r.raw.Type {
	case l7Entry:
		w = l7Way(&r.raw)
	case event.Report:
		w = reportWay(&r.raw)
	default:
		w, first = r.tracker.see(&r.raw, &v)
	}
	if at.Before(r.since) {
		return item{}, false, false
	}
	it = item{time: at}
	if r.shared == nil {
		it.flow = r.convert.flow(&r.raw, &v, w, first)
	} else {
		it.conversion = r.shared.flow(r.pos-1, w, first, func() *flowpb.Flow {
			return r.convert.flow(&r.raw, &v, w, first)
		})
		it.flow = it.conversion.flow
	}
	if r.match != nil && !r.match(it.flow) {
		return item{}, false, false
	}
	return it, true, false
}

// overwritten reports the events that the reader has missed, nil if there are none.
func (r *reader) overwritten() *flowpb.LostEvent {
	if r.missed == 0 {
		return nil
	}
	n := r.missed
	r.missed = 0
	return &flowpb.LostEvent{
		Source: flowpb.LostEventSource_HUBBLE_RING_BUFFER, NumEventsLost: n,
		First: timestamppb.New(r.missFirst), Last: timestamppb.New(r.missLast),
	}
}

// lost converts an entry of lost events.
func (c *Converter) lost(r *event.Raw) *flowpb.LostEvent {
	at := timestamppb.New(c.time(r))
	return &flowpb.LostEvent{
		Source: flowpb.LostEventSource(r.Outcome), NumEventsLost: r.Cookie, First: at, Last: at,
	}
}
