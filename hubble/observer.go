package hubble

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	relaypb "github.com/cilium/cilium/api/v1/relay"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"myelin/event"
)

// Source writes events into the ring when they are wanted.
type Source interface {
	// Pull writes the events so far.
	Pull()
	// Poll writes the events so far if it can be done at once. Busy followers call it.
	Poll()
	// Follow has events written as they happen, until stop is called.
	Follow() (stop func())
}

// Observer serves the flows of a ring. All fields are set before it is used.
type Observer struct {
	observerpb.UnimplementedObserverServer

	Ring      *Ring
	Source    Source
	Converter *Converter
	// Connections reports what connections of pods carry; nil: nothing does.
	Connections *Connections
	Agent       *AgentEvents
	// Sizing has the ring follow the rate of flows; nil: its capacity is fixed.
	Sizing *Sizing
	// Interval is how often the datapath reports a flow that goes on.
	Interval time.Duration
	// Now is the clock.
	Now func() time.Time
	// Self is this node as GetNodes has it: name, version, address and TLS.
	Self func() *observerpb.Node

	shared shared
	began  time.Time
	rate   rate
}

// Begin notes when the observer was started.
func (o *Observer) Begin() {
	o.Source.Pull()
	o.began = o.Now()
	o.rate.add(o.began, o.Ring.Flows())
}

// Sample is called every few seconds, for the rate of flows, and for the size of the ring, which follows the highest
// rate of the last minute.
func (o *Observer) Sample() {
	o.Source.Pull()
	o.rate.add(o.Now(), o.Ring.Flows())
	if o.Sizing != nil {
		o.Ring.resize(o.Sizing.capacity(o.rate.peak()))
	}
}

// Rate is how many flows were seen in a second, the mean of the last minute.
func (o *Observer) Rate() float64 { return o.rate.perSecond(o.Now(), o.Ring.Flows()) }

// Kept is how many flows can be read now.
func (o *Observer) Kept() uint64 {
	o.Source.Pull()
	return o.Ring.Len()
}

func (o *Observer) node() *Node { return &o.Converter.node }

// ServerStatus implements observerpb.ObserverServer.
func (o *Observer) ServerStatus(context.Context, *observerpb.ServerStatusRequest) (*observerpb.ServerStatusResponse,
	error,
) {
	return &observerpb.ServerStatusResponse{
		NumFlows: o.Kept(), MaxFlows: o.Ring.Capacity(), SeenFlows: o.Ring.Flows(), UptimeNs: o.uptime(),
		NumConnectedNodes: wrapperspb.UInt32(1), NumUnavailableNodes: wrapperspb.UInt32(0),
		Version: o.node().Version, FlowsRate: o.Rate(),
	}, nil
}

func (o *Observer) uptime() uint64 { return uint64(max(0, o.Now().Sub(o.began))) }

// GetNodes implements observerpb.ObserverServer: an agent knows of its own flows alone, a relay of all.
func (o *Observer) GetNodes(context.Context, *observerpb.GetNodesRequest) (*observerpb.GetNodesResponse, error) {
	n := o.Self()
	n.State = relaypb.NodeState_NODE_CONNECTED
	n.UptimeNs, n.NumFlows, n.MaxFlows, n.SeenFlows = o.uptime(), o.Kept(), o.Ring.Capacity(), o.Ring.Flows()
	return &observerpb.GetNodesResponse{Nodes: []*observerpb.Node{n}}, nil
}

// GetNamespaces implements observerpb.ObserverServer: the namespaces of the flows that are kept.
func (o *Observer) GetNamespaces(ctx context.Context, _ *observerpb.GetNamespacesRequest,
) (*observerpb.GetNamespacesResponse, error) {
	o.Source.Pull()
	addrs := map[netip.Addr]bool{}
	var raw event.Raw
	for pos, end := o.Ring.Oldest(), o.Ring.Next(); pos < end && ctx.Err() == nil; pos++ {
		if !o.Ring.Read(pos, &raw) || raw.Type == lostEntry {
			continue
		}
		v := viewOf(&raw)
		o.Converter.findSource(&raw, &v)
		addrs[v.src.Addr()], addrs[v.dst.Addr()] = true, true
	}
	seen := map[[2]string]bool{}
	var list []*observerpb.Namespace
	for a := range addrs {
		e := o.Converter.endpoint(a)
		key := [2]string{e.GetClusterName(), e.GetNamespace()}
		if key[1] == "" || seen[key] {
			continue
		}
		seen[key] = true
		list = append(list, &observerpb.Namespace{Cluster: key[0], Namespace: key[1]})
	}
	slices.SortFunc(list, func(a, b *observerpb.Namespace) int {
		return cmp.Or(strings.Compare(a.GetCluster(), b.GetCluster()),
			strings.Compare(a.GetNamespace(), b.GetNamespace()))
	})
	return &observerpb.GetNamespacesResponse{Namespaces: list}, nil
}

// GetDebugEvents implements observerpb.ObserverServer. The datapath has none: the stream is empty, and lasts as long as
// the client if it follows.
func (o *Observer) GetDebugEvents(req *observerpb.GetDebugEventsRequest,
	stream observerpb.Observer_GetDebugEventsServer,
) error {
	if req.GetFollow() {
		<-stream.Context().Done()
	}
	return nil
}
