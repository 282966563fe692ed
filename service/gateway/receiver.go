package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/statedb"
	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	apiv1 "myelin/api/v1"
)

// Bounds of what clients can take of this node.
const (
	maxConnections = 64
	maxStreams     = 32      // of all clients
	maxMessage     = 1 << 18 // bytes: more than a batch of IPv6 flows has
	receiveRate    = 1 << 18 // flows a second and stream
	maxNodeName    = 253
	handshakeTime  = 10 * time.Second
)

// changeDelay is how long changes of Services are collected before peers are asked for flows that were refused.
const changeDelay = time.Second

// receiver takes the flows of peers.
type receiver struct {
	apiv1.UnimplementedPeersServer
	gateway *Gateway

	mu      sync.Mutex
	err     error // why peers cannot connect
	streams map[*stream]bool
}

// stream is a peer that sends flows.
type stream struct {
	from     netip.AddrPort
	since    time.Time
	received atomic.Uint64
	results  counts
	node     atomic.Pointer[string]
	draining atomic.Bool
	sending  sync.Mutex // acknowledgements
}

// run listens until ctx ends. An address that another process has is tried again.
func (s *receiver) run(ctx context.Context) error {
	for retry := connectRetryMin; ctx.Err() == nil; retry = min(2*retry, connectRetryMax) {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.gateway.Log.Error("peers cannot connect", "error", err)
		s.setError(err)
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
	return nil
}

func (s *receiver) setError(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *receiver) serve(ctx context.Context) error {
	config := &s.gateway.Config.Myelin.Gateway
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", config.ListenAddress)
	if err != nil {
		return fmt.Errorf("listen for peers: %w", err)
	}
	if !config.TLS() {
		listener = &peerListener{listener, peerHosts(config.PeerAddresses())}
	}
	server := grpc.NewServer(
		grpc.Creds(serverCredentials(config)), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxConcurrentStreams(1),
		grpc.ConnectionTimeout(handshakeTime), grpc.MaxHeaderListSize(1<<13),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, MaxConnectionIdle: handshakeTime,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveTime / 2}),
	)
	apiv1.RegisterPeersServer(server, s)
	defer context.AfterFunc(ctx, server.Stop)()
	s.setError(nil)
	if err := server.Serve(netutil.LimitListener(listener, maxConnections)); err != nil {
		return fmt.Errorf("serve peers: %w", err)
	}
	return nil
}

func peerHosts(list []netip.AddrPort) map[netip.Addr]bool {
	hosts := map[netip.Addr]bool{}
	for _, a := range list {
		hosts[a.Addr()] = true
	}
	return hosts
}

type peerStream = grpc.BidiStreamingServer[apiv1.FlowBatch, apiv1.FlowBatchAcknowledgement]

// Synchronise implements apiv1.PeersServer.
func (s *receiver) Synchronise(p peerStream) error {
	x := &stream{since: time.Now()}
	if from, ok := peer.FromContext(p.Context()); ok {
		if a, ok := from.Addr.(*net.TCPAddr); ok {
			x.from = netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), a.AddrPort().Port())
		}
	}
	if !s.add(x) {
		return status.Errorf(codes.ResourceExhausted, "there are %d streams of peers already", maxStreams)
	}
	defer s.remove(x)
	if err := p.SendHeader(nil); err != nil {
		return err
	}
	go s.followServices(p, x)
	limit := rate.NewLimiter(receiveRate, maxBatch)
	for {
		batch, err := p.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(batch.GetFlows()) > maxBatch {
			return status.Errorf(codes.InvalidArgument, "%d flows in a message, want at most %d",
				len(batch.GetFlows()), maxBatch)
		}
		if err := limit.WaitN(p.Context(), len(batch.GetFlows())); err != nil {
			return status.FromContextError(err).Err()
		}
		if err := s.take(p, x, batch); err != nil {
			return err
		}
	}
}

// take installs a batch and acknowledges it.
func (s *receiver) take(p peerStream, x *stream, batch *apiv1.FlowBatch) error {
	if name := batch.GetNode(); len(name) <= maxNodeName {
		x.node.Store(&name)
	}
	x.draining.Store(batch.GetDraining())
	if err := s.gateway.installer.install(batch.GetFlows(), &x.results); err != nil {
		s.gateway.Log.Warn("flows of a peer are missing", "peer", x.from, "error", err)
	}
	return x.send(p, &apiv1.FlowBatchAcknowledgement{
		Flows: x.received.Add(uint64(len(batch.GetFlows()))), Counts: x.results.messages(),
	})
}

func (x *stream) send(p peerStream, ack *apiv1.FlowBatchAcknowledgement) error {
	x.sending.Lock()
	defer x.sending.Unlock()
	return p.Send(ack)
}

// followServices asks the peer for all flows again when Services have changed after some were refused.
func (s *receiver) followServices(p peerStream, x *stream) {
	for {
		txn := s.gateway.DB.ReadTxn()
		changes := statedb.NewWatchSet()
		_, frontends := s.gateway.Services.Frontends.AllWatch(txn)
		_, backends := s.gateway.Services.Backends.AllWatch(txn)
		changes.Add(frontends, backends)
		if _, err := changes.Wait(p.Context(), changeDelay); err != nil {
			return
		}
		if x.results.refused() == 0 {
			continue
		}
		x.results.reset()
		if x.send(p, &apiv1.FlowBatchAcknowledgement{Resend: true}) != nil {
			return
		}
	}
}

func (s *receiver) add(x *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.streams) >= maxStreams {
		return false
	}
	s.streams[x] = true
	return true
}

func (s *receiver) remove(x *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, x)
}

// list are the peers that send flows, by address, and why others cannot.
func (s *receiver) list() ([]*stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*stream
	for x := range s.streams {
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b *stream) int { return a.from.Compare(b.from) })
	return all, s.err
}
