package hubble

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"myelin/hubble/consumer"
)

// countedNames counts conversions: each looks two endpoints up.
type countedNames struct {
	fewNames
	endpoints *atomic.Uint64
}

func (n countedNames) Endpoint(a netip.Addr) *flowpb.Endpoint {
	n.endpoints.Add(1)
	return n.fewNames.Endpoint(a)
}

// countedFlows counts the flows of a consumer.
type countedFlows struct{ flows atomic.Int64 }

func (c *countedFlows) Consume(*flowpb.Flow)   { c.flows.Add(1) }
func (c *countedFlows) Lost(*flowpb.LostEvent) {}

// joined waits until readers follow.
func (s *served) joined(readers int32) {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); s.obs.shared.readers.Load() != readers; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("%d readers follow, want %d", s.obs.shared.readers.Load(), readers)
		}
	}
}

// TestFollowersShare has four clients, one of them with a mask, and a consumer follow: each gets every flow in order,
// and each flow is converted once. When one reader is left, nothing is kept.
func TestFollowersShare(t *testing.T) {
	const flows = 600
	s := serve(t, 4095)
	names := countedNames{endpoints: &atomic.Uint64{}}
	s.obs.Converter.names = names
	counted := &countedFlows{}
	var group sync.WaitGroup
	group.Go(func() {
		if err := s.obs.Follow(t.Context(), []consumer.Consumer{counted}); err != nil {
			t.Error(err)
		}
	})
	var clients sync.WaitGroup
	for i := range 4 {
		req := &observerpb.GetFlowsRequest{Follow: true}
		if i == 0 {
			req.FieldMask = &fieldmaskpb.FieldMask{Paths: []string{"l4"}}
		}
		stream, err := observerpb.NewObserverClient(s.conn).GetFlows(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		clients.Go(func() {
			for n := range flows {
				resp, err := stream.Recv()
				if err != nil || portOf(resp) != n+1 || (resp.GetFlow().GetUuid() == "") != (i == 0) {
					t.Errorf("client %d: %v, %v; want port %d", i, resp, err, n+1)
					return
				}
			}
		})
	}
	s.joined(5)
	for n := range uint16(flows) {
		s.write(n + 1)
		if n%50 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	clients.Wait()
	for end := time.Now().Add(30 * time.Second); counted.flows.Load() < flows && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if got := names.endpoints.Load(); got != 2*flows || counted.flows.Load() != flows {
		t.Errorf("%d endpoints were looked up for %d flows, the consumer has %d", got, flows, counted.flows.Load())
	}
	s.conn.Close()
	s.joined(1)
	for i := range s.obs.shared.slots {
		if s.obs.shared.slots[i].Load() != nil {
			t.Fatal("one reader is left, and conversions are kept")
		}
	}
}

// undecoded is a codec that leaves what a server sends as it is: what a benchmark then measures is the server.
type undecoded struct{}

func (undecoded) Name() string                         { return "proto" }
func (undecoded) Unmarshal(mem.BufferSlice, any) error { return nil }

// Marshal writes a GetFlowsRequest that follows.
func (undecoded) Marshal(any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer{3 << 3, 1}}, nil
}

// BenchmarkFollowers has clients follow, and reports the CPU time of this process by event.
func BenchmarkFollowers(b *testing.B) {
	for name, clients := range map[string]int{"1": 1, "4": 4} {
		b.Run(name, func(b *testing.B) {
			s := serve(b, 4095)
			var received atomic.Int64
			for range clients {
				stream, err := observerpb.NewObserverClient(s.conn).GetFlows(b.Context(),
					&observerpb.GetFlowsRequest{}, grpc.ForceCodecV2(undecoded{}))
				if err != nil {
					b.Fatal(err)
				}
				go func() {
					for {
						if _, err := stream.Recv(); err != nil {
							return
						}
						received.Add(1)
					}
				}()
			}
			s.joined(int32(clients))
			before, events := cpuTime(b), 0
			for b.Loop() {
				for n := range uint16(1000) {
					s.write(n + 1)
				}
				for events += 1000; received.Load() < int64(events*clients); {
					time.Sleep(100 * time.Microsecond)
				}
			}
			b.ReportMetric(float64((cpuTime(b)-before).Nanoseconds())/float64(events), "cpu-ns/event")
		})
	}
}

// cpuTime is that of this process.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
