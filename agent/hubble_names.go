package agent

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/endpoint"
	"myelin/hubble"
	"myelin/identity"
	"myelin/policy"
	"myelin/service"
)

// flowNames implements hubble.Names over the tables. What it returns is shared by flows, and not changed.
type flowNames struct {
	names
	endpoints *memo[netip.Addr, *flowpb.Endpoint]
	hosts     *memo[netip.Addr, bool] // addresses of this node
}

func (a *Agent) flowNames() flowNames {
	n := flowNames{names: a.names()}
	tables := []revisioned{a.Cluster.Pods, a.endpoints.table, a.network.node.Addresses}
	if n.identities != nil {
		tables = append(tables, n.identities, a.identities.all.Identities())
	}
	n.endpoints = newMemo[netip.Addr, *flowpb.Endpoint](tables...)
	n.hosts = newMemo[netip.Addr, bool](a.network.node.Addresses)
	return n
}

// Endpoint implements hubble.Names.
func (n flowNames) Endpoint(addr netip.Addr) *flowpb.Endpoint {
	txn := n.agent.DB.ReadTxn()
	return n.endpoints.get(txn, addr, func() *flowpb.Endpoint { return n.findEndpoint(txn, addr) })
}

func (n flowNames) findEndpoint(txn statedb.ReadTxn, addr netip.Addr) *flowpb.Endpoint {
	a := n.agent
	out := &flowpb.Endpoint{Identity: n.identity(txn, addr)}
	out.Labels = n.labels(txn, out.Identity)
	if id, ok := n.slot(addr); ok {
		out.ID = uint32(id)
	}
	if out.Identity != identity.WorldIPv4 && out.Identity != identity.WorldIPv6 {
		out.ClusterName = a.Config.ClusterName
	}
	for pod := range a.Cluster.Pods.List(txn, cluster.PodsByAddress(addr)) {
		out.Namespace, out.PodName = pod.Namespace, pod.Name
		out.Workloads = []*flowpb.Workload{hubble.Workload(pod)}
		return out
	}
	if e, _, ok := a.endpoints.table.Get(txn, endpoint.ByAddress(addr)); ok {
		out.Namespace, out.PodName = e.Namespace, e.Pod
	}
	return out
}

// labels returns the labels of an identity. World identities have the label of their family and that of both.
func (n flowNames) labels(txn statedb.ReadTxn, id uint32) []string {
	row, _, ok := n.agent.identities.all.Identities().Get(txn, identity.ByID(id))
	switch {
	case !ok:
		return nil
	case id == identity.WorldIPv4 || id == identity.WorldIPv6:
		return append(slices.Clip(row.Labels), "reserved:world")
	}
	return row.Labels
}

// Address implements hubble.Names.
func (n flowNames) Address(netns uint64, v6 bool) netip.Addr {
	txn := n.agent.DB.ReadTxn()
	if netns == n.agent.datapath.Loaded.NetnsCookie {
		self, _, ok := n.agent.Cluster.Nodes.Get(txn, cluster.NodeByName(n.agent.Config.Myelin.NodeName))
		switch {
		case !ok:
			return netip.Addr{}
		case v6:
			return self.IPv6()
		}
		return self.IPv4()
	}
	for e := range n.agent.endpoints.table.All(txn) { // a few hundred at most
		switch {
		case e.NetnsCookie != netns:
		case v6:
			return e.IPv6
		default:
			return e.IPv4
		}
	}
	return netip.Addr{}
}

// Service implements hubble.Names. Node ports are frontends of the unspecified address.
func (n flowNames) Service(at netip.AddrPort, protocol uint8) *flowpb.Service {
	a := n.agent
	if a.services.services == nil || !at.IsValid() || at.Port() == 0 {
		return nil
	}
	txn := a.DB.ReadTxn()
	frontends := a.services.services.Desired.Frontends
	f, _, ok := frontends.Get(txn, service.FrontendByAddress(service.L4Addr{
		AddrPort: at, Protocol: service.Protocol(protocol),
	}))
	if !ok && n.isHost(txn, at.Addr()) {
		all := netip.IPv4Unspecified()
		if at.Addr().Is6() {
			all = netip.IPv6Unspecified()
		}
		f, _, ok = frontends.Get(txn, service.FrontendByAddress(service.L4(all, at.Port(), service.Protocol(protocol))))
	}
	if !ok {
		return nil
	}
	return &flowpb.Service{Namespace: f.Service.Namespace, Name: f.Service.Name}
}

// DNS implements hubble.Names.
func (n flowNames) DNS(id uint32, addr netip.Addr) []string {
	if id <= endpoint.HostID || id > math.MaxUint16 {
		return nil
	}
	return n.agent.l7.NamesOf(uint16(id), addr)
}

// isHost reports whether an address is one of this node's.
func (n flowNames) isHost(txn statedb.ReadTxn, addr netip.Addr) bool {
	return n.hosts.get(txn, addr, func() bool {
		for own := range n.agent.network.node.Addresses.All(txn) { // a handful
			if own.Addr == addr {
				return true
			}
		}
		return false
	})
}

// Policies implements hubble.Names.
func (n flowNames) Policies(rule uint32) (out []*flowpb.Policy) {
	if n.agent.policies.engine == nil {
		return nil
	}
	txn := n.agent.DB.ReadTxn()
	row, _, ok := n.agent.policies.engine.Rules.Get(txn, policy.RuleByID(rule))
	if !ok {
		return nil
	}
	var refs []policy.Ref
	for _, o := range append([]policy.Origin{row.Origin}, row.Others...) {
		if ref := o.Ref; !slices.Contains(refs, ref) {
			refs = append(refs, ref)
			out = append(out, &flowpb.Policy{Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name,
				Labels: policyLabels(ref)})
		}
	}
	return out
}

// policyLabels returns the labels that Cilium gives the rules of an object.
func policyLabels(ref policy.Ref) []string {
	const prefix = "k8s:" + identity.DerivedPolicyKey
	out := []string{prefix + "derived-from=" + ref.Kind, prefix + "name=" + ref.Name}
	if ref.Namespace != "" {
		out = append(out, prefix+"namespace="+ref.Namespace)
	}
	return out
}

// nodeLabels returns those of this node's object, each "key=value".
func (a *Agent) nodeLabels() func() []string {
	known := newMemo[string, []string](a.Cluster.Nodes)
	name := a.Config.Myelin.NodeName
	return func() []string {
		txn := a.DB.ReadTxn()
		return known.get(txn, name, func() (out []string) {
			self, _, ok := a.Cluster.Nodes.Get(txn, cluster.NodeByName(name))
			if !ok {
				return nil
			}
			for _, key := range slices.Sorted(maps.Keys(self.Labels)) {
				out = append(out, key+"="+self.Labels[key])
			}
			return out
		})
	}
}
