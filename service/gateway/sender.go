package gateway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	apiv1 "myelin/api/v1"
)

// Delays between attempts to connect to a peer.
const (
	connectRetryMin = time.Second
	connectRetryMax = 30 * time.Second
	connectTimeout  = 10 * time.Second
)

// Keepalive finds a peer that has crashed within keepaliveTime and keepaliveTimeout.
const (
	keepaliveTime    = 10 * time.Second // the least that gRPC takes
	keepaliveTimeout = 5 * time.Second
)

// Bounds of what is on its way to a peer: queueLength messages that are not sent, windowLength that are not
// acknowledged.
const (
	queueLength  = 16
	windowLength = 64
)

// idleInterval is how long nothing is sent at most.
const idleInterval = 5 * time.Second

// maxAcknowledgement bounds a message of a peer, in bytes.
const maxAcknowledgement = 1 << 16

// resendInterval is the least time between two resends of all flows that a peer requests.
const resendInterval = 10 * time.Second

// session is a connection to a peer.
type session struct {
	queue  chan []*apiv1.PeerFlow
	walked atomic.Bool  // behind counts all flows
	behind atomic.Int64 // flows that the peer has not acknowledged
	resend atomic.Bool  // the peer asks for all flows
	asked  atomic.Int64 // when that was granted last, in Unix nanoseconds
}

// takeResend reports whether the peer is to get all flows again. Only the walk calls it.
func (s *session) takeResend() bool {
	if !s.resend.Load() || time.Since(time.Unix(0, s.asked.Load())) < resendInterval {
		return false
	}
	s.resend.Store(false)
	s.asked.Store(time.Now().UnixNano())
	return true
}

// sender connects to a peer and sends flows to it.
type sender struct {
	gateway *Gateway
	address netip.AddrPort
	session atomic.Pointer[session] // nil: not connected
	sent    atomic.Uint64           // acknowledged flows

	mu      sync.Mutex
	stop    context.CancelCauseFunc // ends the connection
	own     bool                    // the address is this node's
	err     error
	since   time.Time // of the connection, or of the first error
	results map[apiv1.PeerFlowResult]uint64
}

// run connects again and again until ctx ends.
func (s *sender) run(ctx context.Context) error {
	retry := connectRetryMin
	for ctx.Err() == nil {
		if s.checkOwn() {
			retry = connectRetryMax
		} else if err := s.connect(ctx); ctx.Err() == nil {
			if s.session.Load() != nil { // until now
				retry = connectRetryMin
			}
			s.failed(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry/2 + rand.N(retry)):
		}
		retry = min(2*retry, connectRetryMax)
	}
	return nil
}

// checkOwn reports whether the peer is this node: all load balancers can have the same configuration.
func (s *sender) checkOwn() bool {
	own := slices.Contains(ownAddresses(s.gateway.DB.ReadTxn(), &s.gateway.Params), s.address.Addr())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = own
	return own
}

func (s *sender) failed(err error) {
	s.session.Store(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.since = time.Now()
		s.gateway.Log.Warn("a peer gets no flows", "peer", s.address, "error", err)
	}
	s.err = err
}

// restart connects anew: the peer gets all flows again, and what it refuses is counted from then on.
func (s *sender) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		s.stop(errors.New("connecting anew"))
	}
}

func (s *sender) connected(session *session) {
	s.mu.Lock()
	s.err, s.since, s.results = nil, time.Now(), nil
	s.mu.Unlock()
	s.gateway.Log.Info("a peer gets the flows of this node", "peer", s.address)
	s.session.Store(session)
	s.gateway.walk.poke()
}

// connect sends until the connection ends.
func (s *sender) connect(ctx context.Context) error {
	credentials, err := clientCredentials(&s.gateway.Config.Myelin.Gateway)
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient("passthrough:///"+s.address.String(),
		grpc.WithTransportCredentials(credentials), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAcknowledgement)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}))
	if err != nil {
		return fmt.Errorf("connect to peer %s: %w", s.address, err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	s.stop = cancel
	s.mu.Unlock()
	err = s.stream(ctx, apiv1.NewPeersClient(conn), cancel)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return peerError(err)
}

// stream sends until the stream ends. cancel ends ctx.
func (s *sender) stream(ctx context.Context, client apiv1.PeersClient, cancel context.CancelCauseFunc) error {
	late := time.AfterFunc(connectTimeout, func() { cancel(errors.New("no answer in time")) })
	defer late.Stop()
	stream, err := client.Synchronise(ctx)
	if err == nil {
		_, err = stream.Header() // the peer has accepted the stream
	}
	if err != nil {
		return err
	}
	late.Stop()
	x := &session{queue: make(chan []*apiv1.PeerFlow, queueLength)}
	x.asked.Store(time.Now().UnixNano())
	s.connected(x)
	return s.exchange(ctx, stream, x)
}

// peerError is an error of gRPC without what says nothing of peers: its code, and what failed within gRPC.
func peerError(err error) error {
	st, ok := status.FromError(err)
	if !ok || err == nil {
		return err
	}
	text := st.Message()
	if _, reason, ok := strings.Cut(text, `desc = "`); ok {
		text = strings.TrimSuffix(strings.TrimPrefix(reason, "transport: "), `"`)
	}
	return errors.New(strings.TrimPrefix(text, "Error while dialing: "))
}

type flowStream = grpc.BidiStreamingClient[apiv1.FlowBatch, apiv1.FlowBatchAcknowledgement]

// exchange sends batches, and takes acknowledgements, until one of both fails.
func (s *sender) exchange(ctx context.Context, stream flowStream, x *session) error {
	window := make(chan int, windowLength) // the numbers of flows in batches that are not acknowledged
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for {
			ack, err := stream.Recv()
			if err != nil {
				return err
			}
			if err := s.acknowledged(ack, x, window); err != nil {
				return err
			}
		}
	})
	g.Go(func() error { return s.send(ctx, stream, x, window) })
	return g.Wait()
}

func (s *sender) send(ctx context.Context, stream flowStream, x *session, window chan<- int) error {
	idle := time.NewTicker(idleInterval)
	defer idle.Stop()
	for {
		var batch []*apiv1.PeerFlow
		select {
		case <-ctx.Done():
			return ctx.Err()
		case batch = <-x.queue:
		case <-idle.C: // nothing but whether this node is draining
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case window <- len(batch):
		}
		if err := stream.Send(&apiv1.FlowBatch{
			Node: s.gateway.Config.Myelin.NodeName, Flows: batch, Draining: s.gateway.Draining(),
		}); err != nil {
			return nil // Recv has the reason
		}
	}
}

// acknowledged counts what a peer has received.
func (s *sender) acknowledged(ack *apiv1.FlowBatchAcknowledgement, x *session, window <-chan int) error {
	if ack.GetResend() {
		x.resend.Store(true)
		return nil
	}
	select {
	case n := <-window:
		x.behind.Add(int64(-n))
		s.sent.Add(uint64(n))
	default:
		return errors.New("it acknowledges more than was sent")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.results = map[apiv1.PeerFlowResult]uint64{}
	for _, c := range ack.GetCounts() {
		if _, known := apiv1.PeerFlowResult_name[int32(c.GetResult())]; known {
			s.results[c.GetResult()] = c.GetFlows()
		}
	}
	return nil
}
