package hubble

import (
	"testing"

	flowpb "github.com/cilium/cilium/api/v1/flow"

	"myelin/bpf"
)

func TestObservationPoint(t *testing.T) {
	for _, tt := range []struct {
		hook    bpf.DatapathHook
		outcome bpf.DatapathOutcome
		want    flowpb.TraceObservationPoint
	}{
		{bpf.DatapathHookHOOK_FROM_WIRE, bpf.DatapathOutcomeFORWARD_POD, flowpb.TraceObservationPoint_TO_ENDPOINT},
		{bpf.DatapathHookHOOK_FROM_POD, bpf.DatapathOutcomeFORWARD_WIRE, flowpb.TraceObservationPoint_TO_NETWORK},
		{bpf.DatapathHookHOOK_FROM_POD, bpf.DatapathOutcomeFORWARD_RESOLVE, flowpb.TraceObservationPoint_TO_NETWORK},
		{bpf.DatapathHookHOOK_FROM_POD, bpf.DatapathOutcomeFORWARD_TUNNEL, flowpb.TraceObservationPoint_TO_OVERLAY},
		{bpf.DatapathHookHOOK_FROM_POD, bpf.DatapathOutcomeFORWARD_STACK, flowpb.TraceObservationPoint_TO_STACK},
		{bpf.DatapathHookHOOK_FROM_WIRE, bpf.DatapathOutcomeFORWARD_STACK, flowpb.TraceObservationPoint_TO_STACK},
		{bpf.DatapathHookHOOK_TO_WIRE, bpf.DatapathOutcomeFORWARD_STACK, flowpb.TraceObservationPoint_TO_NETWORK},
		{bpf.DatapathHookHOOK_TO_POD, bpf.DatapathOutcomeFORWARD_STACK, flowpb.TraceObservationPoint_TO_ENDPOINT},
		{bpf.DatapathHookHOOK_FROM_POD, bpf.DatapathOutcomeFORWARD_PROXY, flowpb.TraceObservationPoint_TO_PROXY},
		{bpf.DatapathHookHOOK_FROM_WIRE, bpf.DatapathOutcomeFORWARD_PROXY, flowpb.TraceObservationPoint_TO_PROXY},
		{bpf.DatapathHookHOOK_FROM_PROXY, bpf.DatapathOutcomeFORWARD_POD, flowpb.TraceObservationPoint_TO_ENDPOINT},
		{bpf.DatapathHookHOOK_FROM_POD, bpf.DatapathOutcomeDROP_TTL, flowpb.TraceObservationPoint_UNKNOWN_POINT},
	} {
		if got := observationPoint(tt.hook, tt.outcome); got != tt.want {
			t.Errorf("%v at %v: %v, want %v", tt.outcome, tt.hook, got, tt.want)
		}
	}
}
