package top_test

import (
	"math"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"myelin/hubble/eventtype"
	"myelin/hubble/top"
)

// packet is one of a UDP flow from a pod to another one, at a node.
func packet(node string, edit func(*flowpb.Flow)) *observerpb.GetFlowsResponse {
	f := &flowpb.Flow{NodeName: node, Verdict: flowpb.Verdict_FORWARDED, IsReply: wrapperspb.Bool(false),
		IP: &flowpb.IP{Source: "10.0.1.2", Destination: "10.0.2.2"}, L4: &flowpb.Layer4{Protocol: &flowpb.Layer4_UDP{
			UDP: &flowpb.UDP{SourcePort: 40000, DestinationPort: 53}}},
		Source:             &flowpb.Endpoint{Namespace: "demo", PodName: "a"},
		Destination:        &flowpb.Endpoint{Namespace: "demo", PodName: "b"},
		DestinationService: &flowpb.Service{Namespace: "demo", Name: "dns"},
		EventType:          &flowpb.CiliumEventType{Type: eventtype.Trace}, TraceReason: flowpb.TraceReason_NEW}
	if edit != nil {
		edit(f)
	}
	return &observerpb.GetFlowsResponse{ResponseTypes: &observerpb.GetFlowsResponse_Flow{Flow: f}}
}

func counted(t *testing.T, packets, bytes float64) func(*flowpb.Flow) {
	a, err := anypb.New(&structpb.Struct{Fields: map[string]*structpb.Value{
		"packets": structpb.NewNumberValue(packets), "bytes": structpb.NewNumberValue(bytes)}})
	if err != nil {
		t.Fatal(err)
	}
	return func(f *flowpb.Flow) { f.Extensions, f.TraceReason = a, flowpb.TraceReason_ESTABLISHED }
}

func reply(f *flowpb.Flow) {
	f.IsReply, f.TraceReason = wrapperspb.Bool(true), flowpb.TraceReason_REPLY
	f.Source, f.Destination = f.Destination, f.Source
	f.SourceService, f.DestinationService = f.DestinationService, nil
	f.L4.GetUDP().SourcePort, f.L4.GetUDP().DestinationPort = 53, 40000
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// TestView: packets that two nodes report count once, replies count for their conversation, and drops have a rule.
func TestView(t *testing.T) {
	begin := time.Unix(1700000000, 0)
	c := top.New(10*time.Second, begin)
	for _, node := range []string{"node1", "node2"} {
		c.Add(packet(node, nil))
		c.Add(packet(node, counted(t, 9, 900)))
		c.Add(packet(node, reply))
	}
	c.Add(packet("node1", func(f *flowpb.Flow) { f.L4.GetUDP().DestinationPort, f.DestinationService = 54, nil }))
	denied := func(f *flowpb.Flow) {
		f.L4.GetUDP().DestinationPort, f.Verdict, f.DestinationService = 55, flowpb.Verdict_DROPPED, nil
		f.TraceReason, f.TrafficDirection = 0, flowpb.TrafficDirection_INGRESS
		f.DropReasonDesc = flowpb.DropReason_POLICY_DENIED
		f.Extensions, _ = anypb.New(&structpb.Struct{Fields: map[string]*structpb.Value{
			"reason": structpb.NewStringValue("policy no rule"),
			"policy": structpb.NewStringValue("NetworkPolicy demo/b")}})
	}
	c.Add(packet("node2", denied))
	c.Add(packet("node2", denied))
	c.Add(&observerpb.GetFlowsResponse{ResponseTypes: &observerpb.GetFlowsResponse_LostEvents{
		LostEvents: &flowpb.LostEvent{NumEventsLost: 4}}})
	v := c.View(begin.Add(2*time.Second), top.ByPackets, 0)
	if len(v.Flows) != 3 || len(v.Services) != 1 || len(v.Drops) != 1 || v.Lost != 4 || v.Events != 9 {
		t.Fatalf("%+v", v)
	}
	first := v.Flows[0]
	want := top.Pair{Source: "demo/a", Destination: "demo/b", Port: 53, Protocol: "UDP"}
	if first.Pair != want || !near(first.Packets, 11./2) || first.Bytes == nil || !near(*first.Bytes, 450) ||
		!near(first.NewFlows, 0.5) {
		t.Errorf("the busiest: %+v", first)
	}
	if s := v.Services[0]; s.Name != "demo/dns" || !near(s.Packets, 11./2) {
		t.Errorf("the Service: %+v", s)
	}
	d := v.Drops[0]
	if d.Packets != 2 || d.Reason != "policy no rule" || d.Rule != "NetworkPolicy demo/b" || d.Direction != "ingress" {
		t.Errorf("the drop: %+v", d)
	}
	if by := c.View(begin.Add(3*time.Second), top.ByDrops, 1); len(by.Flows) != 1 || by.Flows[0].Port != 55 {
		t.Errorf("by drops: %+v", by.Flows)
	}
}

// TestWindow: what is older than the window is left out.
func TestWindow(t *testing.T) {
	begin := time.Unix(1700000000, 0)
	c := top.New(3*time.Second, begin)
	c.Add(packet("node1", nil))
	for i, want := range []int{1, 1, 1, 0} {
		if v := c.View(begin.Add(time.Duration(i+1)*time.Second), top.ByPackets, 0); len(v.Flows) != want {
			t.Errorf("after %ds: %d flows, want %d", i+1, len(v.Flows), want)
		}
	}
}
