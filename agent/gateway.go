package agent

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"myelin/agent/feature"
	"myelin/service/gateway"
)

// loadBalancer is the feature gateway: a standalone load balancer among its peers, in service or drained.
type loadBalancer struct {
	*feature.Node
	services *services

	gateway atomic.Pointer[gateway.Gateway] // nil: not started, or loadBalancer.standalone is false
}

// gatewayPrefix begins the names of the service Gateway's methods.
const gatewayPrefix = "/myelin.v1.Gateway/"

func isGateway(method string) bool { return strings.HasPrefix(method, gatewayPrefix) }

func (l *loadBalancer) feature() *feature.Feature {
	return &feature.Feature{
		Name: "gateway", Start: l.start, Lists: l.lists, Status: l.status, Metrics: l.metrics,
		Commands: l.commands(),
	}
}

func (l *loadBalancer) start(context.Context) error {
	if !l.Config.LoadBalancer.Standalone || len(l.Config.Myelin.Gateway.Peers) == 0 {
		return nil
	}
	drain, err := gateway.LoadDrain(filepath.Join(l.Config.Myelin.RunDir, "drain.json"))
	if err != nil {
		l.Log.Error("this node is taken as drained; `myelin gateway resume` ends that", "error", err)
	}
	g, err := gateway.New(gateway.Params{
		Log: l.Log, DB: l.DB, Services: l.services.services.Desired, Nodes: l.Cluster.Nodes, Datapath: l.Datapath,
		Config: l.Config, Drain: drain,
	})
	if err != nil {
		return err
	}
	l.gateway.Store(g)
	l.Go("gateway", g.Run)
	return nil
}

// draining is why new clients must not be sent here, empty if they can be.
func (l *loadBalancer) draining() string {
	g := l.gateway.Load()
	if g == nil || !g.Draining() {
		return ""
	}
	since, _ := g.Drain.Since()
	text := "draining since " + since.UTC().Format(time.RFC3339)
	if flows := g.Flows(); flows != nil {
		text += fmt.Sprintf(", %s left, %d active", feature.Plural(int(flows.Own), "flow"), flows.Active)
	}
	return text
}

func (l *loadBalancer) lists() map[string]feature.List {
	if !l.Config.LoadBalancer.Standalone {
		return nil
	}
	return map[string]feature.List{
		"peers": {Header: (*gateway.Peer)(nil).TableHeader(), Each: func(yield func(tableRow) bool) error {
			for _, p := range l.gateway.Load().Peers() {
				if !yield(p) {
					break
				}
			}
			return nil
		}},
	}
}

// status has a line on whether the node is in service, and one for each peer.
func (l *loadBalancer) status() []feature.Status {
	g := l.gateway.Load()
	if g == nil {
		return nil
	}
	s := feature.Status{
		Name: "Gateway", State: feature.OK, Wanted: "loadBalancer.standalone: true", Chosen: "in service",
	}
	if text := l.draining(); text != "" {
		s.Chosen = "drained"
		s.FallBack(text + "; `myelin gateway resume` ends that")
	}
	if err := g.ListenError(); err != nil {
		s.Break(err.Error())
		s.Cost = "no flow of a peer goes on here"
	}
	if c := &l.Config.Myelin.Gateway; len(c.Peers) > 0 && !c.TLS() {
		s.Why = "peers have no certificates: myelin.gateway.trustedNetwork is true"
	}
	list := []feature.Status{s}
	for _, p := range g.Peers() {
		if p.Direction == gateway.To {
			list = append(list, peerStatus(p))
		}
	}
	return list
}

func peerStatus(p *gateway.Peer) feature.Status {
	s := feature.Status{
		Name: "Peer", State: feature.OK, Wanted: "myelin.gateway.peers: " + p.Address,
		Chosen: p.Address + " " + p.State,
	}
	switch p.State {
	case gateway.ThisNode:
		s.State, s.Why = feature.Off, "the address is this node's"
	case gateway.Connected:
		s.Chosen += fmt.Sprintf(", %s behind", feature.Plural(int(p.Behind), "flow"))
		if len(p.Refused) > 0 {
			s.FallBack("it has refused flows: " + p.Refusals())
			s.Cost = "these flows break if they move there"
		}
	default:
		s.Cost = "flows break if they move there"
		if p.Error == "" {
			p.Error = "not connected yet"
		}
		s.FallBack(p.Error)
	}
	return s
}

func (l *loadBalancer) metrics(s feature.Sink) {
	g := l.gateway.Load()
	if g == nil {
		return
	}
	draining := 0.0
	if g.Draining() {
		draining = 1
	}
	s.Gauge("myelin_gateway_draining", "Whether this load balancer is drained.", draining, nil)
	if flows := g.Flows(); flows != nil {
		for state, n := range map[string]int64{
			"active": flows.Active, "idle": flows.Own - flows.Active, "learned": flows.Learned,
		} {
			s.Gauge("myelin_gateway_flows",
				"Flows of Services: active and idle ones of this load balancer, learned ones of peers.",
				float64(n), prometheus.Labels{"state": state})
		}
	}
	for result, n := range g.Results() {
		s.Counter("myelin_gateway_received_flows_total", "Flows that peers have sent, by what became of them here.",
			float64(n), prometheus.Labels{"result": gateway.ResultName(result)})
	}
	for _, p := range g.Peers() {
		if p.Direction == gateway.To && p.State != gateway.ThisNode {
			peerMetrics(s, p)
		}
	}
}

func peerMetrics(s feature.Sink, p *gateway.Peer) {
	labels, connected, refused := prometheus.Labels{"peer": p.Address}, 0.0, uint64(0)
	if p.State == gateway.Connected {
		connected = 1
	}
	for _, n := range p.Refused {
		refused += n
	}
	s.Gauge("myelin_gateway_peer_connected", "Whether a peer gets the flows of this load balancer.", connected, labels)
	s.Gauge("myelin_gateway_peer_behind_flows", "Flows that a peer does not know yet.", float64(p.Behind), labels)
	s.Gauge("myelin_gateway_peer_refused_flows",
		"Flows that a peer has refused since it was connected, or since its Services have changed.", float64(refused),
		labels)
	s.Counter("myelin_gateway_sent_flows_total", "Flows, and changes of flows, that a peer has acknowledged.",
		float64(p.Flows), labels)
}

// commands are those that show peers.
func (*loadBalancer) commands() []feature.Command {
	return []feature.Command{
		{Name: "gateway", Short: "A standalone load balancer among its peers", Views: []feature.View{
			{Name: "peers", Short: "List the load balancers that flows are synchronised with", Table: "peers",
				Absent: "this node is not a standalone load balancer with peers: see loadBalancer.standalone and " +
					"myelin.gateway.peers"},
		}},
	}
}
