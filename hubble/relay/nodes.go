package relay

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	relaypb "github.com/cilium/cilium/api/v1/relay"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// patient bounds how long one node may take to answer a request about itself.
const patient = 5 * time.Second

// maxUnavailable is how many nodes ServerStatus names.
const maxUnavailable = 10

// each calls ask for all nodes that may answer, at once, and says of which nodes it returned nil.
func (r *Relay) each(ctx context.Context, ask func(ctx context.Context, p *peer) error) (peers []*peer,
	answered []bool) {
	peers, _ = r.pool.list()
	answered = make([]bool, len(peers))
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	var group sync.WaitGroup
	for i, p := range peers {
		if !p.available() {
			continue
		}
		group.Go(func() {
			err := ask(ctx, p)
			answered[i] = err == nil
			if err != nil {
				r.opts.Log.Debug("a node did not answer", "node", p.name, "error", err)
			}
		})
	}
	group.Wait()
	return peers, answered
}

// GetNodes lists the nodes by name, with what they say of themselves. A node without a connection is unavailable, one
// that refuses to answer, or takes more than five seconds, has the state error.
func (r *Relay) GetNodes(ctx context.Context, _ *observerpb.GetNodesRequest) (*observerpb.GetNodesResponse, error) {
	var mu sync.Mutex
	states := map[string]*observerpb.ServerStatusResponse{}
	peers, _ := r.each(ctx, func(ctx context.Context, p *peer) error {
		s, err := p.client().ServerStatus(ctx, &observerpb.ServerStatusRequest{})
		mu.Lock()
		defer mu.Unlock()
		states[p.name] = s
		return err
	})
	answer := &observerpb.GetNodesResponse{}
	for _, p := range peers {
		n := &observerpb.Node{Name: p.name, Address: p.address, State: relaypb.NodeState_NODE_UNAVAILABLE,
			Tls: &observerpb.TLS{Enabled: p.tls, ServerName: p.serverName}}
		if s := states[p.name]; s != nil {
			n.State, n.Version, n.UptimeNs = relaypb.NodeState_NODE_CONNECTED, s.GetVersion(), s.GetUptimeNs()
			n.NumFlows, n.MaxFlows, n.SeenFlows = s.GetNumFlows(), s.GetMaxFlows(), s.GetSeenFlows()
		} else if p.available() {
			n.State = relaypb.NodeState_NODE_ERROR
		}
		answer.Nodes = append(answer.Nodes, n)
	}
	return answer, nil
}

// GetNamespaces lists the namespaces that any node has seen flows of, by cluster and name.
func (r *Relay) GetNamespaces(ctx context.Context,
	req *observerpb.GetNamespacesRequest) (*observerpb.GetNamespacesResponse, error) {
	type key struct{ cluster, name string }
	var mu sync.Mutex
	found := map[key]*observerpb.Namespace{}
	r.each(ctx, func(ctx context.Context, p *peer) error {
		answer, err := p.client().GetNamespaces(ctx, req)
		mu.Lock()
		defer mu.Unlock()
		for _, ns := range answer.GetNamespaces() {
			found[key{ns.GetCluster(), ns.GetNamespace()}] = ns
		}
		return err
	})
	answer := &observerpb.GetNamespacesResponse{}
	for _, ns := range found {
		answer.Namespaces = append(answer.Namespaces, ns)
	}
	slices.SortFunc(answer.Namespaces, func(a, b *observerpb.Namespace) int {
		return strings.Compare(a.GetCluster()+"/"+a.GetNamespace(), b.GetCluster()+"/"+b.GetNamespace())
	})
	return answer, nil
}

// ServerStatus adds up the status of all nodes; its uptime is the longest of any node.
func (r *Relay) ServerStatus(ctx context.Context,
	req *observerpb.ServerStatusRequest) (*observerpb.ServerStatusResponse, error) {
	var mu sync.Mutex
	sum := &observerpb.ServerStatusResponse{Version: r.opts.Version}
	peers, answered := r.each(ctx, func(ctx context.Context, p *peer) error {
		s, err := p.client().ServerStatus(ctx, req)
		mu.Lock()
		defer mu.Unlock()
		sum.NumFlows += s.GetNumFlows()
		sum.MaxFlows += s.GetMaxFlows()
		sum.SeenFlows += s.GetSeenFlows()
		sum.FlowsRate += s.GetFlowsRate()
		sum.UptimeNs = max(sum.UptimeNs, s.GetUptimeNs())
		return err
	})
	connected := uint32(0)
	for i, ok := range answered {
		if ok {
			connected++
		} else if len(sum.UnavailableNodes) < maxUnavailable {
			sum.UnavailableNodes = append(sum.UnavailableNodes, peers[i].name)
		}
	}
	sum.NumConnectedNodes = wrapperspb.UInt32(connected)
	sum.NumUnavailableNodes = wrapperspb.UInt32(uint32(len(peers)) - connected)
	return sum, nil
}
