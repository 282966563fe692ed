package gateway

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	apiv1 "myelin/api/v1"
)

// progressInterval is the time between two messages on the progress of draining.
const progressInterval = time.Second

// Server implements apiv1.GatewayServer.
type Server struct {
	apiv1.UnimplementedGatewayServer
	// Gateway returns nil if the node is not a standalone load balancer.
	Gateway func() *Gateway
	// Stopping is closed when streams must end.
	Stopping <-chan struct{}
}

func (s *Server) gateway() (*Gateway, error) {
	if g := s.Gateway(); g != nil {
		return g, nil
	}
	return nil, status.Error(codes.FailedPrecondition,
		"loadBalancer.standalone is false: only a load balancer without a cluster can be drained")
}

// Drain implements apiv1.GatewayServer.
func (s *Server) Drain(_ *apiv1.DrainRequest, stream grpc.ServerStreamingServer[apiv1.DrainProgress]) error {
	g, err := s.gateway()
	if err != nil {
		return err
	}
	began := time.Now()
	if _, already := g.Params.Drain.Since(); !already {
		if err := g.Params.Drain.Begin(began); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		g.Log.Info("draining: the health endpoint fails from now on")
		for _, s := range g.senders {
			s.restart()
		}
	}
	g.walk.poke()
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for {
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-s.Stopping:
			return status.Error(codes.Unavailable, "the agent stops; the node stays drained")
		case <-tick.C:
		}
		if _, draining := g.Params.Drain.Since(); !draining {
			return status.Error(codes.Aborted, "the node was resumed")
		}
		p := g.progress(began)
		if p == nil {
			continue
		}
		if err := stream.Send(p); err != nil || p.GetDone() {
			return err
		}
	}
}

// progress is nil if there was no walk since draining began. The node is not drained before it had the time to see
// that flows are not active any more.
func (g *Gateway) progress(began time.Time) *apiv1.DrainProgress {
	flows := g.Flows()
	if flows == nil || flows.At.Before(began) {
		return nil
	}
	p := &apiv1.DrainProgress{Flows: uint64(flows.Own), Active: uint64(flows.Active)}
	p.Unsynchronised = uint64(flows.Local)
	peers := 0
	for _, row := range g.Peers() {
		if row.Direction != To || row.State == ThisNode {
			continue
		}
		peers++
		p.Unsynchronised = max(p.GetUnsynchronised(), uint64(flows.Local)+row.refusals())
		p.Peers = append(p.Peers, &apiv1.PeerProgress{
			Address: row.Address, Connected: row.State == Connected, Behind: uint64(row.Behind),
		})
	}
	if peers == 0 {
		p.Unsynchronised = p.GetFlows()
	}
	p.Done = p.GetFlows() == 0 || p.GetActive() == 0 && g.Synchronised()
	return p
}

// Resume implements apiv1.GatewayServer.
func (s *Server) Resume(context.Context, *apiv1.ResumeRequest) (*apiv1.ResumeResponse, error) {
	g, err := s.gateway()
	if err != nil {
		return nil, err
	}
	was, err := g.Params.Drain.End()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if was {
		g.Log.Info("resumed: the health endpoint says ok")
	}
	return &apiv1.ResumeResponse{WasDraining: was}, nil
}
