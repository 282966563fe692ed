package observer

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/endpoint"
	"myelin/event"
	"myelin/hubble"
	"myelin/policy"
	"myelin/policy/identity"
	"myelin/service"
)

// Names are the names that the agent has for addresses and links.
type Names interface {
	event.Names
	event.Policies
	// Identity is as in identity.Lookup.
	Identity(statedb.ReadTxn, netip.Addr) uint32
	// Slot is that of the endpoint of this node with an address.
	Slot(netip.Addr) (uint16, bool)
}

// flowNames implements hubble.Names and event.Policies over the tables. What it returns is shared by flows, and not
// changed.
type flowNames struct {
	Names
	*Observer
	endpoints *memo[netip.Addr, *flowpb.Endpoint]
	hosts     *memo[netip.Addr, bool] // addresses of this node
}

func (h *Observer) flowNames() flowNames {
	n := flowNames{Names: h.state.Names, Observer: h}
	tables := []revisioned{h.Cluster.Pods, h.state.Endpoints, h.state.Addresses}
	if h.state.Identities != nil {
		tables = append(tables, h.state.Identities.Addresses(), h.state.Identities.Identities())
	}
	n.endpoints = newMemo[netip.Addr, *flowpb.Endpoint](tables...)
	n.hosts = newMemo[netip.Addr, bool](h.state.Addresses)
	return n
}

// Endpoint implements hubble.Names.
func (n flowNames) Endpoint(addr netip.Addr) *flowpb.Endpoint {
	txn := n.DB.ReadTxn()
	return n.endpoints.get(txn, addr, func() *flowpb.Endpoint { return n.findEndpoint(txn, addr) })
}

func (n flowNames) findEndpoint(txn statedb.ReadTxn, addr netip.Addr) *flowpb.Endpoint {
	out := &flowpb.Endpoint{Identity: n.Identity(txn, addr)}
	out.Labels = n.labels(txn, out.Identity)
	if id, ok := n.Slot(addr); ok {
		out.ID = uint32(id)
	}
	if out.Identity != identity.WorldIPv4 && out.Identity != identity.WorldIPv6 {
		out.ClusterName = n.Config.ClusterName
	}
	for pod := range n.Cluster.Pods.List(txn, cluster.PodsByAddress(addr)) {
		out.Namespace, out.PodName = pod.Namespace, pod.Name
		out.Workloads = []*flowpb.Workload{hubble.Workload(pod)}
		return out
	}
	if e, _, ok := n.state.Endpoints.Get(txn, endpoint.ByAddress(addr)); ok {
		out.Namespace, out.PodName = e.Namespace, e.Pod
	}
	return out
}

// labels returns the labels of an identity. World identities have the label of their family and that of both.
func (n flowNames) labels(txn statedb.ReadTxn, id uint32) []string {
	row, _, ok := n.state.Identities.Identities().Get(txn, identity.ByID(id))
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
	txn := n.DB.ReadTxn()
	if netns == n.Loaded.NetnsCookie {
		self, _, ok := n.Cluster.Nodes.Get(txn, cluster.NodeByName(n.Config.Myelin.NodeName))
		switch {
		case !ok:
			return netip.Addr{}
		case v6:
			return self.IPv6()
		}
		return self.IPv4()
	}
	for e := range n.state.Endpoints.All(txn) { // a few hundred at most
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
	if n.state.Frontends == nil || !at.IsValid() || at.Port() == 0 {
		return nil
	}
	txn := n.DB.ReadTxn()
	f, _, ok := n.state.Frontends.Get(txn, service.FrontendByAddress(service.L4Addr{
		AddrPort: at, Protocol: service.Protocol(protocol),
	}))
	if !ok && n.isHost(txn, at.Addr()) {
		all := netip.IPv4Unspecified()
		if at.Addr().Is6() {
			all = netip.IPv6Unspecified()
		}
		addr := service.L4(all, at.Port(), service.Protocol(protocol))
		f, _, ok = n.state.Frontends.Get(txn, service.FrontendByAddress(addr))
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
	return n.state.DNS(uint16(id), addr)
}

// isHost reports whether an address is one of this node's.
func (n flowNames) isHost(txn statedb.ReadTxn, addr netip.Addr) bool {
	return n.hosts.get(txn, addr, func() bool {
		for own := range n.state.Addresses.All(txn) { // a handful
			if own.Addr == addr {
				return true
			}
		}
		return false
	})
}

// Policies implements hubble.Names.
func (n flowNames) Policies(rule uint32) (out []*flowpb.Policy) {
	if n.state.Rules == nil {
		return nil
	}
	txn := n.DB.ReadTxn()
	row, _, ok := n.state.Rules.Get(txn, policy.RuleByID(rule))
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
func (h *Observer) nodeLabels() func() []string {
	known := newMemo[string, []string](h.Cluster.Nodes)
	name := h.Config.Myelin.NodeName
	return func() []string {
		txn := h.DB.ReadTxn()
		return known.get(txn, name, func() (out []string) {
			self, _, ok := h.Cluster.Nodes.Get(txn, cluster.NodeByName(name))
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
