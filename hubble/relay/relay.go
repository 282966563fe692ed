// Package relay serves Hubble's observer API for a whole cluster: it follows
// the peer service of a node, keeps a connection to the observer of each node,
// and merges what they answer in the order of time.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"myelin/internal/tlsfile"
)

// Options configure a relay. Only PeerService and Log have no default.
type Options struct {
	PeerService string // target of peer.Peer, as gRPC reads it: unix:///path or host:port
	Name        string // of the relay itself, in events about nodes
	Version     string // in ServerStatus
	Log         *slog.Logger
	Now         func() time.Time // default time.Now

	// Cluster is the name of the cluster, a part of the name in the peer service's certificate; default "default".
	Cluster string
	// ClientTLS has the certificate for nodes and the peer service, and their CAs; nil: plain TCP. The peer service on
	// a unix socket has no TLS.
	ClientTLS *tlsfile.Source
	// ServerTLS has the certificate for clients, and their CAs; nil: plain TCP.
	ServerTLS *tlsfile.Source

	// Health is where the health service is served by plain TCP too, for probes; nil: nowhere. Serve closes it.
	Health net.Listener

	BufferLen int           // responses that a request keeps of each node for sorting; default 100
	Drain     time.Duration // how long a followed flow waits for earlier ones of other nodes; default 1 s
	Patience  time.Duration // the same without follow; a node that is silent for longer is left out; default 10 s
	Retry     time.Duration // between two attempts to get to a node or the peer service; default 2 s
	Settle    time.Duration // after which nodes that the peer service no longer announces are removed; default 10 s
	Check     time.Duration // between two checks whether a node answers; a check ends after half of it; default 10 s
}

func (o Options) withDefaults() Options {
	set := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	set(&o.Drain, time.Second)
	set(&o.Patience, 10*time.Second)
	set(&o.Retry, 2*time.Second)
	set(&o.Settle, 10*time.Second)
	set(&o.Check, 10*time.Second)
	if o.BufferLen <= 0 {
		o.BufferLen = 100
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Relay is a server of observer.Observer for all nodes.
type Relay struct {
	observerpb.UnimplementedObserverServer
	opts Options
	pool *pool
}

// New returns a relay that does nothing before Serve.
func New(o Options) (*Relay, error) {
	if o.PeerService == "" {
		return nil, errors.New("a relay needs the target of a peer service")
	}
	o = o.withDefaults()
	return &Relay{opts: o, pool: newPool(o)}, nil
}

// healthNames are the names that the health service answers to.
func healthNames() []string { return []string{"", "hubble.server.Observer"} }

// graceful is how long requests may go on when the relay is to stop.
const graceful = time.Second

// Serve serves on l until ctx ends. It closes l.
func (r *Relay) Serve(ctx context.Context, l net.Listener) error {
	var options []grpc.ServerOption
	if r.opts.ServerTLS != nil {
		options = append(options, grpc.Creds(r.opts.ServerTLS.ServerCredentials()))
	}
	server, healthy := grpc.NewServer(options...), health.NewServer()
	observerpb.RegisterObserverServer(server, r)
	healthpb.RegisterHealthServer(server, healthy)

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { r.pool.run(ctx); return nil })
	g.Go(func() error { r.report(ctx, healthy); return nil })
	serve := func(s *grpc.Server, l net.Listener) {
		g.Go(func() error {
			if err := s.Serve(l); err != nil && ctx.Err() == nil {
				return fmt.Errorf("serve on %s: %w", l.Addr(), err)
			}
			return nil
		})
		g.Go(func() error {
			<-ctx.Done()
			healthy.Shutdown()
			force := time.AfterFunc(graceful, s.Stop) // streams with follow never end by themselves
			defer force.Stop()
			s.GracefulStop()
			return nil
		})
	}
	serve(server, l)
	if r.opts.Health != nil {
		probes := grpc.NewServer()
		healthpb.RegisterHealthServer(probes, healthy)
		serve(probes, r.opts.Health)
	}
	err := g.Wait()
	r.pool.close()
	return err
}

// report keeps the health service's answer: the relay serves while a node may answer.
func (r *Relay) report(ctx context.Context, healthy *health.Server) {
	tick := time.NewTicker(max(r.opts.Check/2, time.Millisecond))
	defer tick.Stop()
	for {
		peers, changed := r.pool.list()
		state := healthpb.HealthCheckResponse_NOT_SERVING
		for _, p := range peers {
			if p.available() {
				state = healthpb.HealthCheckResponse_SERVING
			}
		}
		for _, name := range healthNames() {
			healthy.SetServingStatus(name, state)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
		}
	}
}
