package relay

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	relaypb "github.com/cilium/cilium/api/v1/relay"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// follow sends what nodes report from now on, or from the end of their history on. It ends with ctx, or when all
// nodes have come to the time that the request ends at.
func (q *query) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	peers, _ := q.pool.list()
	up := map[string]bool{}
	if len(q.asked) > 0 {
		for name := range q.asked {
			up[name] = true
		}
	} else {
		asked, err := q.greet(peers)
		if err != nil {
			return err
		}
		for _, p := range asked {
			up[p.name] = true
		}
	}
	m := newMerger(q.opts.BufferLen, q.opts.Drain, true, q.opts.Now)
	go q.watch(ctx, m, up)
	for {
		res, err := m.next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := q.send(res); err != nil {
			return err
		}
	}
}

// watch follows each node that there is, and each that comes. up are the nodes that clients take for connected.
func (q *query) watch(ctx context.Context, m *merger, up map[string]bool) {
	ended := make(chan string)
	running, done, began := map[string]bool{}, map[string]bool{}, false
	for {
		peers, changed := q.pool.list()
		for _, p := range peers {
			if running[p.name] || done[p.name] {
				continue
			}
			running[p.name] = true
			f := &follower{query: q, name: p.name, m: m, up: up[p.name], late: began, cur: q.cursor(p.name)}
			if f.up {
				m.start(f.name) // flows of nodes that are quicker to answer wait for its first
			}
			go func() {
				if f.run(ctx) {
					f.m.end(f.name)
				}
				select {
				case ended <- f.name:
				case <-ctx.Done():
				}
			}()
			delete(up, p.name) // it is for the first time
		}
		began = true
		if q.req.GetUntil() != nil && len(running) == 0 {
			m.seal()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case name := <-ended:
			delete(running, name)
			done[name] = q.req.GetUntil() != nil
		}
	}
}

// follower follows one node through several connections.
type follower struct {
	*query
	name string
	m    *merger
	up   bool // what clients were told last
	late bool // came when others were followed already
	cur  *cursor
}

// run returns true when the node is removed, or has come to the request's end.
func (f *follower) run(ctx context.Context) bool {
	for {
		p := f.pool.get(f.name)
		if p == nil {
			_ = f.m.pushFirst(ctx, f.event(relaypb.NodeState_NODE_GONE, "", f.name))
			return true
		}
		err := f.attempt(ctx, p)
		if ctx.Err() != nil {
			return false
		}
		f.m.end(f.name)
		if err == nil && f.req.GetUntil() != nil {
			return true
		}
		if f.up && f.pool.get(f.name) != nil {
			f.up = false
			if f.m.pushFirst(ctx, f.lost(err)) != nil {
				return false
			}
		}
		// Another connection may be there already: that of a new address.
		if f.pool.get(f.name) == p && sleep(ctx, f.opts.Retry) != nil {
			return false
		}
	}
}

// lost is the event about a stream that has ended.
func (f *follower) lost(err error) *observerpb.GetFlowsResponse {
	if code := status.Code(err); err == nil || code == codes.Unavailable || code == codes.Canceled {
		return f.event(relaypb.NodeState_NODE_UNAVAILABLE, "", f.name)
	}
	return f.event(relaypb.NodeState_NODE_ERROR, status.Convert(err).Message(), f.name)
}

// attempt follows a node by one stream, until that ends.
func (f *follower) attempt(ctx context.Context, p *peer) error {
	call, cancel := context.WithTimeout(ctx, max(f.opts.Check/2, time.Second))
	state, err := p.client().ServerStatus(call, &observerpb.ServerStatusRequest{})
	cancel()
	if err != nil {
		return err
	}
	if !f.up {
		f.up = true
		if err := f.m.pushFirst(ctx, f.event(relaypb.NodeState_NODE_CONNECTED, "", f.name)); err != nil {
			return err
		}
	}
	now := f.opts.Now()
	again := &resumption{expects: len(f.cur.recent) > 0}
	booted := now.Add(-time.Duration(state.GetUptimeNs()))
	if !f.cur.opened.IsZero() && booted.After(f.cur.opened) && !again.expects {
		// A restarted agent has the flows that its kernel kept. Without a flow to find again, how many is unknown.
		from := f.cur.opened
		if err := f.m.push(ctx, f.name, from, gap(cmp.Or(f.cur.node, f.name), from, booted)); err != nil {
			return err
		}
	}
	req := f.ask(func(r *observerpb.GetFlowsRequest) {
		r.Number, r.Since = 0, f.since()
	})
	f.cur.opened = now
	f.m.start(f.name)
	return f.read(ctx, p, req, f.cur, f.m, again)
}

// since is where the next stream begins; nil is now.
func (f *follower) since() *timestamppb.Timestamp {
	switch {
	case len(f.cur.recent) > 0:
		return timestamppb.New(f.cur.since())
	case !f.cur.opened.IsZero() || f.late:
		return timestamppb.New(f.started)
	case f.req.GetSince() != nil:
		return f.req.GetSince()
	}
	return nil
}
