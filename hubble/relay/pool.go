package relay

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	peerpb "github.com/cilium/cilium/api/v1/peer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"myelin/hubble"
)

// defaultPort is where a node's observer listens if its peer names no port.
const defaultPort = "4244"

// peerServiceName is in the place of a node's name in the server name that is expected of the peer service, whichever
// node answers.
const peerServiceName = "hubble-peer"

// peer is a node and the connection to it. It never changes: a new address makes a new peer.
type peer struct {
	name, address, serverName string
	tls                       bool
	conn                      *grpc.ClientConn
	stop                      context.CancelFunc // of its checks
}

func (p *peer) client() observerpb.ObserverClient { return observerpb.NewObserverClient(p.conn) }

// available reports whether a call may succeed: connections that are not made yet count.
func (p *peer) available() bool {
	state := p.conn.GetState()
	return state != connectivity.TransientFailure && state != connectivity.Shutdown
}

// pool has the nodes that the peer service announces.
type pool struct {
	opts Options

	mu      sync.Mutex
	peers   map[string]*peer
	changed chan struct{} // closed, and made anew, when peers change
	closed  bool
}

func newPool(o Options) *pool {
	return &pool{opts: o, peers: map[string]*peer{}, changed: make(chan struct{})}
}

// list returns all peers by name, and a channel that is closed when there are others.
func (p *pool) list() ([]*peer, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*peer, 0, len(p.peers))
	for _, one := range p.peers {
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b *peer) int { return strings.Compare(a.name, b.name) })
	return all, p.changed
}

func (p *pool) get(name string) *peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peers[name]
}

// run follows the peer service until ctx ends.
func (p *pool) run(ctx context.Context) {
	told := ""
	for ctx.Err() == nil {
		err := p.follow(ctx, func() { told = "" })
		if ctx.Err() != nil {
			return
		}
		if text := status.Convert(err).Message(); text != told { // the same again says nothing
			told = text
			p.opts.Log.Warn("the peer service does not answer; the nodes known so far are kept",
				"target", p.opts.PeerService, "error", text)
		}
		sleep(ctx, p.opts.Retry)
	}
}

// follow applies notifications of one stream until it ends. answered is called at the first.
func (p *pool) follow(ctx context.Context, answered func()) error {
	creds := insecure.NewCredentials()
	if !strings.HasPrefix(p.opts.PeerService, "unix:") {
		creds = p.credentials(hubble.ServerName(p.opts.Cluster, peerServiceName))
	}
	conn, err := p.dial(p.opts.PeerService, creds)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := peerpb.NewPeerClient(conn).Notify(ctx, &peerpb.NotifyRequest{})
	if err != nil {
		return err
	}
	// A new stream announces all nodes again, and does not say which have gone in between.
	announced := sync.Map{}
	settle := time.AfterFunc(p.opts.Settle, func() {
		if ctx.Err() != nil {
			return
		}
		peers, _ := p.list()
		for _, old := range peers {
			if _, ok := announced.Load(old.name); !ok {
				p.remove(old.name)
			}
		}
	})
	defer settle.Stop()
	for {
		n, err := stream.Recv()
		if err != nil {
			return err
		}
		answered()
		announced.Store(n.GetName(), true)
		switch n.GetType() {
		case peerpb.ChangeNotificationType_PEER_ADDED, peerpb.ChangeNotificationType_PEER_UPDATED:
			p.put(ctx, n)
		case peerpb.ChangeNotificationType_PEER_DELETED:
			p.remove(n.GetName())
		}
	}
}

// put adds a node, or replaces the one of that name if its address is another one.
func (p *pool) put(ctx context.Context, n *peerpb.ChangeNotification) {
	next := &peer{name: n.GetName(), address: n.GetAddress(), serverName: n.GetTls().GetServerName(),
		tls: p.opts.ClientTLS != nil}
	old := p.get(next.name)
	if old != nil && old.address == next.address && old.serverName == next.serverName {
		return
	}
	p.replace(ctx, old, next)
}

// replace connects next and puts it in the place of old, which may be nil.
func (p *pool) replace(ctx context.Context, old, next *peer) {
	var err error
	if next.conn, err = p.dial(target(next.address), p.credentials(next.serverName)); err != nil {
		p.opts.Log.Error("a node is left out", "node", next.name, "address", next.address, "error", err)
		return
	}
	next.conn.Connect()
	// Checks outlive the stream that announced the node.
	checks, stop := context.WithCancel(context.WithoutCancel(ctx))
	next.stop = stop
	p.mu.Lock()
	if p.closed || p.peers[next.name] != old {
		p.mu.Unlock()
		next.shut()
		return
	}
	p.peers[next.name] = next
	p.wake()
	p.mu.Unlock()
	if old != nil {
		old.shut()
	}
	p.opts.Log.Info("a node is connected to", "node", next.name, "address", next.address)
	go p.check(checks, next)
}

// check makes a new connection when a node stops answering without closing the old one, as a machine does that lost
// its power. Its streams end then.
func (p *pool) check(ctx context.Context, one *peer) {
	for {
		if sleep(ctx, p.opts.Check) != nil {
			return
		}
		if one.conn.GetState() != connectivity.Ready {
			one.conn.Connect()
			continue
		}
		call, cancel := context.WithTimeout(ctx, p.opts.Check/2)
		_, err := one.client().ServerStatus(call, &observerpb.ServerStatusRequest{})
		cancel()
		if status.Code(err) == codes.DeadlineExceeded && ctx.Err() == nil {
			p.opts.Log.Warn("a node does not answer", "node", one.name, "address", one.address)
			p.replace(ctx, one, &peer{name: one.name, address: one.address, serverName: one.serverName, tls: one.tls})
			return
		}
	}
}

func (p *pool) remove(name string) {
	p.mu.Lock()
	old := p.peers[name]
	delete(p.peers, name)
	if old != nil {
		p.wake()
	}
	p.mu.Unlock()
	if old != nil {
		old.shut()
		p.opts.Log.Info("a node is gone", "node", name)
	}
}

// close ends all connections; no peer is added any more.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for name, one := range p.peers {
		one.shut()
		delete(p.peers, name)
	}
}

func (p *peer) shut() {
	p.stop()
	p.conn.Close()
}

// wake tells those who watch that peers have changed. mu is held.
func (p *pool) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// credentials are those for a server with a name in its certificate.
func (p *pool) credentials(serverName string) credentials.TransportCredentials {
	if p.opts.ClientTLS == nil {
		return insecure.NewCredentials()
	}
	return p.opts.ClientTLS.ClientCredentials(serverName)
}

func (p *pool) dial(target string, creds credentials.TransportCredentials) (*grpc.ClientConn, error) {
	wait := backoff.DefaultConfig
	wait.BaseDelay, wait.MaxDelay = min(wait.BaseDelay, p.opts.Retry), max(5*p.opts.Retry, time.Millisecond)
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds), grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: wait, MinConnectTimeout: 5 * p.opts.Retry}))
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", target, err)
	}
	return conn, nil
}

// target is a peer's address as gRPC reads it.
func target(address string) string {
	if strings.HasPrefix(address, "unix:") {
		return address
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(strings.Trim(address, "[]"), defaultPort)
	}
	return "passthrough:///" + address
}

// sleep waits, and returns an error if ctx ends before.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
