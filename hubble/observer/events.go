package observer

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"github.com/cilium/statedb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"myelin/endpoint"
	"myelin/internal/table"
	"myelin/policy"
	"myelin/policy/identity"
)

// agentEvents tells Hubble's clients that the agent has started, and what becomes of endpoints, of
// policies and of the identities of addresses.
func (h *Observer) agentEvents(ctx context.Context) error {
	events := h.observer.Agent
	events.Add(time.Now(), &flowpb.AgentEvent{
		Type: flowpb.AgentEventType_AGENT_STARTED,
		Notification: &flowpb.AgentEvent_AgentStart{
			AgentStart: &flowpb.TimeNotification{Time: timestamppb.New(h.Began)},
		},
	})
	endpoints, err1 := changesOf(h.DB, h.state.Endpoints)
	policies, err2 := changesOf(h.DB, h.state.Policies)
	for _, err := range []error{err1, err2} {
		if err != nil {
			return fmt.Errorf("follow endpoints and policies: %w", err)
		}
	}
	others, err := h.followAddresses()
	if err != nil {
		return err
	}
	known := map[uint16]time.Time{} // endpoints by slot: when they were created
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		r := h.DB.ReadTxn()
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
		w.Add(append(others(r), more, moreObjects)...)
		return nil
	})
}

// followAddresses returns a function that adds events of what has changed since its last call: identities of addresses,
// and policies of endpoints that are in the kernel. It returns what is closed at the next change.
func (h *Observer) followAddresses() (func(statedb.ReadTxn) []<-chan struct{}, error) {
	events := h.observer.Agent
	addresses, err := changesOf(h.DB, h.state.Identities.Addresses())
	if err != nil {
		return nil, fmt.Errorf("follow identities of addresses: %w", err)
	}
	var realised statedb.ChangeIterator[*policy.Realised]
	if h.state.Realised != nil {
		if realised, err = changesOf(h.DB, h.state.Realised); err != nil {
			return nil, fmt.Errorf("follow policies of endpoints: %w", err)
		}
	}
	old := map[netip.Addr]uint32{}
	return func(r statedb.ReadTxn) []<-chan struct{} {
		changes, more := addresses.Next(r)
		for c := range changes {
			if e := addressEvent(old, c.Object, c.Deleted); e != nil {
				events.Add(time.Now(), e)
			}
		}
		if realised == nil {
			return []<-chan struct{}{more}
		}
		rows, moreRows := realised.Next(r)
		for c := range rows {
			if !c.Deleted && c.Object.Error == "" && !c.Object.Waiting {
				events.Add(time.Now(), regeneratedEvent(c.Object))
			}
		}
		return []<-chan struct{}{more, moreRows}
	}, nil
}

// changesOf follows a table from its first row on.
func changesOf[T any](db *statedb.DB, t statedb.Table[T]) (statedb.ChangeIterator[T], error) {
	txn := db.WriteTxn(t.(statedb.RWTable[T]))
	defer txn.Commit()
	return t.Changes(txn)
}

// addressEvent returns the event of a change of Cilium's IP cache, nil if the identity is unchanged. It updates old,
// the identities that were reported.
func addressEvent(old map[netip.Addr]uint32, row *identity.Address, deleted bool) *flowpb.AgentEvent {
	before, had := old[row.Addr]
	if !deleted && had && before == row.ID {
		return nil
	}
	n := &flowpb.IPCacheNotification{
		Cidr: netip.PrefixFrom(row.Addr, row.Addr.BitLen()).String(), Identity: row.ID,
	}
	if pod, ok := strings.CutPrefix(row.Owner, "pod "); ok {
		n.Namespace, n.PodName, _ = strings.Cut(pod, "/")
	}
	kind := flowpb.AgentEventType_IPCACHE_UPSERTED
	if deleted {
		kind = flowpb.AgentEventType_IPCACHE_DELETED
		delete(old, row.Addr)
	} else {
		old[row.Addr] = row.ID
		if had {
			n.OldIdentity = wrapperspb.UInt32(before)
		}
	}
	return &flowpb.AgentEvent{Type: kind, Notification: &flowpb.AgentEvent_IpcacheUpdate{IpcacheUpdate: n}}
}

// regeneratedEvent says that the policies of an endpoint are in the kernel.
func regeneratedEvent(row *policy.Realised) *flowpb.AgentEvent {
	return &flowpb.AgentEvent{
		Type: flowpb.AgentEventType_ENDPOINT_REGENERATE_SUCCESS,
		Notification: &flowpb.AgentEvent_EndpointRegenerate{
			EndpointRegenerate: &flowpb.EndpointRegenNotification{Id: uint64(row.Slot)},
		},
	}
}

func (h *Observer) endpointEvent(kind flowpb.AgentEventType, e *endpoint.Endpoint) *flowpb.AgentEvent {
	n := &flowpb.EndpointUpdateNotification{Id: uint64(e.ID), PodName: e.Pod, Namespace: e.Namespace}
	txn := h.DB.ReadTxn()
	if id, ok := h.state.Identities.Pod(txn, e.Namespace, e.Pod); ok {
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
