package agent

import (
	"net/netip"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/endpoint"
	"myelin/policy"
	"myelin/policy/identity"
	"myelin/route"
)

// names implements event.Names over the tables.
type names struct {
	agent *agent
	// identities is nil where no identities are kept.
	identities statedb.Table[*identity.Address]
}

func (a *agent) names() names {
	n := names{agent: a}
	n.identities, _ = a.DB.GetTable(a.DB.ReadTxn(), "identity-addresses").(statedb.Table[*identity.Address])
	return n
}

// Owner implements event.Names.
func (n names) Owner(addr netip.Addr) (string, uint32) {
	txn := n.agent.DB.ReadTxn()
	return n.owner(txn, addr), n.Identity(txn, addr)
}

func (n names) owner(txn statedb.ReadTxn, addr netip.Addr) string {
	a := n.agent
	if e, _, ok := a.endpoints.table.Get(txn, endpoint.ByAddress(addr)); ok {
		return e.PodName()
	}
	for pod := range a.Cluster.Pods.List(txn, cluster.PodsByAddress(addr)) {
		if pod.OwnsAddresses() {
			return pod.Key().String()
		}
	}
	for own := range a.network.node.Addresses.All(txn) { // a handful
		if own.Addr == addr {
			return "host"
		}
	}
	if o, _, ok := a.Cluster.Nodes.Get(txn, cluster.NodeByAddress(addr)); ok {
		return "node " + o.Name
	}
	return ""
}

// Identity is as in identity.Lookup.
func (n names) Identity(txn statedb.ReadTxn, addr netip.Addr) uint32 {
	if n.identities == nil {
		return 0
	}
	if row, _, ok := n.identities.Get(txn, identity.ByAddress(addr)); ok {
		return row.ID
	}
	if addr.Is4() {
		return identity.WorldIPv4
	}
	return identity.WorldIPv6
}

// Link implements event.Names.
func (n names) Link(index int) string {
	d, _, ok := n.agent.network.routes.Devices.Get(n.agent.DB.ReadTxn(), route.DeviceByIndex(index))
	if !ok {
		return ""
	}
	return d.Name
}

// Rule implements event.Policies.
func (n names) Rule(number uint32) string {
	if n.agent.policies.engine == nil {
		return ""
	}
	row, _, ok := n.agent.policies.engine.Rules.Get(n.agent.DB.ReadTxn(), policy.RuleByID(number))
	if !ok {
		return ""
	}
	return row.Name()
}

// Isolating implements event.Policies.
func (n names) Isolating(of netip.Addr, egress bool) []string {
	if n.agent.policies.engine == nil {
		return nil
	}
	dir := policy.Ingress
	if egress {
		dir = policy.Egress
	}
	slot, ok := n.Slot(of)
	if !ok {
		return nil
	}
	return n.agent.policies.explainer().Isolating(slot, dir)
}

// Slot is that of the endpoint of this node with an address.
func (n names) Slot(of netip.Addr) (uint16, bool) {
	txn := n.agent.DB.ReadTxn()
	if e, _, ok := n.agent.endpoints.table.Get(txn, endpoint.ByAddress(of)); ok {
		return e.ID, true
	}
	for own := range n.agent.network.node.Addresses.All(txn) {
		if own.Addr == of {
			return endpoint.HostID, true
		}
	}
	return 0, false
}
