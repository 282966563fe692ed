package relay

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	peerpb "github.com/cilium/cilium/api/v1/peer"
	relaypb "github.com/cilium/cilium/api/v1/relay"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// three nodes have 900 flows: flow i at start + i ms on node i mod 3, but node 2 nothing for a while.
func threeNodes(t *testing.T, start time.Time) (nodes []*testNode, order []string) {
	for i := range 3 {
		nodes = append(nodes, startNode(t, fmt.Sprint("n", i)))
	}
	for i := range 900 {
		on := i % 3
		if on == 2 && i > 100 && i < 800 {
			on = 0
		}
		order = append(order, fmt.Sprint("f", i))
		nodes[on].add(start.Add(time.Duration(i)*time.Millisecond), order[i])
	}
	return nodes, order
}

func TestHistoryIsMergedInOrder(t *testing.T) {
	start := time.Now().Add(-time.Minute)
	nodes, order := threeNodes(t, start)
	client, _, _ := startRelay(t, nodes...)
	at := func(i int) *timestamppb.Timestamp {
		return timestamppb.New(start.Add(time.Duration(i) * time.Millisecond))
	}
	for name, c := range map[string]struct {
		req  *observerpb.GetFlowsRequest
		want []string
	}{
		"all":         {&observerpb.GetFlowsRequest{}, order},
		"last":        {&observerpb.GetFlowsRequest{Number: 50}, order[850:]},
		"first":       {&observerpb.GetFlowsRequest{Number: 50, First: true}, order[:50]},
		"since":       {&observerpb.GetFlowsRequest{Since: at(300)}, order[300:]},
		"until":       {&observerpb.GetFlowsRequest{Until: at(299)}, order[:300]},
		"since, last": {&observerpb.GetFlowsRequest{Since: at(300), Number: 4}, order[896:]},
	} {
		stream, err := client.GetFlows(t.Context(), c.req)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := flows(t, stream, 1000, nil), append(slices.Clone(c.want), "EOF"); !slices.Equal(got, want) {
			t.Errorf("%s: %d flows, want %d; %v", name, len(got), len(want), got)
		}
	}
}

func TestFieldMaskKeepsWhatTheRelayNeeds(t *testing.T) {
	n := startNode(t, "n0")
	n.add(time.Now(), "a")
	client, _, _ := startRelay(t, n)
	stream, err := client.GetFlows(t.Context(), &observerpb.GetFlowsRequest{
		FieldMask: &fieldmaskpb.FieldMask{Paths: []string{"node_name"}}})
	if err != nil {
		t.Fatal(err)
	}
	for {
		res, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if f := res.GetFlow(); f != nil {
			if f.GetUuid() != "" || f.GetTime() != nil || f.GetNodeName() != "n0" {
				t.Errorf("the client gets %v", f)
			}
			break
		}
	}
	if got := n.asked[0].GetFieldMask().GetPaths(); !slices.Equal(got, []string{"node_name", "time", "uuid"}) {
		t.Errorf("the node is asked for %v", got)
	}
}

func TestFollowGoesOnAfterHistory(t *testing.T) {
	start := time.Now().Add(-time.Minute)
	nodes, order := threeNodes(t, start)
	client, _, _ := startRelay(t, nodes...)
	stream, err := client.GetFlows(t.Context(), &observerpb.GetFlowsRequest{Number: 10, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := flows(t, stream, 10, nil); !slices.Equal(got, order[890:]) {
		t.Errorf("history: %v", got)
	}
	now := time.Now()
	var want []string
	for i := range 240 { // fewer of each node than the relay sorts
		want = append(want, fmt.Sprint("g", i))
		nodes[i%3].add(now.Add(time.Duration(i)*time.Microsecond), want[i])
	}
	if got := flows(t, stream, 240, nil); !slices.Equal(got, want) {
		t.Errorf("followed: %v", got)
	}
}

// state describes a response that is no flow.
func state(res *observerpb.GetFlowsResponse) string {
	if l := res.GetLostEvents(); l != nil {
		return fmt.Sprintf("%s lost %s", res.GetNodeName(), l.GetSource())
	}
	return fmt.Sprintf("%s %s", strings.Join(res.GetNodeStatus().GetNodeNames(), ","),
		res.GetNodeStatus().GetStateChange())
}

func TestNodeDiesAndReturns(t *testing.T) {
	for name, restart := range map[string]bool{"cut off": false, "restarted": true} {
		t.Run(name, func(t *testing.T) {
			nodes := []*testNode{startNode(t, "n0"), startNode(t, "n1"), startNode(t, "n2")}
			client, _, _ := startRelay(t, nodes...)
			stream, err := client.GetFlows(t.Context(), &observerpb.GetFlowsRequest{Follow: true})
			if err != nil {
				t.Fatal(err)
			}
			var events []string
			note := func(res *observerpb.GetFlowsResponse) { events = append(events, state(res)) }
			until(t, "all are followed", func() bool {
				return followed(nodes[0]) && followed(nodes[1]) && followed(nodes[2])
			})
			now := time.Now()
			nodes[1].add(now, "a")
			nodes[1].add(now.Add(time.Millisecond), "b")
			nodes[0].add(now.Add(2*time.Millisecond), "c")
			got := flows(t, stream, 3, note)

			nodes[1].kill()
			if restart {
				nodes[1].forget()
			} else {
				nodes[1].add(time.Now(), "while cut off")
			}
			nodes[0].add(time.Now(), "d") // the others go on
			got = append(got, flows(t, stream, 1, note)...)
			nodes[1].start(t)
			if restart {
				nodes[1].add(time.Now(), "e")
			} else {
				nodes[1].mu.Lock()
				nodes[1].began = now.Add(-time.Hour) // the process has gone on
				nodes[1].mu.Unlock()
			}
			got = append(got, flows(t, stream, 1, note)...)
			nodes[1].add(time.Now(), "f")
			got = append(got, flows(t, stream, 1, note)...)

			want := []string{"a", "b", "c", "d", "while cut off", "f"}
			wantEvents := []string{"n0,n1,n2 NODE_CONNECTED", "n1 NODE_UNAVAILABLE", "n1 NODE_CONNECTED"}
			if restart {
				want[4] = "e"
				wantEvents = append(wantEvents, "n1 lost HUBBLE_RING_BUFFER")
			}
			if !slices.Equal(got, want) {
				t.Errorf("flows %v, want %v", got, want)
			}
			if !slices.Equal(events, wantEvents) {
				t.Errorf("events %q, want %q", events, wantEvents)
			}
		})
	}
}

// followed reports whether a request that follows has come to a node.
func followed(n *testNode) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.ContainsFunc(n.asked, func(r *observerpb.GetFlowsRequest) bool { return r.GetFollow() })
}

func TestOverwrittenRingIsAGap(t *testing.T) {
	n := startNode(t, "n0")
	client, _, _ := startRelay(t, n)
	stream, err := client.GetFlows(t.Context(), &observerpb.GetFlowsRequest{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "it is followed", func() bool { return followed(n) })
	first := time.Now()
	n.add(first, "a")
	flows(t, stream, 1, nil)
	n.kill()
	n.forget() // the ring has gone round
	later := time.Now()
	n.add(later, "z")
	n.start(t)
	n.mu.Lock()
	n.began = first.Add(-time.Hour)
	n.mu.Unlock()
	var lost []*observerpb.GetFlowsResponse
	got := flows(t, stream, 1, func(res *observerpb.GetFlowsResponse) {
		if res.GetLostEvents() != nil {
			lost = append(lost, res)
		}
	})
	if !slices.Equal(got, []string{"z"}) || len(lost) != 1 {
		t.Fatalf("flows %v, gaps %v", got, lost)
	}
	l := lost[0].GetLostEvents()
	if !l.GetFirst().AsTime().Equal(first.UTC()) || !l.GetLast().AsTime().Equal(later.UTC()) ||
		lost[0].GetNodeName() != "n0" {
		t.Errorf("the gap is %v", lost[0])
	}
}

func TestNodeDiesInItsHistory(t *testing.T) {
	nodes, _ := threeNodes(t, time.Now().Add(-time.Minute))
	client, _, _ := startRelay(t, nodes...)
	nodes[2].kill()
	stream, err := client.GetFlows(t.Context(), &observerpb.GetFlowsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	got := flows(t, stream, 1000, func(res *observerpb.GetFlowsResponse) { events = append(events, state(res)) })
	want := len(nodes[0].ring) + len(nodes[1].ring)
	if len(got) != want+1 || got[want] != "EOF" {
		t.Errorf("%d flows and %s, want %d and EOF", len(got)-1, got[len(got)-1], want)
	}
	if all := strings.Join(events, "; "); !strings.Contains(all, "n2 NODE_ERROR") &&
		!strings.Contains(all, "n2 NODE_UNAVAILABLE") {
		t.Errorf("events: %s", all)
	}
}

func TestNodesComeAndGo(t *testing.T) {
	a, b := startNode(t, "a"), startNode(t, "b")
	client, _, peers := startRelay(t, a)
	stream, err := client.GetFlows(t.Context(), &observerpb.GetFlowsRequest{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	note := func(res *observerpb.GetFlowsResponse) { events = append(events, state(res)) }
	until(t, "a is followed", func() bool { return followed(a) })
	peers.send <- notification(b, peerpb.ChangeNotificationType_PEER_ADDED)
	until(t, "b is followed", func() bool { return followed(b) })
	b.add(time.Now(), "of b")
	if got := flows(t, stream, 1, note); got[0] != "of b" {
		t.Fatalf("got %v", got)
	}
	peers.send <- notification(b, peerpb.ChangeNotificationType_PEER_DELETED)
	for len(events) < 3 {
		res, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		note(res)
	}
	want := []string{"a NODE_CONNECTED", "b NODE_CONNECTED", "b NODE_GONE"}
	if !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
}

func TestNodesAndStatus(t *testing.T) {
	nodes, _ := threeNodes(t, time.Now())
	client, r, _ := startRelay(t, nodes...)
	nodes[1].kill()
	until(t, "n1 is unavailable", func() bool { return !r.pool.get("n1").available() })
	s, err := client.ServerStatus(t.Context(), &observerpb.ServerStatusRequest{})
	if err != nil || s.GetMaxFlows() != 2*4095 || s.GetSeenFlows() != 14 || s.GetFlowsRate() != 1 ||
		s.GetNumConnectedNodes().GetValue() != 2 || s.GetNumUnavailableNodes().GetValue() != 1 ||
		!slices.Equal(s.GetUnavailableNodes(), []string{"n1"}) {
		t.Errorf("status %v, %v", s, err)
	}
	list, err := client.GetNodes(t.Context(), &observerpb.GetNodesRequest{})
	if err != nil || len(list.GetNodes()) != 3 {
		t.Fatalf("nodes %v, %v", list, err)
	}
	for i, want := range []relaypb.NodeState{relaypb.NodeState_NODE_CONNECTED, relaypb.NodeState_NODE_UNAVAILABLE,
		relaypb.NodeState_NODE_CONNECTED} {
		if n := list.GetNodes()[i]; n.GetState() != want || n.GetAddress() != nodes[i].address {
			t.Errorf("node %v, want %s", n, want)
		}
	}
	ns, err := client.GetNamespaces(t.Context(), &observerpb.GetNamespacesRequest{})
	if err != nil || len(ns.GetNamespaces()) != 3 || ns.GetNamespaces()[2].GetNamespace() != "shared" {
		t.Errorf("namespaces %v, %v", ns, err)
	}
	events, err := client.GetAgentEvents(t.Context(), &observerpb.GetAgentEventsRequest{})
	if err == nil {
		_, err = events.Recv()
	}
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("agent events: %v", err)
	}
}

func TestPushWaitsForRoom(t *testing.T) {
	m := newMerger(2, time.Hour, false, time.Now)
	m.start("a")
	m.start("b")
	res := &observerpb.GetFlowsResponse{}
	for range 2 {
		if err := m.push(t.Context(), "a", time.Now(), res); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := m.push(ctx, "a", time.Now(), res); err == nil {
		t.Error("a third response is kept where two may be")
	}
	if _, err := m.next(ctx); err == nil {
		t.Error("a response leaves before the other source has sent one")
	}
	m.end("b")
	if _, err := m.next(t.Context()); err != nil {
		t.Error(err)
	}
	if err := m.push(t.Context(), "a", time.Now(), res); err != nil {
		t.Error(err)
	}
}
