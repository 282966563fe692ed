package service

import (
	"net/netip"
	"slices"

	"myelin/cluster"
)

// endpoint is a backend of one Service.
type endpoint struct {
	L4Addr
	State      State
	Weight     uint16
	Node, Zone string
}

// candidate is an endpoint with the properties that selection depends on.
type candidate struct {
	endpoint
	ready    bool
	serving  bool // although it is terminating
	local    bool
	forZones []string
	forNodes []string
	serverID string // in hexadecimal digits; empty: by the address
}

// port identifies a list of endpoints of a Service.
type port struct {
	name     string
	protocol Protocol
	v6       bool
}

// pool is the endpoints of one port and family, and the sets that are selected from them.
type pool struct {
	candidates []candidate
	cluster    *set // by the policy Cluster
	local      *set // by the policy Local
	servers    []plannedServer
}

// set is the backends that get new flows, sorted by address.
type set struct {
	members []member
	refs    []BackendRef // set when the members have numbers
}

type member struct {
	L4Addr
	weight uint16
}

func (s *set) empty() bool { return len(s.members) == 0 }

// pools groups the endpoints of all slices by port and family, for the ports of the Service.
func (b *builder) pools(obj *cluster.Service, parts []*cluster.EndpointSlice) (map[port]*pool, []string) {
	out := map[port]*pool{}
	for _, sp := range obj.Ports {
		for _, v6 := range []bool{false, true} {
			out[port{sp.Name, protocolOf(sp.Protocol), v6}] = &pool{}
		}
	}
	var problems []string
	for _, part := range parts {
		weight, problem := weightOf(part)
		if problem != "" {
			problems = append(problems, problem)
		}
		for _, p := range part.Ports {
			at := port{p.Name, protocolOf(p.Protocol), part.AddressType == "IPv6"}
			list := out[at]
			if list == nil {
				continue
			}
			list.candidates = slices.Grow(list.candidates, len(part.Endpoints))
			for i := range part.Endpoints {
				e := &part.Endpoints[i]
				c := b.candidate(obj, e, L4(e.Address, p.Port, at.protocol), weight)
				list.candidates = append(list.candidates, c)
			}
		}
	}
	for _, list := range out {
		list.candidates = unique(list.candidates)
		b.choose(list)
	}
	return out, problems
}

func (b *builder) candidate(obj *cluster.Service, e *cluster.Endpoint, addr L4Addr, weight uint16) candidate {
	c := candidate{
		endpoint: endpoint{L4Addr: addr, State: NotReady, Weight: weight, Node: e.Node, Zone: e.Zone},
		// PublishNotReady: "agents should disregard any indications of ready".
		ready: e.Ready || obj.PublishNotReady, serving: e.Serving && e.Terminating,
		local: e.Node != "" && e.Node == b.node.Name, forZones: e.ForZones, forNodes: e.ForNodes,
		serverID: e.ServerID,
	}
	state := b.state(addr)
	switch {
	case weight == 0, state == Maintenance:
		c.State = Maintenance
	case c.ready && (state == Quarantined || e.Failing):
		c.State = Quarantined
	case c.ready:
		c.State = Active
	case e.Terminating:
		c.State = Terminating
	}
	return c
}

// unique sorts endpoints, and keeps one of each address. An endpoint that moves from one slice to another may be in
// both for a moment; the one with the better state is kept.
func unique(list []candidate) []candidate {
	slices.SortStableFunc(list, func(a, b candidate) int {
		if c := a.Compare(b.L4Addr); c != 0 {
			return c
		}
		return int(a.State) - int(b.State)
	})
	out := list[:0]
	for _, c := range list {
		if n := len(out); n > 0 && out[n-1].L4Addr == c.L4Addr {
			out[n-1].local = out[n-1].local || c.local
			continue
		}
		out = append(out, c)
	}
	return out
}

// choose selects the backends for new flows, for each traffic policy: those that are ready, or if there are none, those
// that are terminating and still serve (KEP-1669), or else quarantined ones.
func (b *builder) choose(p *pool) {
	near := b.topology(p.candidates)
	p.cluster = p.best(
		func(c *candidate) bool { return c.State == Active && near(c) },
		func(c *candidate) bool { return c.State == Terminating && c.serving },
		func(c *candidate) bool { return c.State == Quarantined },
	)
	p.local = p.best(
		func(c *candidate) bool { return c.local && c.State == Active },
		func(c *candidate) bool { return c.local && c.State == Terminating && c.serving },
		func(c *candidate) bool { return c.local && c.State == Quarantined },
	)
}

// best are the members of the first class that has any.
func (p *pool) best(classes ...func(*candidate) bool) *set {
	out := &set{}
	for _, in := range classes {
		for i := range p.candidates {
			if c := &p.candidates[i]; in(c) {
				out.members = append(out.members, member{L4Addr: c.L4Addr, weight: c.Weight})
			}
		}
		if !out.empty() {
			break
		}
	}
	return out
}

// topology returns a function that reports whether an endpoint is near, by topology hints, as kube-proxy does: hints
// for nodes apply if all ready endpoints have some and one is for this node; otherwise hints for zones, likewise;
// otherwise all endpoints are near. Whether there are hints is decided by the writer of the EndpointSlices, by
// trafficDistribution and topology-mode.
func (b *builder) topology(list []candidate) func(*candidate) bool {
	forNode := func(c *candidate) bool { return slices.Contains(c.forNodes, b.node.Name) }
	forZone := func(c *candidate) bool { return b.node.Zone != "" && slices.Contains(c.forZones, b.node.Zone) }
	allNodes, allZones, node, zone := true, true, false, false
	for i := range list {
		c := &list[i]
		if c.State != Active {
			continue
		}
		allNodes, node = allNodes && len(c.forNodes) > 0, node || forNode(c)
		allZones, zone = allZones && len(c.forZones) > 0, zone || forZone(c)
	}
	switch {
	case allNodes && node:
		return forNode
	case allZones && zone:
		return forZone
	}
	return func(*candidate) bool { return true }
}

// localReady is the number of addresses of ready endpoints on this node, of the family with more of them.
func localReady(pools map[port]*pool) int {
	most := 0
	for _, v6 := range []bool{false, true} {
		seen := map[netip.Addr]bool{}
		for at, p := range pools {
			for i := range p.candidates {
				if c := &p.candidates[i]; at.v6 == v6 && c.local && c.State == Active {
					seen[c.Addr()] = true
				}
			}
		}
		most = max(most, len(seen))
	}
	return most
}
