package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/endpoint"
	"myelin/l7/config"
	"myelin/policy/compile"
)

// Proxy enforces what is above ports and learns the addresses of names.
type Proxy interface {
	// Apply returns when the proxy knows the rules, selectors and endpoints of a configuration, which has nothing else.
	// They replace those before.
	Apply(ctx context.Context, c *config.Config) error
}

// applyTimeout bounds how long the proxy may take, since other changes of policies wait for it.
const applyTimeout = 5 * time.Second

// proxyState is what the proxy knows.
type proxyState struct {
	applied *config.Config
	changed chan struct{} // closed when applied changes
	// held is what the kernel must learn when the proxy knows what it needs; nil: the kernel has all.
	held *compile.Plan
	err  error         // why the proxy does not know it
	next time.Duration // when a number of the proxy goes; 0: none does
}

// ProxyConfig is what the proxy knows of policies, and a channel that is closed when that changes. It must not be
// changed.
func (e *Engine) ProxyConfig() (*config.Config, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.proxy.applied, e.proxy.changed
}

// toProxy tells the proxy what it must know before the kernel has the plan. Meanwhile others may use the engine.
func (e *Engine) toProxy(ctx context.Context) error {
	if e.Proxy == nil {
		return nil
	}
	c := &config.Config{Selectors: e.compiler.ProxySelectors(), Endpoints: e.proxyEndpoints()}
	c.Rules, e.proxy.next = e.compiler.ProxyRules(e.Maps.Now())
	if e.proxy.err == nil && reflect.DeepEqual(c, e.proxy.applied) {
		return nil
	}
	e.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	err := e.Proxy.Apply(ctx, c)
	cancel()
	e.mu.Lock()
	if e.proxy.err = err; err != nil {
		e.proxy.err = fmt.Errorf("tell the proxy of policies: %w", err)
		return e.proxy.err
	}
	close(e.proxy.changed)
	e.proxy.applied, e.proxy.changed = c, make(chan struct{})
	return nil
}

// proxyEndpoints are the endpoints whose DNS messages pass through the proxy, by slot.
func (e *Engine) proxyEndpoints() (out []config.Endpoint) {
	var r statedb.ReadTxn
	for _, t := range e.compiler.Endpoints() {
		if !t.WatchesDNS() {
			continue
		}
		if r == nil {
			r = e.DB.ReadTxn()
		}
		ep, _, ok := e.Endpoints.Get(r, endpoint.ByID(t.Slot))
		if !ok {
			continue
		}
		one := config.Endpoint{Pod: cluster.Key{Namespace: ep.Namespace, Name: ep.Pod}, Slot: t.Slot,
			Selectors: t.Selectors()}
		for _, a := range []netip.Addr{ep.IPv4, ep.IPv6} {
			if a.IsValid() {
				one.Addresses = append(one.Addresses, a)
			}
		}
		out = append(out, one)
	}
	return out
}

// hold keeps a plan until the proxy knows what it needs. What the kernel has stays in force; the endpoints' rows say
// why.
func (e *Engine) hold(p *compile.Plan) error {
	e.compiler.Postpone(p)
	e.proxy.held = p
	if len(p.Endpoints) == 0 {
		return nil
	}
	txn := e.DB.WriteTxn(e.Realised)
	defer txn.Abort()
	var errs []error
	for t := range p.Endpoints {
		if !t.Gone {
			row := e.realised(t)
			row.Waiting, row.Error = true, e.proxy.err.Error()
			_, _, err := e.Realised.Insert(txn, row)
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write table endpoint-policies: %w", err)
	}
	txn.Commit()
	return nil
}
