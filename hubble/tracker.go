package hubble

import (
	"net/netip"
	"time"

	"myelin/bpf"
	"myelin/event"
)

// way is the direction of a packet in its flow.
type way uint8

const (
	unknownWay way = iota
	request        // as the flow was opened
	reply
)

// Types of ICMP echo, RFC 792 and RFC 4443.
const (
	echoRequest4 = 8
	echoReply4   = 0
	echoRequest6 = 128
	echoReply6   = 129
)

// maxTracked bounds the flows that a tracker remembers: at least half as many are.
const maxTracked = 8192

// tuple is a flow as it was opened.
type tuple struct {
	from, to netip.AddrPort
	proto    uint8
}

func (t tuple) back() tuple { return tuple{t.to, t.from, t.proto} }

// tracker finds out which packets are replies, where the datapath doesn't say so. It sees the events of a ring in their
// order. Each reader has its own: what is not read costs nothing.
type tracker struct {
	// interval is how often the datapath reports a flow that goes on.
	interval time.Duration

	recent, older map[tuple]struct{} // two generations
	// since is when the last events were lost, or the first one was seen: nanoseconds of CLOCK_MONOTONIC; 0: not yet.
	since uint64
}

func newTracker(interval time.Duration) *tracker {
	return &tracker{interval: interval, recent: map[tuple]struct{}{}}
}

// lost says that events are missing before the one at a time.
func (t *tracker) lost(at uint64) { t.since = at }

// see returns the direction of the packet of an event, and whether it is the first one of its flow.
func (t *tracker) see(r *event.Raw, v *view) (w way, first bool) {
	if t.since == 0 {
		t.since = r.TimeNs
	}
	flow := tuple{v.src, v.dst, r.Proto}
	w, first = t.told(r, flow)
	if first && w == request {
		t.remember(flow)
	}
	return w, first
}

func (t *tracker) told(r *event.Raw, flow tuple) (w way, first bool) {
	syn := r.Proto == protoTCP && r.TcpFlags&tcpSYN != 0
	begins := bpf.DatapathEventType(r.Type) == bpf.DatapathEventTypeEVENT_FLOW_BEGIN
	switch {
	case syn && r.TcpFlags&tcpACK != 0:
		return reply, false
	case syn, begins:
		return request, true
	case r.Flags&uint16(bpf.DatapathEventFlagEVENT_REQUEST) != 0:
		return request, !t.knows(flow)
	case r.Flags&uint16(bpf.DatapathEventFlagEVENT_REPLY) != 0, t.knows(flow.back()):
		return reply, false
	case t.knows(flow):
		return request, false
	case r.Proto == protoICMP, r.Proto == protoICMPv6:
		return icmpWay(r), false
	case t.opens(r):
		return request, true
	}
	return unknownWay, false
}

// opens reports whether a packet of no known flow must be the first one: an older flow would have been reported in the
// last interval, of which all events were seen.
func (t *tracker) opens(r *event.Raw) bool {
	trace := bpf.DatapathEventType(r.Type) == bpf.DatapathEventTypeEVENT_TRACE
	return trace && (r.Proto == protoUDP || r.Proto == protoSCTP) && r.TimeNs-t.since > uint64(t.interval) &&
		r.TimeNs > t.since
}

func (t *tracker) knows(flow tuple) bool {
	_, ok := t.recent[flow]
	if !ok {
		_, ok = t.older[flow]
	}
	return ok
}

func (t *tracker) remember(flow tuple) {
	if len(t.recent) >= maxTracked/2 {
		t.older, t.recent = t.recent, map[tuple]struct{}{}
	}
	delete(t.recent, flow.back()) // the ports are used anew, in the other direction
	delete(t.older, flow.back())
	t.recent[flow] = struct{}{}
}

// icmpWay is the direction that an echo has by its type.
func icmpWay(r *event.Raw) way {
	switch {
	case r.Proto == protoICMP && r.IcmpType == echoRequest4, r.Proto == protoICMPv6 && r.IcmpType == echoRequest6:
		return request
	case r.Proto == protoICMP && r.IcmpType == echoReply4, r.Proto == protoICMPv6 && r.IcmpType == echoReply6:
		return reply
	}
	return unknownWay
}
