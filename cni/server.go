// Package cni is the agent's side of the CNI plugin: the service that the
// plugin calls, the replay of DELs that came while the agent was down, and the
// configuration file that tells the container runtime about the plugin.
package cni

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	apiv1 "myelin/api/v1"
	"myelin/endpoint"
)

// Problem is why the node can't take new pods.
type Problem struct {
	Reason string
	// Limited says that pods that run already may suffer, too.
	Limited bool
}

// Server implements the service CNI over an endpoint.Manager.
type Server struct {
	apiv1.UnimplementedCNIServer
	log     *slog.Logger
	manager *endpoint.Manager
	problem func() *Problem
}

// NewServer makes a server. problem, if set, is asked by STATUS and returns nil
// when the node can take pods; ADD does not ask it.
func NewServer(log *slog.Logger, manager *endpoint.Manager, problem func() *Problem) *Server {
	if problem == nil {
		problem = func() *Problem { return nil }
	}
	return &Server{log: log, manager: manager, problem: problem}
}

// Add implements apiv1.CNIServer.
func (c *Server) Add(ctx context.Context, r *apiv1.CNIAddRequest) (*apiv1.CNIAddResponse, error) {
	begin := time.Now()
	a, err := attachment(r.GetAttachment())
	if err == nil {
		err = checkPod(r)
	}
	if err != nil {
		return nil, c.refuse("ADD", a, err)
	}
	e, err := c.manager.Add(ctx, endpoint.Request{
		ContainerID: a.ContainerID, IfName: a.IfName, NetNS: r.GetNetns(),
		Namespace: r.GetPod().GetNamespace(), Pod: r.GetPod().GetName(), PodUID: r.GetPod().GetUid(),
	})
	if err != nil {
		return nil, c.refuse("ADD", a, err)
	}
	c.log.Info("pod added", "endpoint", e.ID, "pod", e.PodName(), "ipv4", text(e.IPv4), "ipv6", text(e.IPv6),
		"link", e.LinkName, "took", time.Since(begin))
	return &apiv1.CNIAddResponse{Result: result(e, c.manager.Node())}, nil
}

// Del implements apiv1.CNIServer.
func (c *Server) Del(ctx context.Context, r *apiv1.CNIDelRequest) (*apiv1.CNIDelResponse, error) {
	a, err := attachment(r.GetAttachment())
	if err == nil {
		err = c.manager.DeleteAsync(ctx, a)
	}
	if err != nil {
		return nil, c.refuse("DEL", a, err)
	}
	c.log.Info("pod deleted", "attachment", a)
	return &apiv1.CNIDelResponse{}, nil
}

// Check implements apiv1.CNIServer.
func (c *Server) Check(ctx context.Context, r *apiv1.CNICheckRequest) (*apiv1.CNICheckResponse, error) {
	a, err := attachment(r.GetAttachment())
	var e *endpoint.Endpoint
	if err == nil {
		e, err = c.manager.Check(ctx, a)
	}
	if err == nil {
		err = comparePrevious(e, r)
	}
	if err != nil {
		return nil, c.refuse("CHECK", a, checkFailure(err))
	}
	return &apiv1.CNICheckResponse{}, nil
}

// Status implements apiv1.CNIServer.
func (c *Server) Status(context.Context, *apiv1.CNIStatusRequest) (*apiv1.CNIStatusResponse, error) {
	if !c.manager.Ready() {
		return nil, notAvailable(&Problem{Reason: endpoint.ErrNotRestored.Error()})
	}
	if p := c.problem(); p != nil {
		return nil, notAvailable(p)
	}
	return &apiv1.CNIStatusResponse{}, nil
}

// GC implements apiv1.CNIServer.
func (c *Server) GC(ctx context.Context, r *apiv1.CNIGCRequest) (*apiv1.CNIGCResponse, error) {
	var valid []endpoint.Attachment
	for _, v := range r.GetValid() {
		a, err := attachment(v)
		if err != nil {
			// Deleting by a list that was not understood would take pods down.
			return nil, c.refuse("GC", a, err)
		}
		valid = append(valid, a)
	}
	if err := c.manager.GC(ctx, valid); err != nil {
		return nil, c.refuse("GC", endpoint.Attachment{}, err)
	}
	return &apiv1.CNIGCResponse{}, nil
}

// result tells the runtime about the pair: interface 0 is the host's, 1 is the
// pod's, which has the addresses.
func result(e *endpoint.Endpoint, node endpoint.NodeConfig) *apiv1.CNIResult {
	r := &apiv1.CNIResult{Interfaces: []*apiv1.CNIInterface{
		{Name: e.LinkName, Mac: e.LinkMAC.String(), Mtu: uint32(e.MTU)},
		{Name: e.IfName, Mac: e.PodMAC.String(), Mtu: uint32(e.MTU), Sandbox: e.NetNS},
	}}
	for _, addr := range e.Addresses() {
		gateway, everything := node.Gateway4, "0.0.0.0/0"
		if addr.Is6() {
			gateway, everything = node.Gateway6, "::/0"
		}
		r.Addresses = append(r.Addresses, &apiv1.CNIAddress{
			Interface: 1, Prefix: netip.PrefixFrom(addr, addr.BitLen()).String(), Gateway: gateway.String(),
		})
		r.Routes = append(r.Routes, &apiv1.CNIRoute{Prefix: everything, Gateway: gateway.String()})
	}
	return r
}

// text is empty for an address that is not there.
func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
