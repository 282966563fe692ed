package hubble

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	peerpb "github.com/cilium/cilium/api/v1/peer"
	"github.com/cilium/statedb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"myelin/api"
	"myelin/bpf"
	"myelin/cluster"
)

// served is a server with its clients.
type served struct {
	t     testing.TB
	rec   *Recorder
	obs   *Observer
	agent *AgentEvents
	db    *statedb.DB
	nodes statedb.RWTable[*cluster.Node]
	conn  *grpc.ClientConn
}

func serve(t testing.TB, capacity int) *served {
	t.Helper()
	s := &served{t: t, rec: &Recorder{Ring: newRing(t, capacity)}, agent: NewAgentEvents(), db: statedb.New()}
	tables, err := cluster.NewTables(s.db)
	if err != nil {
		t.Fatal(err)
	}
	s.nodes = tables.Nodes
	o := &Observer{
		Source: written{},
		Ring:   s.rec.Ring, Converter: newConverter(), Agent: s.agent, Interval: 5 * time.Second, Now: time.Now,
		Self: func() *observerpb.Node { return &observerpb.Node{Name: "default/node1"} },
	}
	o.Begin()
	s.obs = o
	server := &Server{
		Log: slog.New(slog.DiscardHandler), Observer: o, Socket: filepath.Join(t.TempDir(), "hubble.sock"),
		Peers: &Peers{DB: s.db, Nodes: s.nodes, Cluster: "default", Port: 4244, TLS: true},
	}
	server.Start()
	t.Cleanup(server.Stop)
	for _, l := range server.Listeners() {
		if l.Err != nil {
			t.Fatal(l.Err)
		}
	}
	if s.conn, err = api.Dial(server.Socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.conn.Close() })
	return s
}

// write records a forwarded packet to a port, that many seconds after boot.
func (s *served) write(ports ...uint16) {
	for _, p := range ports {
		e := packet(bpf.DatapathEventTypeEVENT_TRACE, protoTCP, "10.0.1.2:40000",
			netip.AddrPortFrom(netip.MustParseAddr("10.0.2.3"), p).String())
		e.TimeNs, e.TcpFlags = uint64(p)*uint64(time.Second), tcpSYN
		s.rec.Record(e)
	}
}

// flows returns the destination ports of a call's flows, and -n for n lost events.
func (s *served) flows(req *observerpb.GetFlowsRequest) (out []int, err error) {
	s.t.Helper()
	stream, err := observerpb.NewObserverClient(s.conn).GetFlows(s.t.Context(), req)
	if err != nil {
		return nil, err
	}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, portOf(resp))
	}
}

func portOf(resp *observerpb.GetFlowsResponse) int {
	if l := resp.GetLostEvents(); l != nil {
		return -int(l.GetNumEventsLost())
	}
	return int(resp.GetFlow().GetL4().GetTCP().GetDestinationPort())
}

func second(n int) *timestamppb.Timestamp {
	return timestamppb.New(boot().Add(time.Duration(n) * time.Second))
}

// written is the source of a ring that tests write.
type written struct{}

func (written) Pull()          {}
func (written) Poll()          {}
func (written) Follow() func() { return func() {} }

func equalInts(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestGetFlows(t *testing.T) {
	s := serve(t, 7)
	s.write(1, 2, 3, 4, 5, 6, 7, 8, 9)
	s.rec.Lost(flowpb.LostEventSource_PERF_EVENT_RING_BUFFER, 42, 9*time.Second)
	odd := []*flowpb.FlowFilter{{DestinationPort: []string{"3", "5", "7", "9"}}}
	for name, tt := range map[string]struct {
		req  *observerpb.GetFlowsRequest
		want []int
	}{
		"all":       {&observerpb.GetFlowsRequest{}, []int{4, 5, 6, 7, 8, 9, -42}},
		"last":      {&observerpb.GetFlowsRequest{Number: 2}, []int{8, 9, -42}},
		"first":     {&observerpb.GetFlowsRequest{Number: 2, First: true}, []int{4, 5}},
		"whitelist": {&observerpb.GetFlowsRequest{Number: 2, Whitelist: odd}, []int{7, 9, -42}},
		"blacklist": {&observerpb.GetFlowsRequest{Blacklist: odd}, []int{4, 6, 8, -42}},
		"since":     {&observerpb.GetFlowsRequest{Since: second(8)}, []int{8, 9, -42}},
		"until":     {&observerpb.GetFlowsRequest{Until: second(5)}, []int{4, 5}},
		"both":      {&observerpb.GetFlowsRequest{Since: second(5), Until: second(6)}, []int{5, 6}},
		"mask": {&observerpb.GetFlowsRequest{Number: 1, FieldMask: &fieldmaskpb.FieldMask{Paths: []string{"uuid"}}},
			[]int{0, -42}},
	} {
		if got, err := s.flows(tt.req); err != nil || !equalInts(got, tt.want) {
			t.Errorf("%s: %v %v, want %v", name, got, err, tt.want)
		}
	}
	for name, req := range map[string]*observerpb.GetFlowsRequest{
		"first and follow": {First: true, Follow: true},
		"mask":             {FieldMask: &fieldmaskpb.FieldMask{Paths: []string{"nothing"}}},
		"filter":           {Whitelist: []*flowpb.FlowFilter{{SourceIp: []string{"x"}}}},
		"time":             {Since: &timestamppb.Timestamp{Nanos: -1}},
	} {
		if got, err := s.flows(req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
}

func TestFollow(t *testing.T) {
	s := serve(t, 255)
	s.write(1, 2, 3)
	stream, err := observerpb.NewObserverClient(s.conn).GetFlows(t.Context(),
		&observerpb.GetFlowsRequest{Number: 1, Follow: true, Until: second(5)})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{3, 4, 5} {
		if i == 1 {
			s.write(4, 5, 6) // the call ends with the first one after until
		}
		resp, err := stream.Recv()
		if err != nil || portOf(resp) != want {
			t.Fatalf("%v %v, want %d", resp, err, want)
		}
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// TestOvertaken has a reader whose events are gone before it reads them.
func TestOvertaken(t *testing.T) {
	ring := newRing(t, 7)
	rec := &served{rec: &Recorder{Ring: ring}}
	r := &reader{ring: ring, convert: newConverter(), tracker: newTracker(time.Second)}
	rec.write(1, 2)
	if !r.step(boot) {
		t.Fatal("no event")
	}
	for p := range uint16(20) {
		rec.write(3 + p)
	}
	read := 0
	for r.step(boot) {
		read++
	}
	lost := r.overwritten()
	if read != 7 || lost.GetNumEventsLost() != 14 || ring.Overtaken() != 14 ||
		lost.GetSource() != flowpb.LostEventSource_HUBBLE_RING_BUFFER {
		t.Errorf("read %d, %v", read, lost)
	}
	if r.overwritten() != nil {
		t.Error("reported twice")
	}
}

func TestStatusAndLists(t *testing.T) {
	s := serve(t, 7)
	s.write(1, 2)
	s.rec.Lost(flowpb.LostEventSource_PERF_EVENT_RING_BUFFER, 42, 2*time.Second) // no flow
	c := observerpb.NewObserverClient(s.conn)
	st, err := c.ServerStatus(t.Context(), &observerpb.ServerStatusRequest{})
	if err != nil || st.GetNumFlows() != 3 || st.GetMaxFlows() != 7 || st.GetSeenFlows() != 2 ||
		st.GetVersion() != "v1" || st.GetNumConnectedNodes().GetValue() != 1 || st.GetUptimeNs() == 0 {
		t.Error(st, err)
	}
	spaces, err := c.GetNamespaces(t.Context(), &observerpb.GetNamespacesRequest{})
	if list := spaces.GetNamespaces(); err != nil || len(list) != 2 || list[0].GetNamespace() != "demo" ||
		list[1].GetNamespace() != "shop" {
		t.Error(spaces, err)
	}
	nodes, err := c.GetNodes(t.Context(), &observerpb.GetNodesRequest{})
	if err != nil || len(nodes.GetNodes()) != 1 || nodes.GetNodes()[0].GetSeenFlows() != 2 {
		t.Error(nodes, err)
	}
	for _, name := range []string{"", healthService} {
		h, err := healthpb.NewHealthClient(s.conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
		if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Error(name, h, err)
		}
	}
	debug, err := c.GetDebugEvents(t.Context(), &observerpb.GetDebugEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := debug.Recv(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

func TestAgentEvents(t *testing.T) {
	s := serve(t, 7)
	for i := range 3 {
		s.agent.Add(boot().Add(time.Duration(i)*time.Second), &flowpb.AgentEvent{Type: flowpb.AgentEventType(i + 2)})
	}
	c := observerpb.NewObserverClient(s.conn)
	for name, tt := range map[string]struct {
		req  *observerpb.GetAgentEventsRequest
		want []int
	}{
		"all":   {&observerpb.GetAgentEventsRequest{}, []int{2, 3, 4}},
		"last":  {&observerpb.GetAgentEventsRequest{Number: 1}, []int{4}},
		"first": {&observerpb.GetAgentEventsRequest{Number: 2, First: true}, []int{2, 3}},
		"since": {&observerpb.GetAgentEventsRequest{Since: second(1), Until: second(1)}, []int{3}},
	} {
		stream, err := c.GetAgentEvents(t.Context(), tt.req)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for e, err := stream.Recv(); err == nil; e, err = stream.Recv() {
			got = append(got, int(e.GetAgentEvent().GetType()))
		}
		if !equalInts(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	stream, err := c.GetAgentEvents(t.Context(), &observerpb.GetAgentEventsRequest{Number: 1, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []flowpb.AgentEventType{4, 7} {
		e, err := stream.Recv()
		if err != nil || e.GetAgentEvent().GetType() != want {
			t.Fatalf("%v %v", e, err)
		}
		s.agent.Add(boot(), &flowpb.AgentEvent{Type: 7})
	}
}

func TestPeers(t *testing.T) {
	s := serve(t, 7)
	put := func(name, addr string) {
		txn := s.db.WriteTxn(s.nodes)
		defer txn.Commit()
		if _, _, err := s.nodes.Insert(txn, &cluster.Node{Name: name,
			Addresses: []netip.Addr{netip.MustParseAddr(addr)}}); err != nil {
			t.Error(err)
		}
	}
	put("a.b", "192.168.0.1")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := peerpb.NewPeerClient(s.conn).Notify(ctx, &peerpb.NotifyRequest{})
	if err != nil {
		t.Fatal(err)
	}
	next := func(kind peerpb.ChangeNotificationType, address string) {
		t.Helper()
		n, err := stream.Recv()
		if err != nil || n.GetType() != kind || n.GetName() != "a.b" || n.GetAddress() != address ||
			n.GetTls().GetServerName() != "a-b.default.hubble-grpc.cilium.io" {
			t.Fatal(n, err)
		}
	}
	next(peerpb.ChangeNotificationType_PEER_ADDED, "192.168.0.1:4244")
	put("a.b", "fd00::1")
	next(peerpb.ChangeNotificationType_PEER_UPDATED, "[fd00::1]:4244")
	txn := s.db.WriteTxn(s.nodes)
	if err := s.nodes.DeleteAll(txn); err != nil {
		t.Fatal(err)
	}
	txn.Commit()
	next(peerpb.ChangeNotificationType_PEER_DELETED, "[fd00::1]:4244")
}
