package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"myelin/cluster"
)

// Labels of Kubernetes.
const (
	// proxyName hands a Service to another proxy.
	proxyName = "service.kubernetes.io/service-proxy-name"
	// headless makes a Service with an address one that only DNS knows of.
	headless  = "service.kubernetes.io/headless"
	zoneLabel = "topology.kubernetes.io/zone"
)

// PortRange is inclusive.
type PortRange struct{ First, Last uint16 }

// Config is what the operator chose.
type Config struct {
	// NodePorts are the ports that Services may have on nodes. Zero means
	// 30000..32767, as everywhere in Kubernetes.
	NodePorts PortRange
	// ExternalClusterIP makes ClusterIPs answer traffic from outside.
	ExternalClusterIP bool
	// CrossFamily lets an external address of a family that the Service doesn't
	// have lead to backends of the other one (NAT46/64).
	CrossFamily bool
	// SourceRangeAllTypes makes loadBalancerSourceRanges hold for all that a
	// Service has for clients outside, not its load balancers' addresses alone.
	SourceRangeAllTypes bool
	// Algorithm is that of Services that don't say one; DefaultAlgorithm means
	// Random.
	Algorithm Algorithm
	// FixedAlgorithm and FixedForwarding: Services can't choose on their own. An
	// annotation that does is a problem.
	FixedAlgorithm, FixedForwarding bool
}

// Facts are what is known of this node.
type Facts struct {
	Name, Zone string
	Labels     map[string]string
}

// builder makes plans. It is a function of objects and nothing else.
type builder struct {
	Config
	Facts Facts
	// state is what the operator or a health check says of a backend.
	state func(L4Addr) State
}

// plan is what one Service asks, before it has numbers and before it is known
// whether another one has its addresses.
type plan struct {
	service   Service
	created   time.Time
	frontends []front    // sorted, one of each address
	endpoints []endpoint // likewise
}

// front is a frontend whose backends have no numbers yet.
type front struct {
	L4Addr
	port               string
	kind               Type
	scopes, elsewhere  Scope
	external, internal *set
}

// service makes the plan of a Service. It is nil where there is nothing to do:
// headless, ExternalName, for another proxy, or for other nodes.
func (b *builder) service(obj *cluster.Service, parts []*cluster.EndpointSlice) *plan {
	_, other := obj.Labels[proxyName]
	_, labelled := obj.Labels[headless]
	if other || labelled || obj.Headless || typeOf(obj.Type) == 0 {
		return nil
	}
	w := b.wishesOf(obj)
	if w.elsewhere {
		return nil
	}
	pools, problems := b.pools(obj, parts)
	p := &plan{created: obj.Created, service: Service{
		Namespace: obj.Namespace, Name: obj.Name, Type: typeOf(obj.Type), Affinity: obj.Affinity,
		ExternalLocal: obj.ExternalLocal, InternalLocal: obj.InternalLocal, Algorithm: w.algorithm, Forwarding: w.forwarding,
		SourceDeny: w.deny, PublishNotReady: obj.PublishNotReady, LoadBalancerClass: obj.LoadBalancerClass,
		Problems: append(w.problems, problems...), Source: obj.Source,
	}}
	p.sources(obj)
	b.frontends(p, obj, pools, w.only)
	if p.service.Type == LoadBalancer && obj.ExternalLocal && ourClass(obj.LoadBalancerClass) {
		p.service.HealthCheckNodePort = obj.HealthCheckNodePort
	}
	if p.service.HealthCheckNodePort != 0 {
		p.service.LocalEndpoints = localReady(pools)
	}
	for _, list := range pools {
		for i := range list.candidates {
			p.endpoints = append(p.endpoints, list.candidates[i].endpoint)
		}
	}
	p.settle()
	return p
}

func (p *plan) problem(format string, args ...any) {
	p.service.Problems = append(p.service.Problems, fmt.Sprintf(format, args...))
}

// sources reads who may come. A bad range opens nothing.
func (p *plan) sources(obj *cluster.Service) {
	p.service.Restricted = len(obj.SourceRanges) > 0
	for i, s := range obj.SourceRanges {
		r, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil || r.Addr().Is4In6() {
			p.problem("spec.loadBalancerSourceRanges[%d]: %q is not a CIDR such as 192.0.2.0/24 or 2001:db8::/32", i, s)
			continue
		}
		p.service.SourceRanges = append(p.service.SourceRanges, r.Masked())
	}
}

// ourClass: load balancers without a class, or with one of Cilium's, have their
// addresses announced for nodes to answer. Others' are elsewhere.
func ourClass(class string) bool { return class == "" || strings.HasPrefix(class, "io.cilium/") }

// frontends adds those of every port. With only set, of the three types that
// an object can name, it is that one alone.
func (b *builder) frontends(p *plan, obj *cluster.Service, pools map[port]*pool, only Type) {
	wanted := func(t Type) bool { return only == 0 || only == t }
	families := familiesOf(obj, pools)
	for i, sp := range obj.Ports {
		f := fronts{builder: b, plan: p, obj: obj, port: sp, pools: pools, families: families}
		for _, a := range obj.ClusterIPs {
			if wanted(ClusterIP) {
				f.add(ClusterIP, a, sp.Port)
			}
		}
		if p.service.Type == LoadBalancer && wanted(LoadBalancer) && ourClass(obj.LoadBalancerClass) {
			for _, a := range obj.Ingress {
				f.external(LoadBalancer, "status.loadBalancer.ingress", a, i == 0)
			}
		}
		for _, a := range obj.ExternalIPs {
			f.external(ExternalIP, "spec.externalIPs", a, i == 0)
		}
		if sp.NodePort == 0 || p.service.Type == ClusterIP || !wanted(NodePort) {
			continue
		}
		if r := b.nodePorts(); sp.NodePort < r.First || sp.NodePort > r.Last {
			p.problem("spec.ports[%d].nodePort: %d is not in nodePort.range %d..%d", i, sp.NodePort, r.First, r.Last)
			continue
		}
		for _, v6 := range families {
			f.add(NodePort, AnyAddress(v6), sp.NodePort)
		}
	}
}

func (b *builder) nodePorts() PortRange {
	if b.NodePorts == (PortRange{}) {
		return PortRange{30000, 32767}
	}
	return b.NodePorts
}

// familiesOf are the families that a Service has, true for IPv6. Without an
// API server to say them, its addresses do, or else its endpoints.
func familiesOf(obj *cluster.Service, pools map[port]*pool) []bool {
	var out []bool
	for _, v6 := range []bool{false, true} {
		var has bool
		switch {
		case len(obj.Families) > 0:
			has = slices.Contains(obj.Families, map[bool]string{false: "IPv4", true: "IPv6"}[v6])
		case len(obj.ClusterIPs) > 0:
			has = slices.ContainsFunc(obj.ClusterIPs, func(a netip.Addr) bool { return a.Is6() == v6 })
		default:
			for at, p := range pools {
				has = has || at.v6 == v6 && len(p.candidates) > 0
			}
		}
		if has {
			out = append(out, v6)
		}
	}
	return out
}

// fronts makes the frontends of one port.
type fronts struct {
	*builder
	plan     *plan
	obj      *cluster.Service
	port     cluster.ServicePort
	pools    map[port]*pool
	families []bool
}

// external adds an address that is not of the cluster's own choice.
func (f *fronts) external(kind Type, field string, a netip.Addr, say bool) {
	if !slices.Contains(f.families, a.Is6()) && !f.CrossFamily {
		if say {
			f.plan.problem("%s: %s is not of the Service's families", field, a)
		}
		return
	}
	f.add(kind, a, f.port.Port)
}

// add makes a frontend. Traffic from inside to an external address may go to
// any backend also where the external policy is Local: it has no address of a
// client outside to keep, and that's how kube-proxy does it.
func (f *fronts) add(kind Type, a netip.Addr, number uint16) {
	proto := protocolOf(f.port.Protocol)
	// An address of another family leads across (CrossFamily).
	across := !slices.Contains(f.families, a.Is6())
	from := f.pools[port{f.port.Name, proto, a.Is6() != across}]
	out := front{L4Addr: L4(a, number, proto), port: f.port.Name, kind: kind, scopes: Internal | External}
	out.internal, out.external = from.cluster, from.cluster
	local := f.obj.ExternalLocal
	if kind == ClusterIP {
		local = f.obj.InternalLocal
		if local {
			out.internal = from.local
		}
		if !f.ExternalClusterIP {
			out.scopes, out.external = Internal, &set{}
		}
	}
	if local && out.scopes&External != 0 {
		out.external = from.local
	}
	if out.internal.empty() && !from.cluster.empty() {
		out.elsewhere |= Internal
	}
	if out.external.empty() && !from.cluster.empty() && out.scopes&External != 0 {
		out.elsewhere |= External
	}
	f.plan.frontends = append(f.plan.frontends, out)
}

// settle sorts, and leaves one of each address.
func (p *plan) settle() {
	slices.SortFunc(p.frontends, func(a, b front) int { return cmp.Or(a.Compare(b.L4Addr), cmp.Compare(a.kind, b.kind)) })
	p.frontends = slices.CompactFunc(p.frontends, func(a, b front) bool { return a.L4Addr == b.L4Addr })
	slices.SortFunc(p.endpoints, func(a, b endpoint) int { return cmp.Or(a.Compare(b.L4Addr), cmp.Compare(a.State, b.State)) })
	p.endpoints = slices.CompactFunc(p.endpoints, func(a, b endpoint) bool { return a.L4Addr == b.L4Addr })
}
