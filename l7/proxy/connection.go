package proxy

import (
	"context"
	"errors"
	"net"
	"time"

	"myelin/l7/control"
	"myelin/l7/httpproxy"
)

// accept serves connections until the listener is closed.
func (p *proxy) accept(ctx context.Context) {
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, or a connection that has gone
			p.Log.Warn("Could not accept a connection", "error", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		p.accepted.Add(1)
		p.open.Add(1)
		go func() {
			defer p.open.Add(-1)
			if err := p.serve(ctx, conn); err != nil {
				p.Log.Debug("A connection has ended", "error", err)
			}
		}()
	}
}

func (p *proxy) serve(ctx context.Context, conn net.Conn) error {
	client, server := ends(conn)
	flow := control.Flow{Source: client, Destination: server, Proto: protoTCP}
	numbers, ok := p.maps.rules(client, server, protoTCP)
	if !ok { // the entry has gone since, and with it what the rules are
		return conn.Close()
	}
	flow.Rules = numbers
	connect := func(ctx context.Context) (net.Conn, error) { return dial(ctx, client, server) }
	if p.rules.Load().isDNS(client, server, numbers) {
		upstream, err := connect(ctx)
		if err != nil {
			return errors.Join(err, conn.Close())
		}
		return p.dns.Stream(ctx, client, server, conn, upstream, dnsIdle)
	}
	sets := func() []*httpproxy.RuleSet {
		if now, ok := p.maps.rules(client, server, protoTCP); ok {
			flow.Rules = now
		}
		return p.rules.Load().of(flow.Rules)
	}
	return p.http.Load().Serve(ctx, conn, &httpproxy.Flow{Source: client, Destination: server, Sets: sets,
		Dial: connect, Record: func(r *httpproxy.Record) {
			if r.Denied < 0 {
				p.allowed.Add(1)
			} else {
				p.denied.Add(1)
			}
			p.records.add(control.Record{Flow: flow, HTTP: r})
		}})
}
