package gateway

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cilium/statedb"
	"golang.org/x/sync/errgroup"

	apiv1 "myelin/api/v1"
	"myelin/bpf"
	"myelin/cluster"
	"myelin/config"
	"myelin/service"
)

// Params are the arguments of New.
type Params struct {
	Log      *slog.Logger
	DB       *statedb.DB
	Services service.Tables
	Nodes    statedb.Table[*cluster.Node]
	Datapath *bpf.Datapath
	Config   *config.Config
	Drain    *Drain
}

// Gateway is this load balancer.
type Gateway struct {
	Params
	hz        uint32
	installer *installer
	walk      *walk
	senders   []*sender
	receiver  *receiver // nil: there are no peers
}

// New makes a Gateway, which does nothing before Run.
func New(p Params) (*Gateway, error) {
	settings, err := p.Datapath.Settings()
	if err != nil {
		return nil, fmt.Errorf("create gateway: %w", err)
	}
	g := &Gateway{Params: p, hz: settings.Hz}
	g.installer = &installer{params: &g.Params, hz: settings.Hz}
	g.walk = &walk{gateway: g, index: newIndex(), wake: make(chan struct{}, 1)}
	for _, address := range p.Config.Myelin.Gateway.PeerAddresses() {
		g.senders = append(g.senders, &sender{gateway: g, address: address})
	}
	g.walk.outbox = make([]outbox, len(g.senders))
	if len(g.senders) > 0 {
		g.receiver = &receiver{gateway: g, streams: map[*stream]bool{}}
	}
	return g, nil
}

// Run synchronises flows until ctx ends.
func (g *Gateway) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.walk.run(ctx) })
	for _, s := range g.senders {
		group.Go(func() error { return s.run(ctx) })
	}
	if g.receiver != nil {
		group.Go(func() error { return g.receiver.run(ctx) })
	}
	return group.Wait()
}

// Draining reports whether this node is out of service, or is about to be.
func (g *Gateway) Draining() bool {
	_, draining := g.Drain.Since()
	return draining
}

// Flows are the numbers of flows at the last walk, nil before the first. They are kept up to date while there are peers
// or the node is draining.
func (g *Gateway) Flows() *Flows { return g.walk.flows.Load() }

// Results are the flows of peers by what became of them here.
func (g *Gateway) Results() map[apiv1.PeerFlowResult]uint64 {
	all := map[apiv1.PeerFlowResult]uint64{}
	for i := range g.installer.results {
		if i > 0 {
			all[apiv1.PeerFlowResult(i)] = g.installer.results[i].Load()
		}
	}
	return all
}
