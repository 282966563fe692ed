package hubble

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	peerpb "github.com/cilium/cilium/api/v1/peer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"myelin/api"
	"myelin/internal/tlsfile"
)

// healthService is the name under which clients of Hubble ask for the server's health.
const healthService = "hubble.server.Observer"

// Delays between attempts to listen.
const (
	retryMin = time.Second
	retryMax = 30 * time.Second
)

// Server serves the API on a unix socket, and by TCP. All exported fields are set before Start.
type Server struct {
	Log      *slog.Logger
	Observer observerpb.ObserverServer
	Peers    peerpb.PeerServer
	// Socket is the path of the unix socket, of mode 0600; empty: none.
	Socket string
	// Address is where to listen by TCP, "host:port" or ":port"; empty: nowhere.
	Address string
	// TLS has the TCP listener's certificate, and the CA of its clients; nil: no TLS.
	TLS *tlsfile.Source

	ends   []*end
	cancel context.CancelFunc
	group  sync.WaitGroup
}

// Listener is an address of a server.
type Listener struct {
	Address string
	// Err is why nothing listens there, nil if the server does.
	Err error
}

// end is one listener.
type end struct {
	address string
	listen  func() (net.Listener, *grpc.Server, error)
	mu      sync.Mutex
	grpc    *grpc.Server
	err     error
}

// Start listens. What can't be had now is tried again until Stop, with growing delays: a port or certificate that is
// missing is no reason to leave pods without a network.
func (s *Server) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	if s.Socket != "" {
		s.ends = append(s.ends, &end{address: "unix://" + s.Socket, listen: s.listenUnix})
	}
	if s.Address != "" {
		s.ends = append(s.ends, &end{address: s.Address, listen: s.listenTCP})
	}
	for _, e := range s.ends {
		ready := make(chan struct{})
		s.group.Go(func() { s.keep(ctx, e, sync.OnceFunc(func() { close(ready) })) })
		<-ready
	}
}

// keep serves an end until ctx ends. tried is called after the first attempt.
func (s *Server) keep(ctx context.Context, e *end, tried func()) {
	delay := retryMin
	for ctx.Err() == nil {
		listener, server, err := e.listen()
		e.set(server, err)
		tried()
		if err == nil {
			delay = retryMin
			stop := context.AfterFunc(ctx, server.Stop)
			err = server.Serve(listener)
			stop()
			if ctx.Err() != nil {
				return
			}
			e.set(nil, err)
		}
		s.Log.Warn("Hubble's API is not served, and tried again", "address", e.address, "error", err)
		select {
		case <-time.After(delay):
		case <-ctx.Done():
		}
		delay = min(2*delay, retryMax)
	}
}

func (e *end) set(server *grpc.Server, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.grpc, e.err = server, err
}

func (s *Server) listenUnix() (net.Listener, *grpc.Server, error) {
	l, err := api.Listen(s.Socket)
	if err != nil {
		return nil, nil, err
	}
	return l, s.newServer(), nil
}

func (s *Server) listenTCP() (net.Listener, *grpc.Server, error) {
	var options []grpc.ServerOption
	if s.TLS != nil {
		if err := s.TLS.Check(); err != nil {
			return nil, nil, err
		}
		options = append(options, grpc.Creds(s.TLS.ServerCredentials()))
	}
	l, err := net.Listen("tcp", s.Address)
	if err != nil {
		return nil, nil, err
	}
	return l, s.newServer(options...), nil
}

func (s *Server) newServer(options ...grpc.ServerOption) *grpc.Server {
	g := grpc.NewServer(append(options, grpc.ForceServerCodecV2(newCodec()))...)
	observerpb.RegisterObserverServer(g, s.Observer)
	peerpb.RegisterPeerServer(g, s.Peers)
	h := health.NewServer() // "" is being served from the beginning
	h.SetServingStatus(healthService, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(g, h)
	return g
}

// Listeners are all that the server is to listen on.
func (s *Server) Listeners() []Listener {
	var list []Listener
	for _, e := range s.ends {
		e.mu.Lock()
		err := e.err
		if e.grpc == nil && err == nil {
			err = errors.New("stopped")
		}
		e.mu.Unlock()
		list = append(list, Listener{e.address, err})
	}
	return list
}

// Stop ends all calls and waits for them.
func (s *Server) Stop() {
	if s.cancel != nil {
		s.cancel()
		s.group.Wait()
	}
}
