package ui

import (
	"fmt"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func flowResponse(f *flowpb.Flow) *observerpb.GetFlowsResponse {
	return &observerpb.GetFlowsResponse{NodeName: f.GetNodeName(),
		ResponseTypes: &observerpb.GetFlowsResponse_Flow{Flow: f}}
}

// A browser that reads nothing misses rows, and their number is reported to it; edges count all flows.
func TestSlowBrowser(t *testing.T) {
	c := newCollector("", time.Now().Add(-time.Hour))
	const all = 30_000
	for i := range all {
		verdict := flowpb.Verdict_FORWARDED
		if i == 5 {
			verdict = flowpb.Verdict_DROPPED
		}
		c.add(flowResponse(tcp("client", fmt.Sprintf("web%d", i%3), 80, verdict)))
	}
	if n := len(c.next.Rows); n > 2*maxRows {
		t.Errorf("%d rows wait, want %d at most", n, 2*maxRows)
	}
	b := c.take(time.Now())
	if len(b.Rows) > maxRows || uint64(len(b.Rows))+b.Skipped != all || b.Flows != all {
		t.Errorf("%d rows, %d skipped, %d flows; want %d in all", len(b.Rows), b.Skipped, b.Flows, all)
	}
	if last := b.Rows[len(b.Rows)-1].seq; last != all-1 {
		t.Errorf("the last row is %d, want the newest, %d", last, all-1)
	}
	var counted, dropped uint64
	for _, e := range b.Edges {
		counted += e.Flows
		dropped += e.Dropped
	}
	if len(b.Edges) != 3 || counted != all || dropped != 1 {
		t.Errorf("%d edges with %d flows, %d dropped", len(b.Edges), counted, dropped)
	}
	for seq, want := range map[uint64]bool{0: false, 5: true, all - maxKept - 1: false, all - maxKept: true,
		all - 1: true, all: false} {
		if _, ok := c.find(seq); ok != want {
			t.Errorf("flow %d kept: %v, want %v", seq, ok, want)
		}
	}
	if b = c.take(time.Now()); !b.empty() || len(b.Edges)+len(b.Rows) > 0 {
		t.Errorf("after all was taken: %+v", b)
	}
}

func TestEdgesAreBounded(t *testing.T) {
	c := newCollector("", time.Now())
	for i := range maxEdges + 10 {
		c.add(flowResponse(tcp("client", fmt.Sprintf("web%d", i), 80, flowpb.Verdict_FORWARDED)))
	}
	if b := c.take(time.Now()); len(b.Edges) != maxEdges || b.EdgesLeftOut != 10 {
		t.Errorf("%d edges, %d left out", len(b.Edges), b.EdgesLeftOut)
	}
}

// Losses of a node are summed up; each node and source is one line.
func TestLosses(t *testing.T) {
	c := newCollector("", time.Now())
	for i := range 6 {
		c.add(&observerpb.GetFlowsResponse{NodeName: fmt.Sprintf("n%d", i%2),
			ResponseTypes: &observerpb.GetFlowsResponse_LostEvents{LostEvents: &flowpb.LostEvent{NumEventsLost: 2,
				Source: flowpb.LostEventSource_HUBBLE_RING_BUFFER}}})
	}
	b := c.take(time.Now())
	if len(b.Lost) != 2 || b.Lost[0].Count != 6 || b.Lost[1].Count != 6 {
		t.Errorf("%+v", b.Lost)
	}
}

func TestEdges(t *testing.T) {
	request := tcp("client", "web", 8080, flowpb.Verdict_FORWARDED)
	reply := tcp("web", "client", 40000, flowpb.Verdict_FORWARDED)
	reply.L4.GetTCP().SourcePort = 8080
	known := tcp("web", "client", 40000, flowpb.Verdict_FORWARDED)
	known.L4.GetTCP().SourcePort, known.IsReply = 8080, wrapperspb.Bool(true)
	socket := tcp("client", "web", 8080, flowpb.Verdict_TRANSLATED)
	socket.L4.GetTCP().SourcePort, socket.DestinationService = 0, &flowpb.Service{Namespace: "demo", Name: "front"}
	world := tcp("client", "", 443, flowpb.Verdict_FORWARDED)
	world.Destination = &flowpb.Endpoint{Identity: 2, Labels: []string{"reserved:world-ipv6"}}
	world.IP.Destination = "2001:db8::1"
	multicast := tcp("client", "", 5353, flowpb.Verdict_DROPPED)
	multicast.Destination, multicast.IP.Destination = world.GetDestination(), "ff02::16"
	node := tcp("client", "", 443, flowpb.Verdict_FORWARDED)
	node.Destination = &flowpb.Endpoint{Labels: []string{"reserved:kube-apiserver", "reserved:remote-node"}}
	bare := &flowpb.Flow{Time: timestamppb.Now()}
	const client, web = "StatefulSet|demo|client", "StatefulSet|demo|web"
	for name, c := range map[string]struct {
		flow *flowpb.Flow
		want []edgeKey
	}{
		"request":  {request, []edgeKey{{client, web, "TCP", 8080}}},
		"reply":    {reply, []edgeKey{{client, web, "TCP", 8080}}},
		"is_reply": {known, []edgeKey{{client, web, "TCP", 8080}}},
		"Service": {socket, []edgeKey{{client, "Service|demo|front", "TCP", 0},
			{"Service|demo|front", web, "TCP", 8080}}},
		"world":     {world, []edgeKey{{client, "outside||world", "TCP", 443}}},
		"multicast": {multicast, []edgeKey{{client, "outside||multicast", "TCP", 5353}}},
		"node":      {node, []edgeKey{{client, "outside||kube-apiserver", "TCP", 443}}},
		"no IP":     {bare, nil},
	} {
		if got := edges(c.flow); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
