package agent

import (
	"context"
	"fmt"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/protobuf/types/known/timestamppb"

	"myelin/endpoint"
	"myelin/policy"
	"myelin/table"
)

// agentEvents tells Hubble's clients that the agent has started, and what becomes of endpoints and policies.
func (h *hubbleFeature) agentEvents(ctx context.Context) error {
	a, events := h.agent, h.observer.Agent
	events.Add(time.Now(), &flowpb.AgentEvent{
		Type: flowpb.AgentEventType_AGENT_STARTED,
		Notification: &flowpb.AgentEvent_AgentStart{
			AgentStart: &flowpb.TimeNotification{Time: timestamppb.New(a.began)},
		},
	})
	txn := a.DB.WriteTxn(a.endpoints.table, a.policies.tables.Policies)
	endpoints, err1 := a.endpoints.table.Changes(txn)
	policies, err2 := a.policies.tables.Policies.Changes(txn)
	txn.Commit()
	for _, err := range []error{err1, err2} {
		if err != nil {
			return fmt.Errorf("follow endpoints and policies: %w", err)
		}
	}
	known := map[uint16]time.Time{} // endpoints by slot: when they were created
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		r := a.DB.ReadTxn()
		changes, more := endpoints.Next(r)
		for c := range changes {
			e := c.Object
			created, seen := known[e.ID]
			switch {
			case c.Deleted && seen:
				delete(known, e.ID)
				events.Add(time.Now(), h.endpointEvent(flowpb.AgentEventType_ENDPOINT_DELETED, e))
			case !c.Deleted && (!seen || !created.Equal(e.CreatedAt)):
				known[e.ID] = e.CreatedAt
				events.Add(time.Now(), h.endpointEvent(flowpb.AgentEventType_ENDPOINT_CREATED, e))
			}
		}
		objects, moreObjects := policies.Next(r)
		for c := range objects {
			events.Add(time.Now(), policyEvent(c.Object, c.Deleted))
		}
		w.Add(more, moreObjects)
		return nil
	})
}

func (h *hubbleFeature) endpointEvent(kind flowpb.AgentEventType, e *endpoint.Endpoint) *flowpb.AgentEvent {
	n := &flowpb.EndpointUpdateNotification{Id: uint64(e.ID), PodName: e.Pod, Namespace: e.Namespace}
	txn := h.agent.DB.ReadTxn()
	if id, ok := h.agent.identities.all.Pod(txn, e.Namespace, e.Pod); ok {
		n.Labels = id.Labels
	}
	return &flowpb.AgentEvent{Type: kind, Notification: &flowpb.AgentEvent_EndpointUpdate{EndpointUpdate: n}}
}

func policyEvent(o *policy.Object, deleted bool) *flowpb.AgentEvent {
	kind := flowpb.AgentEventType_POLICY_UPDATED
	if deleted {
		kind = flowpb.AgentEventType_POLICY_DELETED
	}
	rules := 0
	for _, s := range o.Specs {
		rules += len(s.Rules)
	}
	return &flowpb.AgentEvent{Type: kind, Notification: &flowpb.AgentEvent_PolicyUpdate{
		PolicyUpdate: &flowpb.PolicyUpdateNotification{Labels: policyLabels(o.Ref), RuleCount: int64(rules)},
	}}
}
