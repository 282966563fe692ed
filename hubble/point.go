// Package hubble serves the flows of a node by Hubble's API: it keeps the
// events of the datapath in a ring, and joins them with names when a client
// reads them.
package hubble

import (
	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/bpf"
)

// observationPoint is where the datapath saw a packet that it forwarded: a hook, and what it did with the packet.
func observationPoint(h bpf.DatapathHook, o bpf.DatapathOutcome) flowpb.TraceObservationPoint {
	switch o {
	case bpf.DatapathOutcomeFORWARD_POD:
		return flowpb.TraceObservationPoint_TO_ENDPOINT
	case bpf.DatapathOutcomeFORWARD_WIRE, bpf.DatapathOutcomeFORWARD_RESOLVE:
		return flowpb.TraceObservationPoint_TO_NETWORK
	case bpf.DatapathOutcomeFORWARD_TUNNEL:
		return flowpb.TraceObservationPoint_TO_OVERLAY
	case bpf.DatapathOutcomeFORWARD_ENCRYPT:
		return flowpb.TraceObservationPoint_TO_CRYPTO
	case bpf.DatapathOutcomeFORWARD_PROXY, bpf.DatapathOutcomeFORWARD_DNS_QUERY,
		bpf.DatapathOutcomeFORWARD_DNS_ANSWER:
		return flowpb.TraceObservationPoint_TO_PROXY
	case bpf.DatapathOutcomeFORWARD_STACK:
		return passedPoint(h)
	}
	return flowpb.TraceObservationPoint_UNKNOWN_POINT
}

// passedPoint is where a packet goes that a hook leaves to the stack: on egress hooks the stack is done with it.
func passedPoint(h bpf.DatapathHook) flowpb.TraceObservationPoint {
	switch h {
	case bpf.DatapathHookHOOK_TO_WIRE:
		return flowpb.TraceObservationPoint_TO_NETWORK
	case bpf.DatapathHookHOOK_TO_POD:
		return flowpb.TraceObservationPoint_TO_ENDPOINT
	}
	return flowpb.TraceObservationPoint_TO_STACK
}
