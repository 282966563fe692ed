package otlp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	collectorpb "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	logspb "go.opentelemetry.io/proto/slim/otlp/logs/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// collector is a server of OTLP on loopback.
type collector struct {
	mu      sync.Mutex
	answers []error // of the first requests
	reject  int64
	records []*logspb.LogRecord
	node    string
}

func (c *collector) export(in *collectorpb.ExportLogsServiceRequest) (*collectorpb.ExportLogsServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.answers) > 0 {
		err := c.answers[0]
		c.answers = c.answers[1:]
		return nil, err
	}
	for _, r := range in.GetResourceLogs() {
		c.node = r.GetResource().GetAttributes()[1].GetValue().GetStringValue()
		c.records = append(c.records, r.GetScopeLogs()[0].GetLogRecords()...)
	}
	return &collectorpb.ExportLogsServiceResponse{PartialSuccess: &collectorpb.ExportLogsPartialSuccess{
		RejectedLogRecords: c.reject}}, nil
}

func (c *collector) serve(t *testing.T) string {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "opentelemetry.proto.collector.logs.v1.LogsService",
		HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{MethodName: "Export", Handler: func(_ any,
			_ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := &collectorpb.ExportLogsServiceRequest{}
			if err := decode(in); err != nil {
				return nil, err
			}
			return c.export(in)
		}}}}, c)
	go server.Serve(socket) //nolint:errcheck // it ends with the test
	t.Cleanup(server.Stop)
	return socket.Addr().String()
}

func denied() *flowpb.Flow {
	return &flowpb.Flow{Time: timestamppb.New(time.Unix(5, 6)), Verdict: flowpb.Verdict_DROPPED,
		DropReasonDesc: flowpb.DropReason_POLICY_DENIED, Type: flowpb.FlowType_L3_L4,
		EventType: &flowpb.CiliumEventType{Type: 1},
		IP:        &flowpb.IP{Source: "10.0.0.1", Destination: "192.0.2.1", IpVersion: flowpb.IPVersion_IPv4},
		Source:    &flowpb.Endpoint{Namespace: "x", PodName: "a", Identity: 7},
		L4: &flowpb.Layer4{Protocol: &flowpb.Layer4_TCP{TCP: &flowpb.TCP{SourcePort: 40000,
			DestinationPort: 80}}},
		TraceContext: &flowpb.TraceContext{Parent: &flowpb.TraceParent{TraceId: "0102030405060708090a0b0c0d0e0f10"}},
	}
}

// export sends flows to a collector, and returns what is left when all is over.
func export(t *testing.T, c *collector, n int) *Exporter {
	t.Helper()
	e, err := New(Params{Endpoint: c.serve(t), Insecure: true, Node: "n1", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	e.retry = 10 * time.Millisecond
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range n {
		e.Consume(denied())
	}
	group.Go(func() { e.Run(ctx) })
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if s := e.State(); s.Written+s.Lost == uint64(n) {
			break
		}
	}
	stop()
	group.Wait()
	return e
}

func TestRecord(t *testing.T) {
	c := &collector{}
	export(t, c, 1)
	if len(c.records) != 1 || c.node != "n1" {
		t.Fatalf("%d records of %q", len(c.records), c.node)
	}
	r, got := c.records[0], map[string]string{}
	for _, a := range r.GetAttributes() {
		got[a.GetKey()] = a.GetValue().GetStringValue()
		if got[a.GetKey()] == "" {
			got[a.GetKey()] = fmt.Sprint(a.GetValue().GetIntValue())
		}
	}
	want := map[string]string{"hubble.verdict": "DROPPED", "hubble.drop_reason": "POLICY_DENIED",
		"hubble.type": "L3_L4", "network.type": "ipv4", "network.transport": "tcp", "source.address": "10.0.0.1",
		"source.port": "40000", "destination.address": "192.0.2.1", "destination.port": "80",
		"source.k8s.namespace.name": "x", "source.k8s.pod.name": "a", "source.hubble.identity": "7"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	const body = "x/a:40000 -> 192.0.2.1:80 TCP DROPPED (POLICY_DENIED)"
	if r.GetBody().GetStringValue() != body || r.GetTimeUnixNano() != 5e9+6 || r.GetSeverityText() != "WARN" ||
		len(r.GetTraceId()) != 16 || r.GetTraceId()[1] != 2 {
		t.Errorf("record %v", r)
	}
}

func TestRetry(t *testing.T) {
	c := &collector{answers: []error{status.Error(codes.Unavailable, "later"),
		status.Error(codes.ResourceExhausted, "later")}}
	if s := export(t, c, 1000).State(); s.Written != 1000 || s.Lost != 0 || s.Err != nil || len(c.records) != 1000 {
		t.Errorf("state %+v, %d records", s, len(c.records))
	}
}

func TestRefused(t *testing.T) {
	c := &collector{answers: []error{status.Error(codes.InvalidArgument, "never")}}
	if s := export(t, c, 10).State(); s.Written != 0 || s.Lost != 10 || s.Err == nil {
		t.Errorf("state %+v", s)
	}
}

func TestPartialSuccess(t *testing.T) {
	if s := export(t, &collector{reject: 3}, 10).State(); s.Written != 7 || s.Lost != 3 || s.Err == nil {
		t.Errorf("state %+v", s)
	}
}

func TestCheckEndpoint(t *testing.T) {
	for endpoint, ok := range map[string]bool{"c.test:4317": true, "[fd00::1]:4317": true, "c.test": false,
		"http://c.test:1": false, ":1": false} {
		if err := CheckEndpoint(endpoint); (err == nil) != ok {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}
