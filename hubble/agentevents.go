package hubble

import (
	"context"
	"sync"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// maxAgentEvents is how many events of the agent are kept.
const maxAgentEvents = 1023

// AgentEvents are the last events of the agent: that it has started, and what became of its endpoints and policies.
type AgentEvents struct {
	mu      sync.Mutex
	first   uint64 // position of list[0]
	list    []agentEvent
	changed chan struct{} // closed by the next Add
}

type agentEvent struct {
	at    time.Time
	event *flowpb.AgentEvent
}

// NewAgentEvents makes an empty list.
func NewAgentEvents() *AgentEvents { return &AgentEvents{changed: make(chan struct{})} }

// Add adds an event, which is not changed any more. Of more than 1,023 the oldest is forgotten.
func (a *AgentEvents) Add(at time.Time, e *flowpb.AgentEvent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, agentEvent{at, e})
	if len(a.list) > maxAgentEvents {
		a.list = a.list[1:]
		a.first++
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

// from returns the events from a position on, the position behind them, and what is closed when there are more.
func (a *AgentEvents) from(pos uint64) ([]agentEvent, uint64, <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := append([]agentEvent(nil), a.list[max(pos, a.first)-a.first:]...)
	return list, a.first + uint64(len(a.list)), a.changed
}

// GetAgentEvents implements observerpb.ObserverServer.
func (o *Observer) GetAgentEvents(req *observerpb.GetAgentEventsRequest,
	stream observerpb.Observer_GetAgentEventsServer,
) error {
	since, until, err := span(req.GetSince(), req.GetUntil())
	if err != nil {
		return err
	}
	if req.GetFirst() && req.GetFollow() {
		return status.Error(codes.InvalidArgument, "first: a call that follows begins with the last events")
	}
	list, pos, more := o.Agent.from(0)
	list = chosen(list, req, since, until)
	for {
		for _, e := range list {
			if !until.IsZero() && e.at.After(until) {
				return nil
			}
			if err := stream.Send(&observerpb.GetAgentEventsResponse{
				AgentEvent: e.event, NodeName: o.node().Name, Time: timestamppb.New(e.at),
			}); err != nil {
				return err
			}
		}
		if !req.GetFollow() {
			return nil
		}
		if err := waitFor(stream.Context(), more); err != nil {
			return err
		}
		list, pos, more = o.Agent.from(pos)
	}
}

func waitFor(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// chosen are the events that are kept and that a request asks for.
func chosen(all []agentEvent, req *observerpb.GetAgentEventsRequest, since, until time.Time) []agentEvent {
	var list []agentEvent
	for _, e := range all {
		if !e.at.Before(since) && (until.IsZero() || !e.at.After(until)) {
			list = append(list, e)
		}
	}
	n := uint64(len(list))
	number := req.GetNumber()
	switch {
	case req.GetFollow() && number == 0 && req.GetSince() == nil:
		return nil
	case number == 0 || number >= n:
		return list
	case req.GetFirst() || req.GetSince() != nil && !req.GetFollow():
		return list[:number]
	case req.GetSince() != nil:
		return list
	}
	return list[n-number:]
}
