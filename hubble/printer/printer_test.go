package printer

import (
	"strings"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func responses() []*observerpb.GetFlowsResponse {
	at := timestamppb.New(time.Date(2026, 11, 23, 12, 0, 0, 5e6, time.Local))
	flow := func(f *flowpb.Flow) *observerpb.GetFlowsResponse {
		f.Time, f.NodeName = at, "n1"
		f.IP = &flowpb.IP{Source: "10.0.1.1", Destination: "10.0.2.2", IpVersion: flowpb.IPVersion_IPv4}
		f.Source = &flowpb.Endpoint{Identity: 1234, Namespace: "default", PodName: "client\x1b"}
		f.Destination = &flowpb.Endpoint{Identity: 2}
		f.L4 = &flowpb.Layer4{Protocol: &flowpb.Layer4_TCP{TCP: &flowpb.TCP{SourcePort: 4000, DestinationPort: 80,
			Flags: &flowpb.TCPFlags{SYN: true}}}}
		return &observerpb.GetFlowsResponse{ResponseTypes: &observerpb.GetFlowsResponse_Flow{Flow: f}}
	}
	return []*observerpb.GetFlowsResponse{
		flow(&flowpb.Flow{Verdict: flowpb.Verdict_DROPPED, DropReasonDesc: flowpb.DropReason_POLICY_DENIED,
			EventType: &flowpb.CiliumEventType{Type: 1, SubType: 133}}),
		flow(&flowpb.Flow{Verdict: flowpb.Verdict_FORWARDED, IsReply: wrapperspb.Bool(true),
			EventType: &flowpb.CiliumEventType{Type: 4}}),
		flow(&flowpb.Flow{Verdict: flowpb.Verdict_DROPPED, IsReply: wrapperspb.Bool(false), PolicyMatchType: 2,
			TrafficDirection: flowpb.TrafficDirection_EGRESS, EventType: &flowpb.CiliumEventType{Type: 5},
			EgressDeniedBy: []*flowpb.Policy{{Name: "p", Namespace: "default", Kind: "NetworkPolicy"}}}),
		{NodeName: "n1", Time: at, ResponseTypes: &observerpb.GetFlowsResponse_LostEvents{LostEvents: &flowpb.LostEvent{
			Source: flowpb.LostEventSource_HUBBLE_RING_BUFFER, NumEventsLost: 7, Cpu: wrapperspb.Int32(3)}}},
	}
}

const compactGolden = `Nov 23 12:00:00.005 [n1]: default/client?:4000 (ID:1234) <> 10.0.2.2:80 (world) ` +
	`Policy denied DROPPED (TCP Flags: SYN)
Nov 23 12:00:00.005 [n1]: 10.0.2.2:80 (world) <- default/client?:4000 (ID:1234) to-endpoint FORWARDED (TCP Flags: SYN)
Nov 23 12:00:00.005 [n1]: default/client?:4000 (ID:1234) -> 10.0.2.2:80 (world) policy-verdict:L3-L4 EGRESS ` +
	`DENIED BY default/p (NetworkPolicy) (TCP Flags: SYN)
Nov 23 12:00:00.005 [n1]: EVENTS LOST: HUBBLE_RING_BUFFER CPU(3) 7
`

const tableGolden = `TIMESTAMP             SOURCE               DESTINATION   TYPE            VERDICT   SUMMARY
Nov 23 12:00:00.005   10.0.1.1:4000        10.0.2.2:80   Policy denied   DROPPED   TCP Flags: SYN
Nov 23 12:00:00.005   HUBBLE_RING_BUFFER   -             EVENTS LOST     -         CPU(3) 7
`

const dictGolden = `  TIMESTAMP: Nov 23 12:00:00.005
     SOURCE: 10.0.1.1:4000
DESTINATION: 10.0.2.2:80
       TYPE: Policy denied
    VERDICT: DROPPED
    SUMMARY: TCP Flags: SYN
------------
  TIMESTAMP: Nov 23 12:00:00.005
     SOURCE: HUBBLE_RING_BUFFER
DESTINATION: -
       TYPE: EVENTS LOST
    VERDICT: -
    SUMMARY: CPU(3) 7
`

func TestForms(t *testing.T) {
	all := responses()
	few := []*observerpb.GetFlowsResponse{all[0], all[3]}
	for form, c := range map[string]struct {
		options Options
		of      []*observerpb.GetFlowsResponse
		want    string
	}{
		"compact": {Options{Names: true, NodeName: true, Policies: true}, all, compactGolden},
		"table":   {Options{}, few, tableGolden}, "tab": {Options{}, few, tableGolden},
		"dict": {Options{}, few, dictGolden},
	} {
		var out, errs strings.Builder
		c.options.Form, c.options.TimeLayout = form, time.StampMilli
		p := New(c.options, &out, &errs)
		for _, res := range c.of {
			if err := p.Print(res); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if out.String() != c.want {
			t.Errorf("%s:\n%swant\n%s", form, out.String(), c.want)
		}
	}
}

func TestJSONIsTheMessage(t *testing.T) {
	for _, form := range []string{JSON, JSONPB} {
		var out strings.Builder
		p := New(Options{Form: form}, &out, &out)
		if err := p.Print(responses()[0]); err != nil {
			t.Fatal(err)
		}
		got := &observerpb.GetFlowsResponse{}
		if err := protojson.Unmarshal([]byte(out.String()), got); err != nil ||
			got.GetFlow().GetSource().GetIdentity() != 1234 ||
			strings.Count(out.String(), "\n") != 1 {
			t.Errorf("%s: %q, %v", form, out.String(), err)
		}
	}
}

func TestReasons(t *testing.T) {
	for reason, want := range map[flowpb.DropReason]string{
		flowpb.DropReason_POLICY_DENY:               "Policy denied by denylist",
		flowpb.DropReason_CT_MISSING_TCP_ACK_FLAG:   "Fragmentation needed",
		flowpb.DropReason_SERVICE_BACKEND_NOT_FOUND: "Service backend not found",
		flowpb.DropReason_UNKNOWN_L3_TARGET_ADDRESS: "Unknown L3 target address",
		flowpb.DropReason_DROP_RATE_LIMITED:         "Rate limited",
		flowpb.DropReason_TTL_EXCEEDED:              "TTL exceeded",
		flowpb.DropReason_DROP_REASON_UNKNOWN:       "Unknown reason",
	} {
		if got := Reason(&flowpb.Flow{Verdict: flowpb.Verdict_DROPPED, DropReasonDesc: reason}); got != want {
			t.Errorf("%v: %q, want %q", reason, got, want)
		}
	}
	if got := Reason(&flowpb.Flow{Verdict: flowpb.Verdict_FORWARDED}); got != "" {
		t.Errorf("a forwarded flow: %q", got)
	}
}
