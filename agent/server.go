package agent

import (
	"fmt"
	"net"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"myelin/api"
	apiv1 "myelin/api/v1"
	"myelin/cni"
)

// server is the API on the unix socket.
type server struct {
	agent    *Agent
	grpc     *grpc.Server
	listener net.Listener
	failed   chan error
	stopping chan struct{} // closed when streams must end
}

func newServer(a *Agent) *server {
	s := &server{
		agent: a, grpc: grpc.NewServer(grpc.UnaryInterceptor(a.metrics.observe)), failed: make(chan error, 1), stopping: make(chan struct{}),
	}
	cni.NewServer(a.log, a.manager, nil).Register(s.grpc)
	apiv1.RegisterAgentServer(s.grpc, &service{agent: a, stopping: s.stopping})
	return s
}

func (s *server) socket() string { return filepath.Join(s.agent.config.Myelin.RunDir, "myelin.sock") }

func (s *server) listen() error {
	var err error
	if s.listener, err = api.Listen(s.socket()); err != nil {
		return fmt.Errorf("open API socket: %w", err)
	}
	return nil
}

func (s *server) start() {
	go func() {
		if err := s.grpc.Serve(s.listener); err != nil {
			s.failed <- fmt.Errorf("serve API on %s: %w", s.socket(), err)
		}
	}()
}

// graceful bounds how long running requests may take at a stop.
const graceful = 2 * time.Second

func (s *server) stop() {
	if s.listener == nil {
		return
	}
	close(s.stopping)
	stopped := time.AfterFunc(graceful, s.grpc.Stop)
	s.grpc.GracefulStop()
	stopped.Stop()
}
