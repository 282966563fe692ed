package gateway

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/statedb"

	apiv1 "myelin/api/v1"
	"myelin/bpf"
	"myelin/cluster"
	"myelin/config"
	"myelin/service"
)

// The results that are used by name.
const (
	installed    = apiv1.PeerFlowResult_PEER_FLOW_RESULT_INSTALLED
	local        = apiv1.PeerFlowResult_PEER_FLOW_RESULT_LOCAL
	outdated     = apiv1.PeerFlowResult_PEER_FLOW_RESULT_OUTDATED
	malformed    = apiv1.PeerFlowResult_PEER_FLOW_RESULT_MALFORMED
	noFrontend   = apiv1.PeerFlowResult_PEER_FLOW_RESULT_NO_FRONTEND
	noBackend    = apiv1.PeerFlowResult_PEER_FLOW_RESULT_NO_BACKEND
	sourceRange  = apiv1.PeerFlowResult_PEER_FLOW_RESULT_SOURCE_RANGE
	forwarding   = apiv1.PeerFlowResult_PEER_FLOW_RESULT_FORWARDING
	snatAddress  = apiv1.PeerFlowResult_PEER_FLOW_RESULT_SNAT_ADDRESS
	snatPort     = apiv1.PeerFlowResult_PEER_FLOW_RESULT_SNAT_PORT
	full         = apiv1.PeerFlowResult_PEER_FLOW_RESULT_FULL
	kernelError  = apiv1.PeerFlowResult_PEER_FLOW_RESULT_ERROR
	firstRefusal = malformed
)

// member is a backend of a Service, by this node's numbers.
type member struct{ service, backend uint32 }

// services are the Services of this node, at one moment.
type services struct {
	txn      statedb.ReadTxn
	tables   service.Tables
	datapath *bpf.Datapath
	config   *config.Config
	own      []netip.Addr // of this node
}

func newServices(p *Params) *services {
	s := &services{txn: p.DB.ReadTxn(), tables: p.Services, datapath: p.Datapath, config: p.Config}
	s.own = ownAddresses(s.txn, p)
	return s
}

// ownAddresses returns the addresses of this node.
func ownAddresses(txn statedb.ReadTxn, p *Params) []netip.Addr {
	if node, _, ok := p.Nodes.Get(txn, cluster.NodeByName(p.Config.Myelin.NodeName)); ok {
		return node.Addresses
	}
	return nil
}

// member finds the numbers of a flow's Service and backend, or returns why this node does not forward such a flow: an
// entry in the datapath means that nothing else is checked for the flow's packets.
func (s *services) member(r *record) (member, apiv1.PeerFlowResult, error) {
	f, _, ok := s.tables.Frontends.Get(s.txn, service.FrontendByAddress(service.L4Addr{
		AddrPort: r.frontend, Protocol: r.protocol,
	}))
	if !ok || f.Scopes&service.External == 0 {
		return member{}, noFrontend, nil
	}
	b, _, ok := s.tables.Backends.Get(s.txn, service.BackendByAddress(service.L4Addr{
		AddrPort: r.backend, Protocol: r.protocol,
	}))
	if !ok || !slices.ContainsFunc(b.Uses, func(u service.Use) bool { return u.Service == f.Service }) {
		return member{}, noBackend, nil
	}
	allowed, err := s.sourceAllowed(f, r.client.Addr())
	if err != nil {
		return member{}, kernelError, err
	}
	m := member{service: f.ServiceID, backend: b.ID}
	switch {
	case !allowed:
		return m, sourceRange, nil
	case slices.Contains(s.own, r.backend.Addr()), r.snat.IsValid() == s.direct(f, r):
		return m, forwarding, nil
	case r.snat.IsValid() && !s.ownsSNAT(r.snat):
		return m, snatAddress, nil
	}
	return m, installed, nil
}

// sourceAllowed reads the map that the datapath reads for new flows.
func (s *services) sourceAllowed(f *service.Frontend, client netip.Addr) (bool, error) {
	if !f.Restricted {
		return true, nil
	}
	host := bpf.Prefix(netip.PrefixFrom(client, client.BitLen()))
	key := bpf.DatapathSourceRangeKey{Length: 32 + host.Length, Service: f.ServiceID, Addr: host.Addr}
	var value uint32
	allowed, err := bpf.Get(s.datapath.SourceRanges, &key, &value)
	if err != nil {
		return false, fmt.Errorf("read source ranges of %s: %w", f.Service, err)
	}
	return allowed, nil
}

// direct reports whether backends of the frontend reply to clients themselves, as service_direct does in the datapath:
// without a cluster that is possible by IPIP only.
func (s *services) direct(f *service.Frontend, r *record) bool {
	mode := f.Forwarding
	if mode == service.DefaultForwarding {
		mode = service.Forwarding(s.config.LoadBalancer.Mode)
	}
	return s.config.Direct() && s.config.LoadBalancer.DSRDispatch == "ipip" &&
		r.backend.Addr().Is4() == r.client.Addr().Is4() &&
		(mode == service.DSR || mode == service.Hybrid && f.Protocol == service.TCP)
}

// ownsSNAT reports whether replies to the address and port come to this node, and are looked up as those of Services.
func (s *services) ownsSNAT(a netip.AddrPort) bool {
	ports := s.config.Myelin.NATPorts
	return slices.Contains(s.own, a.Addr()) && a.Port() >= ports.First && a.Port() <= ports.Last
}
