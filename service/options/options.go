// Package options is the configuration of Services.
package options

import (
	"net/netip"

	"myelin/config/key"
)

// Options are the values of the keys.
type Options struct {
	// KubeProxyReplacement turns all on that kube-proxy does: SocketLB, NodePort,
	// HostPort and ExternalIPs.
	KubeProxyReplacement bool
	SocketLB             SocketLB
	NodePort             NodePort
	HostPort             bool // key hostPort.enabled
	ExternalIPs          bool // key externalIPs.enabled
	LoadBalancer         LoadBalancer
	Maglev               Maglev
	// NoBackendResponse is what packets to a Service without backends get: "reject",
	// an answer that says so; "drop", none.
	NoBackendResponse string // key serviceNoBackendResponse
	// NAT46x64Gateway lets addresses for clients outside lead to backends of the
	// other family.
	NAT46x64Gateway bool // key nat46x64Gateway.enabled
}

// Default are the options of an empty file.
func Default() Options {
	return Options{
		NoBackendResponse: "reject", SocketLB: SocketLB{TerminatePodConnections: true},
		NodePort: NodePort{Range: key.PortRange{First: 30000, Last: 32767}, BindProtection: true,
			EnableHealthCheck: true},
		LoadBalancer: LoadBalancer{Mode: "snat", DSRDispatch: "opt", Acceleration: "disabled",
			Algorithm: "random", ServiceTopology: true, MapMax: 65536},
	}
}

// SocketLB is what applications get when they ask for a Service's address.
type SocketLB struct {
	Enabled bool
	// HostNamespaceOnly leaves the sockets of pods alone.
	HostNamespaceOnly bool
	// TerminatePodConnections ends UDP sockets of pods whose backend has gone, as
	// is always done with those of the host.
	TerminatePodConnections bool
}

// NodePort is what Services have on the addresses of nodes.
type NodePort struct {
	Enabled bool          // packets are translated for Services of all types
	Range   key.PortRange // key nodePort.range, "30000,32767"
	// Addresses are those of nodes on which node ports, and host ports of any
	// address, answer; none: all.
	Addresses []netip.Prefix
	// BindProtection keeps the node's own processes from binding ports that
	// Services have.
	BindProtection bool
	// EnableHealthCheck serves the health check node ports of Services.
	EnableHealthCheck bool
}

// LoadBalancer is how backends are chosen.
type LoadBalancer struct {
	// Mode is how clients outside get to backends on other nodes: "snat", from the
	// node's address; "dsr", from their own, and the backend's node answers;
	// "hybrid", TCP as dsr, others as snat.
	Mode string
	// DSRDispatch is how the backend's node learns what was asked for: "opt", by an
	// option of the packet; "ipip" and "geneve", the same inside of another packet
	// to the node. In a tunnel it is an option always.
	DSRDispatch string
	// Acceleration is whether XDP forwards flows that it knows: "disabled";
	// "native" and "best-effort", in drivers that can; "testing-only", on all
	// devices, after the driver.
	Acceleration string
	// RSSIPv4 and RSSIPv6 are prefixes that outer senders of IPIP are taken from,
	// by flow, so that receivers spread them over their queues; invalid: the node's own address.
	RSSIPv4, RSSIPv6  netip.Prefix
	QUICConnectionIDs bool   // key myelin.quicConnectionIDs: they select backends of Services with QUIC
	Algorithm         string // "random", "maglev" or "least-conn"
	// ServiceTopology prefers the endpoints that EndpointSlices have hints for,
	// as kube-proxy does. It can't be turned off: Warnings say so.
	ServiceTopology bool
	// Standalone is without a cluster: Services come by API, and the node has no
	// pods, no Node object and no manifests.
	Standalone bool
	// The keys bpf.lb*.
	MapMax            int  // of frontends, of backends, and of their sets
	ExternalClusterIP bool // ClusterIPs also for clients outside of the cluster
	// SourceRangeAllTypes makes source ranges those of a Service's node ports and external IPs, too.
	SourceRangeAllTypes bool
	AlgorithmAnnotation bool // Services may choose an algorithm of their own
	ModeAnnotation      bool // Services may choose a mode of their own
}

// Maglev is what Maglev tables are made by. All nodes must have the same.
type Maglev struct {
	TableSize int    // in places; 0: as the number of backends needs
	HashSeed  string // any text
}
