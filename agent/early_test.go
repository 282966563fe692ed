package agent

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	apiv1 "myelin/api/v1"
	"myelin/config"
)

// TestAPIOfEarlyAgent: every method of the API, a list of every table, and metrics can be requested of an agent whose
// features have not started. A request may be refused, but does not end the process.
func TestAPIOfEarlyAgent(t *testing.T) {
	for name, file := range map[string]string{
		"default": "",
		"all": "{kubeProxyReplacement: true, hubble.enabled: true, l7Proxy: true, ipv6.enabled: true, " +
			"bandwidthManager.enabled: true, encryption.enabled: true, encryption.type: wireguard}",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := config.Parse([]byte(file+"\n"), "f")
			if err != nil {
				t.Fatal(err)
			}
			c.Myelin.RunDir = t.TempDir()
			a := agentWith(c)
			a.metrics = newMetrics(a)
			gather(t, a)
			if err := a.startTables(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = a.stopGroup(context.Background()); _ = a.DB.Stop() })
			if err := a.startServer(t.Context()); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(a.server.stop)
			a.server.openEarly()
			for _, f := range a.list {
				a.progress.starting(f.Name)
				a.progress.waitsFor("the test", "")
				askAll(t, a)
				gather(t, a)
			}
		})
	}
}

// gather reads the metrics, which can be asked of before there are tables.
func gather(t *testing.T, a *agent) {
	t.Helper()
	if _, err := a.metrics.registry.Gather(); err != nil {
		t.Error(err)
	}
}

// askAll calls every method with an empty request, and lists every table.
func askAll(t *testing.T, a *agent) {
	t.Helper()
	path := filepath.Join(a.Config.Myelin.RunDir, "myelin.sock")
	conn, err := grpc.NewClient("passthrough:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for service, info := range a.server.grpc.GetServiceInfo() {
		for _, m := range info.Methods {
			ask(t, conn, "/"+service+"/"+m.Name, &emptypb.Empty{})
		}
	}
	names := a.tableNames()
	for _, table := range slices.Concat(names, []string{"map flows", "map none", "log", "metrics"}) {
		ask(t, conn, apiv1.Agent_List_FullMethodName, &apiv1.ListRequest{Table: table, Wide: true})
	}
	if len(names) < 20 {
		t.Errorf("only %d tables", len(names))
	}
}

// ask sends a request to a method, of which an empty message is one, and waits for the end of its answers.
func ask(t *testing.T, conn *grpc.ClientConn, method string, request proto.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err == nil {
		_ = stream.SendMsg(request) // a refusal comes by RecvMsg
		_ = stream.CloseSend()
		for err == nil {
			err = stream.RecvMsg(&emptypb.Empty{})
		}
	}
	if code := status.Code(err); code == codes.DeadlineExceeded || code == codes.Unimplemented {
		t.Errorf("%s: %v", method, err)
	}
}
