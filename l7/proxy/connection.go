package proxy

import (
	"context"
	"errors"
	"net"
	"sync"
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
	rules, ok := p.maps.rules(client, server, protoTCP)
	if !ok { // the entry has gone since, and with it what the rules are
		return conn.Close()
	}
	flow.Rules = rules.Numbers
	connect := func(ctx context.Context) (net.Conn, error) { return dial(ctx, client, server) }
	if p.rules.Load().isDNS(client, server, rules.Numbers) {
		upstream, err := connect(ctx)
		if err != nil {
			return errors.Join(err, conn.Close())
		}
		return p.dns.Stream(ctx, client, server, conn, upstream, dnsIdle)
	}
	r := &redirected{proxy: p, flow: flow}
	return p.http.Load().Serve(ctx, conn, &httpproxy.Flow{Source: client, Destination: server, Sets: r.sets,
		Dial: connect, Count: p.count, Record: r.record, Recorded: func() bool { return p.rules.Load().records }})
}

func (p *proxy) count(allowed bool) {
	if allowed {
		p.allowed.Add(1)
	} else {
		p.denied.Add(1)
	}
}

// ruleAge is how long the rule numbers of a connection are used before they are read again from its conntrack entry,
// which costs a system call. A change of policy takes effect on requests of open connections that much later.
const ruleAge = 20 * time.Millisecond

// redirected is a connection whose requests are evaluated by rules.
type redirected struct {
	proxy *proxy

	mu      sync.Mutex
	flow    control.Flow
	checked time.Time // when the rule numbers of flow were read
	rules   *rules    // that list is of
	list    []*httpproxy.RuleSet
}

// sets are the rule sets that are in force.
func (r *redirected) sets() []*httpproxy.RuleSet {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, rules := time.Now(), r.proxy.rules.Load()
	if rules == r.rules && now.Sub(r.checked) < ruleAge {
		return r.list
	}
	r.checked = now
	numbers := r.flow.Rules // they stay in force if the entry has gone
	if now, ok := r.proxy.maps.rules(r.flow.Source, r.flow.Destination, protoTCP); ok {
		numbers = now.Numbers
	}
	if r.proxy.isDraining() { // the rules are written before the conntrack entry has their numbers
		r.proxy.refresh()
		rules = r.proxy.rules.Load()
	}
	if rules != r.rules || numbers != r.flow.Rules {
		r.flow.Rules, r.rules, r.list = numbers, rules, rules.of(numbers)
	}
	return r.list
}

func (r *redirected) record(request *httpproxy.Record) {
	r.mu.Lock()
	flow := r.flow
	r.mu.Unlock()
	r.proxy.records.add(control.Record{Flow: flow, HTTP: request})
}
