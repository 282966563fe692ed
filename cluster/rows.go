package cluster

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Addr is an IP address: never an IPv4-mapped IPv6 address, never zoned.
type Addr = netip.Addr

// Key names an object inside the cluster. Namespace is empty for kinds that
// have none.
type Key struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// String is "namespace/name", or the name alone.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// Node is a node of the cluster.
type Node struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	// Addresses are the InternalIP addresses in the order of the object: the
	// first of a family is the one that other nodes send to.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// PodCIDRs are the prefixes that the node's pods get addresses from.
	PodCIDRs []netip.Prefix `json:"podCIDRs,omitempty"`
	// WireGuardKey is the node's public key in base64, empty if it has published none.
	WireGuardKey string `json:"wireGuardKey,omitempty"`
	// NextWireGuardKey is the public key that the node changes to, empty if it does not rotate its key.
	NextWireGuardKey string `json:"nextWireGuardKey,omitempty"`
	// IPsec is zero if the node has published nothing.
	IPsec IPsec `json:"ipsec,omitzero"`
	// Source says where the row comes from, e.g. "manifests:nodes.yaml".
	Source string `json:"source,omitempty"`
}

// Annotations of Pods.
const (
	EgressBandwidth  = "kubernetes.io/egress-bandwidth"
	IngressBandwidth = "kubernetes.io/ingress-bandwidth"
	NetworkPriority  = "bandwidth.cilium.io/priority"
)

// UsesAnnotation reports whether an annotation of Pods means something.
func UsesAnnotation(name string) bool {
	return name == EgressBandwidth || name == IngressBandwidth || name == NetworkPriority
}

// WireGuardAnnotation is where nodes publish their public key: Cilium's, on Nodes and CiliumNodes.
const WireGuardAnnotation = "network.cilium.io/wg-pub-key"

// NextWireGuardAnnotation is where they publish the one that they change to, until they have.
const NextWireGuardAnnotation = "myelin.io/wg-next-pub-key"

// IPv4 is the node's first IPv4 address, or the zero Addr.
func (n *Node) IPv4() netip.Addr { return first(n.Addresses, netip.Addr.Is4) }

// IPv6 is the node's first IPv6 address, or the zero Addr.
func (n *Node) IPv6() netip.Addr { return first(n.Addresses, netip.Addr.Is6) }

// Equal reports whether two rows say the same.
func (n *Node) Equal(o *Node) bool {
	return n.Name == o.Name && n.Source == o.Source && n.WireGuardKey == o.WireGuardKey &&
		n.NextWireGuardKey == o.NextWireGuardKey && n.IPsec == o.IPsec &&
		maps.Equal(n.Labels, o.Labels) && slices.Equal(n.Addresses, o.Addresses) && slices.Equal(n.PodCIDRs, o.PodCIDRs)
}

// TableHeader names the columns of TableRow.
func (*Node) TableHeader() []string {
	return []string{"Name", "Addresses", "PodCIDRs", "Labels", "Source"}
}

// TableRow is the row as text.
func (n *Node) TableRow() []string {
	return []string{n.Name, join(n.Addresses), join(n.PodCIDRs), joinLabels(n.Labels), n.Source}
}

// Namespace is a namespace of the cluster.
type Namespace struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	Source string            `json:"source,omitempty"`
}

// Equal reports whether two rows say the same.
func (n *Namespace) Equal(o *Namespace) bool {
	return n.Name == o.Name && n.Source == o.Source && maps.Equal(n.Labels, o.Labels)
}

// TableHeader names the columns of TableRow.
func (*Namespace) TableHeader() []string { return []string{"Name", "Labels", "Source"} }

// TableRow is the row as text.
func (n *Namespace) TableRow() []string {
	return []string{n.Name, joinLabels(n.Labels), n.Source}
}

// Port is a named port of a pod's container.
type Port struct {
	Name string `json:"name"`
	// Number is 1..65535.
	Number uint16 `json:"number"`
	// Protocol is TCP, UDP or SCTP.
	Protocol string `json:"protocol"`
}

// String is "name:number/protocol".
func (p Port) String() string { return fmt.Sprintf("%s:%d/%s", p.Name, p.Number, p.Protocol) }

// HostPort is a port of a container that the node has too.
type HostPort struct {
	// Address is the node's address that has it, unspecified for all of a
	// family, and the zero Addr for all.
	Address netip.Addr `json:"address,omitzero"`
	// Port and Target are 1..65535, the node's and the container's.
	Port   uint16 `json:"port"`
	Target uint16 `json:"target"`
	// Protocol is TCP, UDP or SCTP.
	Protocol string `json:"protocol"`
}

// Pod is a pod of the cluster.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID is the object's UID, empty where the source knows none.
	UID string `json:"uid,omitempty"`
	// NodeName is the node that the pod is bound to, empty before scheduling.
	NodeName string `json:"nodeName,omitempty"`
	// ServiceAccount is spec.serviceAccountName, empty where the source has none:
	// an API server always has.
	ServiceAccount string            `json:"serviceAccount,omitempty"`
	Labels         map[string]string `json:"labels,omitempty"`
	Annotations    map[string]string `json:"annotations,omitempty"`
	// HostNetwork pods share the node's network namespace and its addresses.
	HostNetwork bool `json:"hostNetwork,omitempty"`
	// NetAdmin: a container has CAP_NET_ADMIN in the pod's network namespace, or
	// may get it.
	NetAdmin bool `json:"netAdmin,omitempty"`
	// Phase is Pending, Running, Succeeded, Failed, Unknown or empty.
	Phase string `json:"phase,omitempty"`
	// Ready is the condition of that name. A Pod without any conditions, which a
	// kubelet never writes, is ready while it is running.
	Ready bool `json:"ready,omitempty"`
	// Terminating Pods are being deleted: metadata.deletionTimestamp is set.
	Terminating bool `json:"terminating,omitempty"`
	// Addresses are status.podIPs, at most one of a family; empty if unknown.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// HostAddresses are status.hostIPs, the node's addresses as the pod's
	// status has them.
	HostAddresses []netip.Addr `json:"hostAddresses,omitempty"`
	// Ports are the named ports of all containers.
	Ports []Port `json:"ports,omitempty"`
	// HostPorts are the ports of all containers that the node is to have too.
	HostPorts []HostPort `json:"hostPorts,omitempty"`
	Source    string     `json:"source,omitempty"`
}

// Key is the pod's namespace and name.
func (p *Pod) Key() Key { return Key{Namespace: p.Namespace, Name: p.Name} }

// IPv4 is the pod's IPv4 address, or the zero Addr.
func (p *Pod) IPv4() netip.Addr { return first(p.Addresses, netip.Addr.Is4) }

// IPv6 is the pod's IPv6 address, or the zero Addr.
func (p *Pod) IPv6() netip.Addr { return first(p.Addresses, netip.Addr.Is6) }

// Ended reports whether all containers ended for good. Kubernetes may give
// the addresses of such a pod to another one while the object still exists.
func (p *Pod) Ended() bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

// OwnsAddresses reports whether Addresses stand for this pod alone.
func (p *Pod) OwnsAddresses() bool { return !p.HostNetwork && !p.Ended() }

// Equal reports whether two rows say the same.
func (p *Pod) Equal(o *Pod) bool {
	return p.Namespace == o.Namespace && p.Name == o.Name && p.UID == o.UID &&
		p.NodeName == o.NodeName && p.ServiceAccount == o.ServiceAccount && p.HostNetwork == o.HostNetwork &&
		p.NetAdmin == o.NetAdmin &&
		p.Phase == o.Phase && p.Ready == o.Ready && p.Terminating == o.Terminating && p.Source == o.Source &&
		maps.Equal(p.Labels, o.Labels) && maps.Equal(p.Annotations, o.Annotations) &&
		slices.Equal(p.Addresses, o.Addresses) &&
		slices.Equal(p.HostAddresses, o.HostAddresses) && slices.Equal(p.Ports, o.Ports) &&
		slices.Equal(p.HostPorts, o.HostPorts)
}

// TableHeader names the columns of TableRow.
func (*Pod) TableHeader() []string {
	return []string{"Namespace", "Name", "Node", "Addresses", "Phase", "Labels", "Source"}
}

// TableRow is the row as text.
func (p *Pod) TableRow() []string {
	addrs := join(p.Addresses)
	if p.HostNetwork {
		addrs = "host " + addrs
	}
	return []string{p.Namespace, p.Name, p.NodeName, strings.TrimSpace(addrs), p.Phase, joinLabels(p.Labels), p.Source}
}

// WideHeader names the columns of WideRow.
func (*Pod) WideHeader() []string {
	return []string{"UID", "Ready", "Service account", "Host addresses", "Ports", "Host ports"}
}

// WideRow has what -o wide shows beside TableRow.
func (p *Pod) WideRow() []string {
	var ports, hostPorts []string
	for _, port := range p.Ports {
		ports = append(ports, fmt.Sprintf("%s=%d/%s", port.Name, port.Number, port.Protocol))
	}
	for _, port := range p.HostPorts {
		hostPorts = append(hostPorts, fmt.Sprintf("%d->%d/%s", port.Port, port.Target, port.Protocol))
	}
	return []string{
		p.UID, strconv.FormatBool(p.Ready), p.ServiceAccount, join(p.HostAddresses), strings.Join(ports, " "),
		strings.Join(hostPorts, " "),
	}
}

func first(addrs []netip.Addr, family func(netip.Addr) bool) netip.Addr {
	for _, a := range addrs {
		if family(a) {
			return a
		}
	}
	return netip.Addr{}
}

func join[T fmt.Stringer](items []T) string {
	parts := make([]string, len(items))
	for i, v := range items {
		parts[i] = v.String()
	}
	return strings.Join(parts, " ")
}

func joinLabels(labels map[string]string) string {
	parts := make([]string, 0, len(labels))
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, k+"="+labels[k])
	}
	return strings.Join(parts, ",")
}
