// Package consumer is the type of what takes all flows of a node: metrics and
// exporters.
package consumer

import (
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/hubble/eventtype"
)

// Consumer takes flows. Both methods are called by one goroutine, which follows
// the ring: they must not block. The messages are shared with others: a consumer
// may keep them, and must not change them.
type Consumer interface {
	// Consume takes a flow, in the order of the ring.
	Consume(*flowpb.Flow)
	// Lost takes how many events were lost between two flows, and where.
	Lost(*flowpb.LostEvent)
}

// Filter reports whether a flow is selected.
type Filter func(*flowpb.Flow) bool

// Compile makes a filter of two lists: a flow is selected if a filter of allow
// selects it, or there is none, and none of deny does. Nil selects all flows. The
// error names the field at fault.
type Compile func(allow, deny []*flowpb.FlowFilter) (Filter, error)

// Protocol is the name that Hubble's metrics have for a flow's protocol.
func Protocol(f *flowpb.Flow) string {
	switch f.GetEventType().GetType() {
	case eventtype.AccessLog:
		if name := L7(f); name != "" {
			return name
		}
		return "Unknown L7"
	case eventtype.Drop, eventtype.Trace, eventtype.PolicyVerdict, eventtype.Capture:
		if name := L4(f); name != "" {
			return name
		}
		return "Unknown L4"
	}
	return "Unknown flow"
}

// L7 is "DNS", "HTTP" or "Kafka", or empty for a flow without these.
func L7(f *flowpb.Flow) string {
	switch l7 := f.GetL7(); {
	case l7.GetDns() != nil:
		return "DNS"
	case l7.GetHttp() != nil:
		return "HTTP"
	case l7.GetKafka() != nil:
		return "Kafka"
	}
	return ""
}

// L4 is the name of a flow's layer 4 protocol, as in Flow.l4; empty for one without.
func L4(f *flowpb.Flow) string {
	switch f.GetL4().GetProtocol().(type) {
	case *flowpb.Layer4_TCP:
		return "TCP"
	case *flowpb.Layer4_UDP:
		return "UDP"
	case *flowpb.Layer4_ICMPv4:
		return "ICMPv4"
	case *flowpb.Layer4_ICMPv6:
		return "ICMPv6"
	case *flowpb.Layer4_SCTP:
		return "SCTP"
	case *flowpb.Layer4_VRRP:
		return "VRRP"
	case *flowpb.Layer4_IGMP:
		return "IGMP"
	}
	return ""
}

// Ports are a flow's ports at layer 4; false for a protocol without ports.
func Ports(f *flowpb.Flow) (source, destination uint32, ok bool) {
	switch l4 := f.GetL4().GetProtocol().(type) {
	case *flowpb.Layer4_TCP:
		return l4.TCP.GetSourcePort(), l4.TCP.GetDestinationPort(), true
	case *flowpb.Layer4_UDP:
		return l4.UDP.GetSourcePort(), l4.UDP.GetDestinationPort(), true
	case *flowpb.Layer4_SCTP:
		return l4.SCTP.GetSourcePort(), l4.SCTP.GetDestinationPort(), true
	}
	return 0, 0, false
}

// LostSource is the label of a source of lost events: "hubble_ring_buffer".
func LostSource(l *flowpb.LostEvent) string { return strings.ToLower(l.GetSource().String()) }
