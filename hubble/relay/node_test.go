package relay

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	peerpb "github.com/cilium/cilium/api/v1/peer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// testNode is a node's observer with a ring of flows, behind a real gRPC server that can be killed and started again.
type testNode struct {
	observerpb.UnimplementedObserverServer
	name string

	mu      sync.Mutex
	address string
	server  *grpc.Server
	began   time.Time
	ring    []*observerpb.GetFlowsResponse
	more    chan struct{} // closed, and made anew, with each flow
	asked   []*observerpb.GetFlowsRequest
}

func startNode(t *testing.T, name string) *testNode {
	n := &testNode{name: name, more: make(chan struct{})}
	n.start(t)
	t.Cleanup(n.kill)
	return n
}

func (n *testNode) start(t *testing.T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	address := n.address
	if address == "" {
		address = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	n.address, n.began, n.server = l.Addr().String(), time.Now(), grpc.NewServer()
	observerpb.RegisterObserverServer(n.server, n)
	go n.server.Serve(l)
}

// kill ends all connections. The ring stays, as with a node that is cut off.
func (n *testNode) kill() {
	n.mu.Lock()
	server := n.server
	n.mu.Unlock()
	server.Stop()
}

// forget empties the ring, as a restart does.
func (n *testNode) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ring = nil
}

func (n *testNode) add(at time.Time, uuid string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ring = append(n.ring, &observerpb.GetFlowsResponse{NodeName: n.name, Time: timestamppb.New(at),
		ResponseTypes: &observerpb.GetFlowsResponse_Flow{Flow: &flowpb.Flow{Time: timestamppb.New(at), Uuid: uuid,
			NodeName: n.name}}})
	close(n.more)
	n.more = make(chan struct{})
}

func (n *testNode) GetFlows(req *observerpb.GetFlowsRequest,
	stream grpc.ServerStreamingServer[observerpb.GetFlowsResponse]) error {
	n.mu.Lock()
	n.asked = append(n.asked, req)
	from, end := n.from(req), len(n.ring)
	n.mu.Unlock()
	for sent := uint64(0); ; {
		n.mu.Lock()
		todo, more := n.ring[min(from, len(n.ring)):], n.more
		if !req.GetFollow() {
			todo = n.ring[from:end]
		}
		n.mu.Unlock()
		for _, res := range todo {
			from++
			if u := req.GetUntil(); u != nil && res.GetTime().AsTime().After(u.AsTime()) {
				return nil
			}
			if err := stream.Send(res); err != nil {
				return err
			}
			if sent++; req.GetFirst() && sent == req.GetNumber() {
				return nil
			}
		}
		if !req.GetFollow() {
			return nil
		}
		select {
		case <-more:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// from is the index in the ring at which an answer begins, as Hubble's API has it.
func (n *testNode) from(req *observerpb.GetFlowsRequest) int {
	switch {
	case req.GetFirst():
		return 0
	case req.GetFollow() && req.GetNumber() == 0 && req.GetSince() == nil:
		return len(n.ring)
	}
	i := len(n.ring)
	for count := uint64(0); i > 0 && (req.GetNumber() == 0 || count < req.GetNumber()); count++ {
		if s := req.GetSince(); s != nil && n.ring[i-1].GetTime().AsTime().Before(s.AsTime()) {
			break
		}
		i--
	}
	return i
}

func (n *testNode) ServerStatus(context.Context,
	*observerpb.ServerStatusRequest) (*observerpb.ServerStatusResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return &observerpb.ServerStatusResponse{NumFlows: uint64(len(n.ring)), MaxFlows: 4095, SeenFlows: 7,
		FlowsRate: 0.5, Version: "node " + n.name, UptimeNs: uint64(time.Since(n.began))}, nil
}

func (n *testNode) GetNamespaces(context.Context,
	*observerpb.GetNamespacesRequest) (*observerpb.GetNamespacesResponse, error) {
	return &observerpb.GetNamespacesResponse{Namespaces: []*observerpb.Namespace{{Namespace: "shared"},
		{Namespace: "of-" + n.name}}}, nil
}

// testPeers is a peer service.
type testPeers struct {
	peerpb.UnimplementedPeerServer
	send chan *peerpb.ChangeNotification
	all  []*peerpb.ChangeNotification
}

func (p *testPeers) Notify(_ *peerpb.NotifyRequest,
	stream grpc.ServerStreamingServer[peerpb.ChangeNotification]) error {
	for _, n := range p.all {
		if err := stream.Send(n); err != nil {
			return err
		}
	}
	for {
		select {
		case n := <-p.send:
			if err := stream.Send(n); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func notification(n *testNode, kind peerpb.ChangeNotificationType) *peerpb.ChangeNotification {
	return &peerpb.ChangeNotification{Name: n.name, Address: n.address, Type: kind}
}

// startRelay returns a client of a relay for nodes, when all are connected.
func startRelay(t *testing.T, nodes ...*testNode) (observerpb.ObserverClient, *Relay, *testPeers) {
	peers := &testPeers{send: make(chan *peerpb.ChangeNotification)}
	for _, n := range nodes {
		peers.all = append(peers.all, notification(n, peerpb.ChangeNotificationType_PEER_ADDED))
	}
	peerServer := grpc.NewServer()
	peerpb.RegisterPeerServer(peerServer, peers)
	pl := listen(t)
	go peerServer.Serve(pl)
	t.Cleanup(peerServer.Stop)

	r, err := New(Options{PeerService: pl.Addr().String(), Name: "relay", Version: "test",
		Log: slog.New(slog.DiscardHandler), Drain: 500 * time.Millisecond, Retry: 50 * time.Millisecond,
		Settle: time.Second, Check: 4 * time.Second}) // its half is a deadline, which a busy machine must keep
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	client := observerpb.NewObserverClient(conn)
	until(t, fmt.Sprintf("%d nodes are connected", len(nodes)), func() bool {
		s, err := client.ServerStatus(t.Context(), &observerpb.ServerStatusRequest{})
		return err == nil && s.GetNumConnectedNodes().GetValue() == uint32(len(nodes))
	})
	return client, r, peers
}

func listen(t *testing.T) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

// flows receives until a number of flows came, or the end: uuids in their order. Other responses go to other.
func flows(t *testing.T, stream grpc.ServerStreamingClient[observerpb.GetFlowsResponse], number int,
	other func(*observerpb.GetFlowsResponse)) (uuids []string) {
	t.Helper()
	for len(uuids) < number {
		res, err := stream.Recv()
		if err != nil {
			return append(uuids, err.Error())
		}
		if f := res.GetFlow(); f != nil {
			uuids = append(uuids, f.GetUuid())
		} else if other != nil {
			other(res)
		}
	}
	return uuids
}
