package relay

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	relaypb "github.com/cilium/cilium/api/v1/relay"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Fields that the relay itself needs, whatever a client's field mask says.
const (
	fieldTime = "time"
	fieldUUID = "uuid"
)

// maxLast bounds the flows that are kept to find the last ones of the cluster. A request for more gets as many of each
// node, in the order of time.
const maxLast = 16384

// query is a request for flows.
type query struct {
	*Relay
	req     *observerpb.GetFlowsRequest
	stream  grpc.ServerStreamingServer[observerpb.GetFlowsResponse]
	started time.Time
	asked   map[string]bool // the nodes whose history was asked for
	mu      sync.Mutex
	cursors map[string]*cursor
}

// GetFlows sends flows of all nodes in the order of time. Number counts flows of the whole cluster. A node that is
// not reached, or no longer, is reported by an event, and left out; with Follow it is taken in again when it
// answers, from the flow on that came last. What it has lost until then is reported as a lost event of that node.
func (r *Relay) GetFlows(req *observerpb.GetFlowsRequest,
	stream grpc.ServerStreamingServer[observerpb.GetFlowsResponse]) error {
	if req.GetFirst() && req.GetFollow() {
		return status.Error(codes.InvalidArgument, "first and follow exclude each other")
	}
	q := &query{Relay: r, req: req, stream: stream, started: r.opts.Now(), asked: map[string]bool{},
		cursors: map[string]*cursor{}}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	var err error
	if !req.GetFollow() || req.GetNumber() > 0 || req.GetSince() != nil {
		err = q.history(ctx)
	}
	if err == nil && req.GetFollow() {
		err = q.follow(ctx)
	}
	if stream.Context().Err() != nil {
		return status.FromContextError(stream.Context().Err()).Err()
	}
	return err
}

func (q *query) cursor(node string) *cursor {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.cursors[node] == nil {
		q.cursors[node] = &cursor{}
	}
	return q.cursors[node]
}

// ask is the request for a node.
func (q *query) ask(change func(*observerpb.GetFlowsRequest)) *observerpb.GetFlowsRequest {
	req := proto.CloneOf(q.req)
	if paths := req.GetFieldMask().GetPaths(); len(paths) > 0 {
		for _, path := range []string{fieldTime, fieldUUID} {
			if !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
		req.FieldMask = &fieldmaskpb.FieldMask{Paths: paths}
	}
	change(req)
	return req
}

// send sends a response without fields that only the relay has asked for.
func (q *query) send(res *observerpb.GetFlowsResponse) error {
	if paths := q.req.GetFieldMask().GetPaths(); len(paths) > 0 && res.GetFlow() != nil {
		if !slices.Contains(paths, fieldTime) {
			res.GetFlow().Time = nil
		}
		if !slices.Contains(paths, fieldUUID) {
			res.GetFlow().Uuid = ""
		}
	}
	return q.stream.Send(res)
}

// event is a response about nodes.
func (q *query) event(state relaypb.NodeState, message string, nodes ...string) *observerpb.GetFlowsResponse {
	return &observerpb.GetFlowsResponse{NodeName: q.opts.Name, Time: timestamppb.New(q.opts.Now()),
		ResponseTypes: &observerpb.GetFlowsResponse_NodeStatus{NodeStatus: &relaypb.NodeStatusEvent{
			StateChange: state, NodeNames: nodes, Message: message,
		}}}
}

// greet says which of the peers will be asked, and returns these.
func (q *query) greet(peers []*peer) (asked []*peer, err error) {
	var up, down []string
	for _, p := range peers {
		if p.available() {
			asked, up = append(asked, p), append(up, p.name)
		} else {
			down = append(down, p.name)
		}
	}
	if len(up) > 0 {
		err = q.send(q.event(relaypb.NodeState_NODE_CONNECTED, "", up...))
	}
	if len(down) > 0 && err == nil {
		err = q.send(q.event(relaypb.NodeState_NODE_UNAVAILABLE, "", down...))
	}
	return asked, err
}

// history sends what the rings of the nodes have. It ends when they do, or with the flow that was asked for last.
func (q *query) history(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req := q.ask(func(r *observerpb.GetFlowsRequest) {
		if r.Follow = false; r.Until == nil && q.req.GetFollow() {
			r.Until = timestamppb.New(q.started) // what comes later is followed
		}
	})
	peers, _ := q.pool.list()
	asked, err := q.greet(peers)
	if err != nil {
		return err
	}
	m := newMerger(q.opts.BufferLen, q.opts.Patience, false, q.opts.Now)
	for _, p := range asked {
		m.start(p.name)
		q.asked[p.name] = true
		cur := q.cursor(p.name)
		cur.opened = q.opts.Now()
		go func() {
			defer m.end(p.name)
			if err := q.read(ctx, p, req, cur, m, &resumption{}); err != nil && ctx.Err() == nil {
				_ = m.pushFirst(ctx, q.event(relaypb.NodeState_NODE_ERROR, status.Convert(err).Message(), p.name))
			}
		}()
	}
	m.seal()
	return q.limited(ctx, m)
}

// limited sends what a merger has: all, or the number of flows that was asked for.
func (q *query) limited(ctx context.Context, m *merger) error {
	number := q.req.GetNumber()
	last := !q.req.GetFirst() && number > 0 && number <= maxLast
	var kept []*observerpb.GetFlowsResponse
	flows := uint64(0)
	for !(q.req.GetFirst() && number > 0 && flows == number) {
		res, err := m.next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if res.GetFlow() != nil {
			flows++
		}
		if !last || res.GetNodeStatus() != nil {
			if err := q.send(res); err != nil {
				return err
			}
			continue
		}
		for kept = append(kept, res); flows > number; kept = kept[1:] {
			if kept[0].GetFlow() != nil {
				flows--
			}
		}
	}
	for _, res := range kept {
		if err := q.send(res); err != nil {
			return err
		}
	}
	return nil
}

// resumption is the state of a stream that continues after its node was away.
type resumption struct {
	expects bool // that the first flow is one that the cursor knows
}

// read pushes what a node answers, until its stream ends. It returns nil if the node has ended it.
func (q *query) read(ctx context.Context, p *peer, req *observerpb.GetFlowsRequest, cur *cursor, m *merger,
	again *resumption) error {
	stream, err := p.client().GetFlows(ctx, req)
	if err != nil {
		return err
	}
	for {
		res, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if res.GetNodeName() == "" {
			res.NodeName = p.name
		}
		cur.node = res.GetNodeName()
		at := q.timeOf(res)
		if flow := res.GetFlow(); flow != nil {
			before := cur.newest
			if !cur.note(at, flow.GetUuid()) {
				again.expects = false
				continue
			}
			if again.expects {
				again.expects = false
				if err := m.push(ctx, p.name, before, gap(res.GetNodeName(), before, at)); err != nil {
					return err
				}
			}
		}
		if err := m.push(ctx, p.name, at, res); err != nil {
			return err
		}
	}
}

// timeOf is the time by which a response is sorted: now, if it has none.
func (q *query) timeOf(res *observerpb.GetFlowsResponse) time.Time {
	switch {
	case res.GetTime() != nil:
		return res.GetTime().AsTime()
	case res.GetFlow().GetTime() != nil:
		return res.GetFlow().GetTime().AsTime()
	}
	return q.opts.Now()
}
