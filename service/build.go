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
	// proxyName is the label of Services that another proxy handles.
	proxyName = "service.kubernetes.io/service-proxy-name"
	// headless is the label of Services that are only in DNS, although they have an address.
	headless  = "service.kubernetes.io/headless"
	zoneLabel = "topology.kubernetes.io/zone"
)

// PortRange is inclusive.
type PortRange struct{ First, Last uint16 }

// Config is the configuration.
type Config struct {
	// NodePorts is the range of node ports. Zero means 30000..32767, the default of Kubernetes.
	NodePorts PortRange
	// ExternalClusterIP adds the external scope to ClusterIPs.
	ExternalClusterIP bool
	// CrossFamily lets an external address of a family that the Service lacks lead to backends of the other one
	// (NAT46/64).
	CrossFamily bool
	// SourceRangeAllTypes applies loadBalancerSourceRanges to all external frontends, not only to addresses of load
	// balancers.
	SourceRangeAllTypes bool
	// Algorithm is that of Services without one of their own; empty means Random.
	Algorithm Algorithm
	// QUIC says that connection IDs can select backends. Without it, an annotation that asks for that is a problem.
	QUIC bool
	// FixedAlgorithm and FixedForwarding say that Services cannot choose their own. An annotation that does is a
	// problem.
	FixedAlgorithm, FixedForwarding bool
}

// facts are the properties of this node.
type facts struct {
	Name, Zone string
	Labels     map[string]string
}

// builder computes plans. They depend on objects, configuration and states alone.
type builder struct {
	Config
	node facts
	// state is the state that an operator has set for a backend.
	state func(L4Addr) State
}

// plan is what one Service requires, before numbers are allocated and conflicts between Services are resolved.
type plan struct {
	service   Service
	created   time.Time
	frontends []plannedFrontend // sorted, one of each address
	endpoints []endpoint        // likewise
}

// plannedFrontend is a frontend whose backends have no numbers yet.
type plannedFrontend struct {
	L4Addr
	port               string
	kind               Type
	scopes, elsewhere  Scope
	external, internal *set
	servers            []plannedServer
	local              Scope
}

// service computes the plan of a Service. It is nil for Services that this node does not handle: headless,
// ExternalName, for another proxy, or for other nodes.
func (b *builder) service(obj *cluster.Service, parts []*cluster.EndpointSlice) *plan {
	_, other := obj.Labels[proxyName]
	_, labelled := obj.Labels[headless]
	if other || labelled || obj.Headless || typeOf(obj.Type) == 0 {
		return nil
	}
	options := b.annotationOptions(obj)
	if options.otherNode {
		return nil
	}
	pools, problems := b.pools(obj, parts)
	problems = append(problems, nameServers(pools, options.serverIDLength)...)
	p := &plan{created: obj.Created, service: Service{
		Namespace: obj.Namespace, Name: obj.Name, Type: typeOf(obj.Type), Affinity: obj.Affinity,
		ExternalLocal: obj.ExternalLocal, InternalLocal: obj.InternalLocal,
		Algorithm: options.algorithm, Forwarding: options.forwarding, ServerIDLength: options.serverIDLength,
		SourceDeny: options.deny, PublishNotReady: obj.PublishNotReady, LoadBalancerClass: obj.LoadBalancerClass,
		Problems: append(options.problems, problems...), Source: obj.Source,
	}}
	p.readSourceRanges(obj)
	b.frontends(p, obj, pools, options.only)
	if p.service.Type == LoadBalancer && obj.ExternalLocal && handledClass(obj.LoadBalancerClass) {
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
	p.sortAndDeduplicate()
	return p
}

func (p *plan) problem(format string, args ...any) {
	p.service.Problems = append(p.service.Problems, fmt.Sprintf(format, args...))
}

// readSourceRanges reads the source ranges. An invalid range allows no client.
func (p *plan) readSourceRanges(obj *cluster.Service) {
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

// handledClass reports whether addresses of a load balancer are handled: those without a class, and those of Cilium's
// classes, are announced for nodes to answer. Others belong to devices elsewhere.
func handledClass(class string) bool { return class == "" || strings.HasPrefix(class, "io.cilium/") }

// frontends adds the frontends of every port. If only is set, just those of this type are added, of the three types
// that an object can name.
func (b *builder) frontends(p *plan, obj *cluster.Service, pools map[port]*pool, only Type) {
	wanted := func(t Type) bool { return only == 0 || only == t }
	families := familiesOf(obj, pools)
	for i, sp := range obj.Ports {
		f := portFrontends{builder: b, plan: p, obj: obj, port: sp, pools: pools, families: families}
		for _, a := range obj.ClusterIPs {
			if wanted(ClusterIP) {
				f.add(ClusterIP, a, sp.Port)
			}
		}
		if p.service.Type == LoadBalancer && wanted(LoadBalancer) && handledClass(obj.LoadBalancerClass) {
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

// familiesOf are the families of a Service, true for IPv6. If the object does not list them, they follow from its
// addresses, or else from its endpoints.
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

// portFrontends adds the frontends of one port.
type portFrontends struct {
	*builder
	plan     *plan
	obj      *cluster.Service
	port     cluster.ServicePort
	pools    map[port]*pool
	families []bool
}

// external adds an external address, unless its family is not one of the Service's. say adds a problem then.
func (f *portFrontends) external(kind Type, field string, a netip.Addr, say bool) {
	if !slices.Contains(f.families, a.Is6()) && !f.CrossFamily {
		if say {
			f.plan.problem("%s: %s is not of the Service's families", field, a)
		}
		return
	}
	f.add(kind, a, f.port.Port)
}

// add adds a frontend. Internal traffic to an external address may go to any backend even if the external policy is
// Local: there is no external client address to preserve. kube-proxy does the same.
func (f *portFrontends) add(kind Type, a netip.Addr, number uint16) {
	proto := protocolOf(f.port.Protocol)
	// With CrossFamily, an address of a family that the Service lacks leads to backends of the other one.
	across := !slices.Contains(f.families, a.Is6())
	from := f.pools[port{f.port.Name, proto, a.Is6() != across}]
	out := plannedFrontend{L4Addr: L4(a, number, proto), port: f.port.Name, kind: kind, scopes: Internal | External}
	out.internal, out.external, out.servers = from.cluster, from.cluster, from.servers
	local := f.obj.ExternalLocal
	if kind == ClusterIP {
		local = f.obj.InternalLocal
		if local {
			out.internal, out.local = from.local, Internal
		}
		if !f.ExternalClusterIP {
			out.scopes, out.external = Internal, &set{}
		}
	}
	if local && out.scopes&External != 0 {
		out.external = from.local
		out.local |= External
	}
	if out.internal.empty() && !from.cluster.empty() {
		out.elsewhere |= Internal
	}
	if out.external.empty() && !from.cluster.empty() && out.scopes&External != 0 {
		out.elsewhere |= External
	}
	f.plan.frontends = append(f.plan.frontends, out)
}

// sortAndDeduplicate sorts frontends and endpoints, and keeps one of each address.
func (p *plan) sortAndDeduplicate() {
	slices.SortFunc(p.frontends, func(a, b plannedFrontend) int {
		return cmp.Or(a.Compare(b.L4Addr), cmp.Compare(a.kind, b.kind))
	})
	p.frontends = slices.CompactFunc(p.frontends, func(a, b plannedFrontend) bool { return a.L4Addr == b.L4Addr })
	slices.SortFunc(p.endpoints, func(a, b endpoint) int {
		return cmp.Or(a.Compare(b.L4Addr), cmp.Compare(a.State, b.State))
	})
	p.endpoints = slices.CompactFunc(p.endpoints, func(a, b endpoint) bool { return a.L4Addr == b.L4Addr })
}
