package agent

import (
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	"myelin/api"
	apiv1 "myelin/api/v1"
	"myelin/service/gateway"
	"myelin/service/serviceapi"
)

// server is the API on the unix socket.
type server struct {
	agent    *agent
	cni      *lateCNI
	services *serviceapi.Server
	grpc     *grpc.Server
	failed   chan error
	stopping chan struct{} // closed when streams must end
	late     *time.Timer

	mu       sync.Mutex
	listener net.Listener // nil: not open yet
	closed   bool
}

// openLate is when the socket opens of an agent that is starting still, so that
// it can be asked what it is at.
const openLate = 30 * time.Second

// maxRequest bounds a request in bytes: one may have a recording of flows.
const maxRequest = 64 << 20

func newServer(a *agent) *server {
	s := &server{agent: a, cni: &lateCNI{agent: a}, failed: make(chan error, 1), stopping: make(chan struct{})}
	s.grpc = grpc.NewServer(grpc.ChainUnaryInterceptor(a.metrics.observe, s.gate),
		grpc.StreamInterceptor(s.gateStream), grpc.MaxRecvMsgSize(maxRequest))
	apiv1.RegisterCNIServer(s.grpc, s.cni)
	s.services = &serviceapi.Server{DB: a.DB, Manager: a.services.api, Stopping: s.stopping}
	apiv1.RegisterServicesServer(s.grpc, s.services)
	apiv1.RegisterGatewayServer(s.grpc, &gateway.Server{Gateway: a.balancer.gateway.Load, Stopping: s.stopping})
	apiv1.RegisterAgentServer(s.grpc, &answers{agent: a, stopping: s.stopping})
	s.late = time.AfterFunc(openLate, s.openEarly)
	return s
}

func (s *server) socket() string { return filepath.Join(s.agent.Config.Myelin.RunDir, "myelin.sock") }

// open listens and serves, if it does not yet.
func (s *server) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil || s.closed {
		return nil
	}
	listener, err := api.Listen(s.socket())
	if err != nil {
		return fmt.Errorf("open API socket: %w", err)
	}
	s.listener = listener
	go func() {
		if err := s.grpc.Serve(listener); err != nil {
			s.failed <- fmt.Errorf("serve API on %s: %w", s.socket(), err)
		}
	}()
	return nil
}

// openEarly opens the sockets of an agent that is not ready yet: a client that can connect finds that the agent is
// ready, or is told why it is not.
func (s *server) openEarly() {
	if err := s.open(); err != nil {
		s.agent.Log.Error("the API is not available while the agent starts", "error", err)
	}
}

// graceful bounds how long running requests may take at a stop.
const graceful = 2 * time.Second

func (s *server) stop() {
	s.late.Stop()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	close(s.stopping)
	stopped := time.AfterFunc(graceful, s.grpc.Stop)
	s.grpc.GracefulStop()
	stopped.Stop()
}
