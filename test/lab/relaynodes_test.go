package labtest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	relaypb "github.com/cilium/cilium/api/v1/relay"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// TestRelayNodes follows the flows of three nodes by a relay, kills an agent in the middle, and starts it again. Every
// connection has to be seen once at both of its nodes, in the order of time, also those that were made while no agent
// ran on one of them: its kernel keeps them.
//
//	┌─ node1 ─┐  ┌─ node2 ──────────┐  ┌─ node3 ─┐
//	│  a1 s1  │  │  a2 s2   kill -9 │  │  a3 s3  │     a1 ─→ s2, a2 ─→ s3, a3 ─→ s1
//	└────┬────┘  └────────┬─────────┘  └────┬────┘
//	═════╧════════════════╧═════════════════╧═════
func TestRelayNodes(t *testing.T) {
	t.Parallel()
	c := up(t, setup{nodes: 3, pods: []string{"a"}, values: map[string]any{
		"hubble.listenAddress": ":4244", "hubble.tls.enabled": false,
	}})
	c.apply("servers", serverYAML("s1", 1)+serverYAML("s2", 2)+serverYAML("s3", 3))
	c.relay(t)
	f := c.follow(t)
	l := c.connectAll(t)
	time.Sleep(patience(2 * time.Second))
	check(t, c.Node("node2").KillAgent(t.Context()))
	eventually(t, "the relay reports that node2 is unavailable", 10*time.Second, func() error {
		return f.has(relaypb.NodeState_NODE_UNAVAILABLE, "node2")
	})
	time.Sleep(patience(time.Second))
	check(t, c.Node("node2").StartAgent(t.Context(), nil))
	eventually(t, "the relay reports that node2 is back", 20*time.Second, func() error {
		return f.has(relaypb.NodeState_NODE_CONNECTED, "node2")
	})
	time.Sleep(patience(2 * time.Second))
	all := l.end()
	last := all[len(all)-1]
	eventually(t, "the last connection is there", 10*time.Second, func() error { return f.hasPort(last.port) })
	f.ordered(t)
	f.onlyOnce(t)
	f.complete(t, all)
}

// followed is what a client of the relay has received.
type followed struct {
	mu        sync.Mutex
	responses []*observerpb.GetFlowsResponse
}

// follow follows all flows of the relay on node1 from now on, until the test ends.
func (c *cluster) follow(t *testing.T) *followed {
	t.Helper()
	node := c.Node("node1")
	dial := func(ctx context.Context, address string) (conn net.Conn, err error) {
		err2 := node.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address)
			return nil
		})
		return conn, errOrNil(err2, err)
	}
	conn, err := grpc.NewClient("passthrough:127.0.0.1:4245", grpc.WithContextDialer(dial),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	client := observerpb.NewObserverClient(conn)
	eventually(t, "the relay has three nodes", 20*time.Second, func() error {
		s, err := client.ServerStatus(t.Context(), &observerpb.ServerStatusRequest{})
		if err == nil && s.GetNumConnectedNodes().GetValue() != 3 {
			return fmt.Errorf("it has %d", s.GetNumConnectedNodes().GetValue())
		}
		return err
	})
	ctx, stop := context.WithCancel(t.Context())
	stream, err := client.GetFlows(ctx, &observerpb.GetFlowsRequest{Follow: true, Since: timestamppb.Now()})
	check(t, err)
	f, done := &followed{}, make(chan struct{})
	go func() {
		defer close(done)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.responses = append(f.responses, r)
			f.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		stop()
		<-done
		conn.Close()
	})
	eventually(t, "the relay names its nodes", 10*time.Second, func() error {
		return f.has(relaypb.NodeState_NODE_CONNECTED, "node1")
	})
	return f
}

func errOrNil(list ...error) error {
	for _, err := range list {
		if err != nil {
			return err
		}
	}
	return nil
}

// connected is a connection that the load made.
type connected struct {
	from, to   string // nodes
	family     int
	port       uint16 // of the client
	began, end time.Time
}

// connections is the load until it ends.
type connections struct {
	stop context.CancelFunc
	wait sync.WaitGroup
	mu   sync.Mutex
	list []connected
}

// connectAll has a pod of each node connect to the next node's server again and again, by each family.
func (c *cluster) connectAll(t *testing.T) *connections {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	l := &connections{stop: stop}
	t.Cleanup(func() { l.end() })
	for i := range 3 {
		from, to := c.end(fmt.Sprintf("default/a%d", i+1)), c.end(fmt.Sprintf("default/s%d", (i+1)%3+1))
		for _, f := range c.stack.families {
			one := connected{from: fmt.Sprintf("default/node%d", i+1), to: fmt.Sprintf("default/node%d", (i+1)%3+1),
				family: f}
			eventually(t, "the servers answer", 10*time.Second, func() error {
				return one.connect(ctx, from, at(to.addr(f), 8080))
			})
			l.wait.Go(func() {
				for ctx.Err() == nil {
					next := connected{from: one.from, to: one.to, family: f}
					if err := next.connect(ctx, from, at(to.addr(f), 8080)); err == nil {
						l.mu.Lock()
						l.list = append(l.list, next)
						l.mu.Unlock()
					} else if ctx.Err() == nil {
						t.Errorf("a connection from %s to %s fails: %v", next.from, next.to, err)
					}
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
	}
	return l
}

func (o *connected) connect(ctx context.Context, from end, to netip.AddrPort) error {
	o.began = time.Now()
	conn, err := from.dialTCP(ctx, netip.AddrPort{}, to)
	if err != nil {
		return err
	}
	o.end, o.port = time.Now(), portOf(conn.LocalAddr())
	return conn.Close()
}

// end ends the load and returns what it did, in the order of time.
func (l *connections) end() []connected {
	l.stop()
	l.wait.Wait()
	slices.SortFunc(l.list, func(a, b connected) int { return a.began.Compare(b.began) })
	return l.list
}

func (f *followed) all() []*observerpb.GetFlowsResponse {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.responses)
}

// has wants an event about a node after the last one of another state; the first event names all nodes.
func (f *followed) has(state relaypb.NodeState, node string) error {
	var seen []string
	last := relaypb.NodeState_UNKNOWN_NODE_STATE
	for _, r := range f.all() {
		if s := r.GetNodeStatus(); s != nil && slices.Contains(s.GetNodeNames(), node) {
			last = s.GetStateChange()
			seen = append(seen, last.String())
		}
	}
	if last != state {
		return fmt.Errorf("%s: %v", node, seen)
	}
	return nil
}

// syn is the first packet of a connection that the load made.
func syn(f *flowpb.Flow) bool {
	tcp := f.GetL4().GetTCP()
	return tcp.GetFlags().GetSYN() && !tcp.GetFlags().GetACK() && tcp.GetDestinationPort() == 8080
}

func (f *followed) hasPort(port uint16) error {
	for _, r := range f.all() {
		if syn(r.GetFlow()) && r.GetFlow().GetL4().GetTCP().GetSourcePort() == uint32(port) {
			return nil
		}
	}
	return fmt.Errorf("no flow from port %d", port)
}

// jitter is by how much two CPUs of a node may report in another order than their clocks have.
const jitter = time.Millisecond

// ordered wants flows in the order of time. What node2 reports of the time before the relay had it back comes late.
func (f *followed) ordered(t *testing.T) {
	t.Helper()
	var newest, back time.Time
	for _, r := range f.all() {
		if s := r.GetNodeStatus(); s.GetStateChange() == relaypb.NodeState_NODE_CONNECTED {
			back = r.GetTime().AsTime()
		}
		if r.GetFlow() == nil {
			continue
		}
		at := r.GetTime().AsTime()
		late := r.GetNodeName() == "default/node2" && at.Before(back)
		if at.Before(newest.Add(-jitter)) && !late {
			t.Errorf("a flow of %s at %s comes after one at %s", r.GetNodeName(), at, newest)
		}
		if at.After(newest) {
			newest = at
		}
	}
}

// onlyOnce wants no flow twice, by its UUID, and by what it says.
func (f *followed) onlyOnce(t *testing.T) {
	t.Helper()
	seen := map[string]bool{}
	for _, r := range f.all() {
		flow := r.GetFlow()
		if flow == nil {
			continue
		}
		for _, key := range []string{flow.GetUuid(), fmt.Sprint(r.GetNodeName(), r.GetTime().AsTime(), flow.GetIP(),
			flow.GetL4(), flow.GetVerdict(), flow.GetEventType())} {
			if seen[key] {
				t.Errorf("a flow comes twice: %s", key)
			}
			seen[key] = true
		}
	}
}

// complete wants each connection at both nodes. Where one is missing, it says whether the relay has reported a gap.
func (f *followed) complete(t *testing.T, all []connected) {
	t.Helper()
	type key struct {
		node    string
		port    uint32
		version string
	}
	there := map[key]bool{}
	gaps := map[string][]*flowpb.LostEvent{}
	for _, r := range f.all() {
		if flow := r.GetFlow(); syn(flow) {
			port, version := flow.GetL4().GetTCP().GetSourcePort(), flow.GetIP().GetIpVersion().String()
			there[key{r.GetNodeName(), port, version}] = true
		}
		if l := r.GetLostEvents(); l != nil {
			gaps[r.GetNodeName()] = append(gaps[r.GetNodeName()], l)
		}
	}
	for _, one := range all {
		for _, node := range []string{one.from, one.to} {
			if there[key{node, uint32(one.port), fmt.Sprintf("IPv%d", one.family)}] {
				continue
			}
			reported := slices.ContainsFunc(gaps[node], func(l *flowpb.LostEvent) bool {
				return !one.end.Before(l.GetFirst().AsTime()) && !one.began.After(l.GetLast().AsTime())
			})
			t.Errorf("%s does not report the connection from port %d at %s; a gap: %v, gaps of the node: %v", node,
				one.port, one.began, reported, gaps[node])
		}
	}
	t.Logf("%d connections, %d responses, gaps: %v", len(all), len(f.all()), gaps)
}
