package main

import (
	"context"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	relaypb "github.com/cilium/cilium/api/v1/relay"
)

// ServerStatus says how much was sent.
func (l *load) ServerStatus(context.Context, *observerpb.ServerStatusRequest) (*observerpb.ServerStatusResponse,
	error,
) {
	up := time.Since(l.begin)
	return &observerpb.ServerStatusResponse{Version: "load", UptimeNs: uint64(up), FlowsRate: float64(l.rate),
		SeenFlows: uint64(up.Seconds() * float64(l.rate))}, nil
}

// GetNodes lists the server alone.
func (l *load) GetNodes(context.Context, *observerpb.GetNodesRequest) (*observerpb.GetNodesResponse, error) {
	return &observerpb.GetNodesResponse{Nodes: []*observerpb.Node{{Name: "default/load", Version: "load",
		State: relaypb.NodeState_NODE_CONNECTED, UptimeNs: uint64(time.Since(l.begin))}}}, nil
}
