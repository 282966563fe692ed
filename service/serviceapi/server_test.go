package serviceapi

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"myelin/api"
	apiv1 "myelin/api/v1"
)

// dial serves a world's API on a socket, and returns a client.
func dial(t *testing.T, w *world) (client apiv1.ServicesClient, stopping chan struct{}) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	stopping = make(chan struct{})
	s := grpc.NewServer()
	apiv1.RegisterServicesServer(s, &Server{DB: w.db, Manager: w.Manager, Services: w.services, Stopping: stopping})
	go s.Serve(l)
	t.Cleanup(s.Stop)
	conn, err := api.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return apiv1.NewServicesClient(conn), stopping
}

// full has every field of a request.
func full() *apiv1.Service {
	return &apiv1.Service{
		Name: "full", Frontends: []string{"192.0.2.10:80/UDP", "[2001:db8::a]:80/UDP"},
		Backends: []*apiv1.ServiceBackend{{Address: "10.0.0.1:8080", Weight: proto.Uint32(1), ServerId: "00ff"},
			{Address: "[fd00::1]:8080", Weight: proto.Uint32(0)}},
		QuicServerIdLength: 2,
		AffinitySeconds:    60, Algorithm: "maglev", Mode: "dsr",
		SourceRanges: []string{"203.0.113.0/24", "2001:db8:1::/48"}, SourceDeny: true,
		HealthCheck: &apiv1.HealthCheck{Kind: "http", Port: 9000, Path: "/healthz", Host: "shop.example",
			IntervalMs: 60000, TimeoutMs: 500, Rise: 3, Fall: 4, Via: "direct"},
	}
}

// TestProto: requests and responses have the same fields.
func TestProto(t *testing.T) {
	s, err := fromProto(full())
	if err != nil {
		t.Fatal(err)
	}
	if got := toProto(s); !proto.Equal(got, full()) {
		t.Errorf("got %v", got)
	}
}

// request is one with what it gets.
type request struct {
	call func(context.Context, apiv1.ServicesClient) error
	code codes.Code
	text string
}

// upsert programs a Service "web" that is changed before.
func upsert(change func(*apiv1.Service)) func(context.Context, apiv1.ServicesClient) error {
	s := &apiv1.Service{Name: "web", Frontends: []string{"192.0.2.10:80"},
		Backends: []*apiv1.ServiceBackend{{Address: "10.0.0.1:8080"}, {Address: "10.0.0.2:8080/TCP"}}}
	change(s)
	return func(ctx context.Context, client apiv1.ServicesClient) error {
		_, err := client.Upsert(ctx, &apiv1.UpsertServiceRequest{Service: s})
		return err
	}
}

func setBackend(r *apiv1.SetBackendRequest) func(context.Context, apiv1.ServicesClient) error {
	return func(ctx context.Context, client apiv1.ServicesClient) error {
		_, err := client.SetBackend(ctx, r)
		return err
	}
}

func remove(name string) func(context.Context, apiv1.ServicesClient) error {
	return func(ctx context.Context, client apiv1.ServicesClient) error {
		_, err := client.Delete(ctx, &apiv1.DeleteServiceRequest{Name: name})
		return err
	}
}

func upserts() []request {
	const bad = codes.InvalidArgument
	check := func(h *apiv1.HealthCheck) func(*apiv1.Service) {
		return func(s *apiv1.Service) { s.HealthCheck = h }
	}
	// The first backend's server ID is 0001, by its address.
	quic := func(octets uint32, port int, id string) func(*apiv1.Service) {
		return func(s *apiv1.Service) {
			s.QuicServerIdLength, s.Backends[1].ServerId, s.Backends[1].Address = octets, id, "10.0.0.2:8080"
			if s.Frontends[0] = fmt.Sprintf("192.0.2.10:%d/UDP", port); port == 80 {
				s.Frontends[0] = "192.0.2.10:80"
			}
		}
	}
	return []request{
		{upsert(func(*apiv1.Service) {}), codes.OK, ""},
		{func(ctx context.Context, client apiv1.ServicesClient) error {
			_, err := client.Upsert(ctx, &apiv1.UpsertServiceRequest{})
			return err
		}, bad, "service: must be set"},
		{upsert(func(s *apiv1.Service) { s.Name, s.Frontends[0] = "", "x" }), bad, "frontends[0]: "},
		{upsert(func(s *apiv1.Service) { s.Name = "A" }), bad, "name: "},
		{upsert(func(s *apiv1.Service) { s.Backends[1].Address = "10.0.0.2" }), bad, "backends[1].address: "},
		{upsert(func(s *apiv1.Service) { s.Backends[1].Address = "10.0.0.2:80/UDP" }), bad,
			"the protocol of the frontends is TCP"},
		{upsert(func(s *apiv1.Service) { s.Backends[0].Weight = proto.Uint32(65536) }), bad,
			"backends[0].weight: 65536"},
		{upsert(func(s *apiv1.Service) { s.SourceRanges = []string{"10.0.0.0"} }), bad, "source_ranges[0]: "},
		{upsert(quic(2, 80, "")), bad, "quic_server_id_length: is for UDP, and the frontends are TCP"},
		{upsert(quic(256+2, 53, "")), bad, "quic_server_id_length: 255 is not in 1..8"},
		{upsert(quic(0, 53, "0001")), bad, "backends[1].server_id: means nothing without quic_server_id_length"},
		{upsert(quic(2, 53, "01")), bad, `backends[1].server_id: "01" is not 2 octets in hexadecimal digits`},
		{upsert(quic(2, 53, "0001")), bad, "backends[1].server_id: 0001 is that of 10.0.0.1:8080 too"},
		{upsert(check(&apiv1.HealthCheck{Kind: "tcp", Port: 70000})), bad, "health_check.port: "},
		{upsert(check(&apiv1.HealthCheck{Kind: "tcp", Via: "ipip"})), bad, "health_check.via: "},
		{upsert(check(&apiv1.HealthCheck{Kind: "tcp", IntervalMs: 1})), bad, "health_check.interval_ms: "},
		{upsert(func(s *apiv1.Service) { s.Name = "thief" }), codes.AlreadyExists, "it is web's"},
		{remove("none"), codes.NotFound, "name: Service none"},
	}
}

func sets() []request {
	const maintenance, active = apiv1.BackendState_BACKEND_STATE_MAINTENANCE, apiv1.BackendState_BACKEND_STATE_ACTIVE
	const bad, one, unknown = codes.InvalidArgument, "10.0.0.1:8080/TCP", "10.0.0.9:8080"
	return []request{
		{setBackend(&apiv1.SetBackendRequest{Backend: one, State: maintenance}), codes.OK, ""},
		{setBackend(&apiv1.SetBackendRequest{Backend: one, State: active, Weight: proto.Uint32(7)}), codes.OK, ""},
		{setBackend(&apiv1.SetBackendRequest{Backend: one}), bad, "state: neither"},
		{setBackend(&apiv1.SetBackendRequest{Backend: "10.0.0.1", State: active}), bad, "backend: "},
		{setBackend(&apiv1.SetBackendRequest{Backend: one, State: apiv1.BackendState_BACKEND_STATE_TERMINATING}), bad,
			"state: only"},
		{setBackend(&apiv1.SetBackendRequest{Backend: one, Weight: proto.Uint32(70000)}), bad, "weight: "},
		{setBackend(&apiv1.SetBackendRequest{Backend: one, State: active, Service: "web"}), bad, "service: "},
		{setBackend(&apiv1.SetBackendRequest{Backend: unknown, State: maintenance}), codes.NotFound, "no Service has"},
		{setBackend(&apiv1.SetBackendRequest{Backend: unknown, State: active}), codes.OK, ""},
		{setBackend(&apiv1.SetBackendRequest{Backend: unknown, Weight: proto.Uint32(1)}), codes.NotFound,
			"10.0.0.9:8080/TCP is not programmed"},
	}
}

// TestRequests has an error of each kind, and valid requests.
func TestRequests(t *testing.T) {
	w := start(t, t.TempDir())
	client, _ := dial(t, w)
	try := func(list []request) {
		for i, r := range list {
			err := r.call(t.Context(), client)
			if s := status.Convert(err); s.Code() != r.code || !strings.Contains(s.Message(), r.text) {
				t.Errorf("%d: got %v, want %s %q", i, err, r.code, r.text)
			}
		}
	}
	try(upserts())
	w.becomes(t, "web 192.0.2.10:80/TCP LoadBalancer 10.0.0.1:8080/TCP 10.0.0.2:8080/TCP")
	try(sets())
	answer, err := client.List(t.Context(), &apiv1.ListServicesRequest{})
	if err != nil || len(answer.GetServices()) != 1 || answer.GetServices()[0].GetBackends()[0].GetWeight() != 7 ||
		answer.GetServices()[0].GetId() == 0 {
		t.Errorf("got %v, %v", answer, err)
	}
	try([]request{{remove("web"), codes.OK, ""}})
}

// TestWatch: all Services, then changes, then the end.
func TestWatch(t *testing.T) {
	w := start(t, t.TempDir())
	client, stopping := dial(t, w)
	w.upsert(t, svc("web", "192.0.2.10:80", "10.0.0.1:8080"))
	w.becomes(t, "web 192.0.2.10:80/TCP LoadBalancer 10.0.0.1:8080/TCP")
	stream, err := client.Watch(t.Context(), &apiv1.WatchServicesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	// until reads events until one is as wanted: those between are other changes of the same.
	until := func(want string) {
		t.Helper()
		for {
			e, err := stream.Recv()
			if err != nil {
				t.Fatalf("waiting for %q: %v", want, err)
			}
			got := strings.TrimPrefix(e.GetType().String(), "SERVICE_EVENT_TYPE_") + " " + e.GetService().GetName()
			for _, b := range e.GetService().GetBackends() {
				got += " " + b.GetAddress() + " " + strings.TrimPrefix(b.GetState().String(), "BACKEND_STATE_")
			}
			if strings.TrimSpace(got) == want {
				return
			}
		}
	}
	until("UPSERTED web 10.0.0.1:8080 ACTIVE")
	until("SYNCED")
	if _, err := client.SetBackend(t.Context(), &apiv1.SetBackendRequest{Backend: "10.0.0.1:8080",
		State: apiv1.BackendState_BACKEND_STATE_QUARANTINED}); err != nil {
		t.Fatal(err)
	}
	until("UPSERTED web 10.0.0.1:8080 QUARANTINED")
	w.upsert(t, svc("dns", "192.0.2.11:53/UDP", "[fd00::1]:53"))
	until("UPSERTED dns [fd00::1]:53 ACTIVE")
	if err := w.Delete("web"); err != nil {
		t.Fatal(err)
	}
	until("DELETED web")
	close(stopping)
	for {
		if _, err := stream.Recv(); err != nil {
			if s := status.Convert(err); s.Code() != codes.Unavailable || s.Message() != "the agent stops" {
				t.Error(err)
			}
			return
		}
	}
}
