package agent

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	apiv1 "myelin/api/v1"
	"myelin/cni"
)

// cniPrefix begins the names of the service CNI's methods.
const cniPrefix = "/myelin.v1.CNI/"

// gate keeps requests of the services CNI, Services and Gateway from an agent that is starting. They wait if the start
// will be over soon, and are refused with the reason if its end is not known. A DEL never waits: its second try comes
// under the queue's lock, which the agent needs to get ready.
func (s *server) gate(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if isServices(info.FullMethod) {
		if err := s.gateServices(ctx); err != nil {
			return nil, err
		}
	}
	if isGateway(info.FullMethod) {
		if err := s.started(ctx); err != nil {
			return nil, err
		}
	}
	command, isCNI := strings.CutPrefix(info.FullMethod, cniPrefix)
	p := &s.agent.progress
	if !isCNI || p.isOpen() {
		return next(ctx, req)
	}
	if command == "Del" {
		return nil, status.Error(codes.Unavailable, errStarting.Error())
	}
	if err := p.wait(ctx, s.stopping); err != nil {
		return nil, notYet(command, err.Error())
	}
	return next(ctx, req)
}

// notYet is the CNI error of an agent that can't take pods now.
func notYet(command, why string) error {
	e := &apiv1.CNIError{
		Code: uint32(types.ErrTryAgainLater), Msg: "the node's agent can't take pods yet", Details: why,
	}
	if command == "Status" {
		e.Code = uint32(types.ErrPluginNotAvailable)
	}
	text := status.New(codes.FailedPrecondition, fmt.Sprintf("%s: %s", e.GetMsg(), why))
	if s, err := text.WithDetails(e); err == nil {
		return s.Err()
	}
	return text.Err()
}

// lateCNI is the service CNI from the first moment on. What it answers with is
// there when the gate is open.
type lateCNI struct {
	apiv1.UnimplementedCNIServer
	agent *agent
	real  atomic.Pointer[cni.Server]
}

// Add implements apiv1.CNIServer. A node whose podCIDRs are gone may get others.
func (c *lateCNI) Add(ctx context.Context, r *apiv1.CNIAddRequest) (*apiv1.CNIAddResponse, error) {
	if p := c.agent.own.cniProblem(); p != nil {
		return nil, notYet("Add", p.Reason)
	}
	return c.real.Load().Add(ctx, r)
}

// Del implements apiv1.CNIServer.
func (c *lateCNI) Del(ctx context.Context, r *apiv1.CNIDelRequest) (*apiv1.CNIDelResponse, error) {
	return c.real.Load().Del(ctx, r)
}

// Check implements apiv1.CNIServer.
func (c *lateCNI) Check(ctx context.Context, r *apiv1.CNICheckRequest) (*apiv1.CNICheckResponse, error) {
	return c.real.Load().Check(ctx, r)
}

// Status implements apiv1.CNIServer.
func (c *lateCNI) Status(ctx context.Context, r *apiv1.CNIStatusRequest) (*apiv1.CNIStatusResponse, error) {
	return c.real.Load().Status(ctx, r)
}

// GC implements apiv1.CNIServer.
func (c *lateCNI) GC(ctx context.Context, r *apiv1.CNIGCRequest) (*apiv1.CNIGCResponse, error) {
	return c.real.Load().GC(ctx, r)
}
