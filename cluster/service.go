package cluster

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Service is a Service of the cluster, as the object has it: what it asks of a
// node is worked out elsewhere.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID is the object's UID, empty where the source knows none.
	UID         string            `json:"uid,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Selector    map[string]string `json:"selector,omitempty"`
	// Created is zero where the source doesn't know it.
	Created time.Time `json:"created,omitzero"`
	// Type is ClusterIP, NodePort, LoadBalancer or ExternalName.
	Type string `json:"type"`
	// Headless Services have no address of their own (clusterIP None).
	Headless bool `json:"headless,omitempty"`
	// ClusterIPs has at most one of a family; empty before they are allocated.
	ClusterIPs []netip.Addr `json:"clusterIPs,omitempty"`
	// Families are IPv4 and IPv6 as spec.ipFamilies has them; may be empty.
	Families    []string     `json:"families,omitempty"`
	ExternalIPs []netip.Addr `json:"externalIPs,omitempty"`
	// Ingress are the addresses of status.loadBalancer that nodes are to
	// answer for: those with ipMode Proxy are left out.
	Ingress []netip.Addr  `json:"ingress,omitempty"`
	Ports   []ServicePort `json:"ports,omitempty"`
	// Affinity is how long a client stays with its backend; 0: not at all.
	Affinity            time.Duration `json:"affinity,omitempty"`
	ExternalLocal       bool          `json:"externalLocal,omitempty"`
	InternalLocal       bool          `json:"internalLocal,omitempty"`
	PublishNotReady     bool          `json:"publishNotReady,omitempty"`
	HealthCheckNodePort uint16        `json:"healthCheckNodePort,omitempty"`
	LoadBalancerClass   string        `json:"loadBalancerClass,omitempty"`
	TrafficDistribution string        `json:"trafficDistribution,omitempty"`
	// SourceRanges are as they are written: a bad one is no reason to refuse
	// the object.
	SourceRanges []string `json:"sourceRanges,omitempty"`
	Source       string   `json:"source,omitempty"`
}

// ServicePort is a port of a Service. The backends' ports are in the
// EndpointSlices, by the same name; targets are for the controller that makes those.
type ServicePort struct {
	Name string `json:"name,omitempty"`
	// Protocol is TCP, UDP or SCTP.
	Protocol string `json:"protocol"`
	Port     uint16 `json:"port"`
	// NodePort is 0 where none is allocated.
	NodePort uint16 `json:"nodePort,omitempty"`
	// Target is the pods' port, 0 where it is Port or has a name.
	Target uint16 `json:"target,omitempty"`
	// TargetName is the name of a port of the pods' containers, which may have
	// another number in each.
	TargetName string `json:"targetName,omitempty"`
}

// String is "name:port/protocol", with ":nodePort" after port if there is one.
func (p ServicePort) String() string {
	text := strconv.Itoa(int(p.Port))
	if p.NodePort != 0 {
		text += ":" + strconv.Itoa(int(p.NodePort))
	}
	if p.Name != "" {
		text = p.Name + ":" + text
	}
	return text + "/" + p.Protocol
}

// Key is the Service's namespace and name.
func (s *Service) Key() Key { return Key{Namespace: s.Namespace, Name: s.Name} }

// Equal reports whether two rows say the same.
func (s *Service) Equal(o *Service) bool {
	return s.Namespace == o.Namespace && s.Name == o.Name && s.UID == o.UID && s.Source == o.Source &&
		s.Created.Equal(o.Created) && s.Type == o.Type && s.Headless == o.Headless && s.Affinity == o.Affinity &&
		s.ExternalLocal == o.ExternalLocal && s.InternalLocal == o.InternalLocal &&
		s.PublishNotReady == o.PublishNotReady && s.HealthCheckNodePort == o.HealthCheckNodePort &&
		s.LoadBalancerClass == o.LoadBalancerClass && s.TrafficDistribution == o.TrafficDistribution &&
		maps.Equal(s.Labels, o.Labels) && maps.Equal(s.Annotations, o.Annotations) && maps.Equal(s.Selector,
		o.Selector) &&
		slices.Equal(s.ClusterIPs, o.ClusterIPs) && slices.Equal(s.Families, o.Families) &&
		slices.Equal(s.ExternalIPs, o.ExternalIPs) && slices.Equal(s.Ingress, o.Ingress) &&
		slices.Equal(s.Ports, o.Ports) && slices.Equal(s.SourceRanges, o.SourceRanges)
}

// TableHeader names the columns of TableRow.
func (*Service) TableHeader() []string {
	return []string{"Namespace", "Name", "Type", "ClusterIPs", "ExternalIPs", "Ingress", "Ports", "Source"}
}

// TableRow is the row as text.
func (s *Service) TableRow() []string {
	own := join(s.ClusterIPs)
	if s.Headless {
		own = "None"
	}
	return []string{s.Namespace, s.Name, s.Type, own, join(s.ExternalIPs), join(s.Ingress), join(s.Ports), s.Source}
}

// EndpointSlice is an EndpointSlice of the cluster.
type EndpointSlice struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Service is the name of the Service that it is of; empty: of none.
	Service string `json:"service,omitempty"`
	// Annotations are those of service.cilium.io alone: others change with
	// every write and say nothing here.
	Annotations map[string]string `json:"annotations,omitempty"`
	// AddressType is IPv4, IPv6 or FQDN; the last one has no Endpoints here.
	AddressType string      `json:"addressType"`
	Ports       []SlicePort `json:"ports,omitempty"`
	Endpoints   []Endpoint  `json:"endpoints,omitempty"`
	Source      string      `json:"source,omitempty"`
}

// SlicePort is a port that every endpoint of a slice has.
type SlicePort struct {
	Name string `json:"name,omitempty"`
	// Protocol is TCP, UDP or SCTP.
	Protocol string `json:"protocol"`
	// Port is 1..65535.
	Port uint16 `json:"port"`
}

// String is "name:port/protocol", or without a name.
func (p SlicePort) String() string {
	if p.Name == "" {
		return fmt.Sprintf("%d/%s", p.Port, p.Protocol)
	}
	return fmt.Sprintf("%s:%d/%s", p.Name, p.Port, p.Protocol)
}

// Endpoint is one address of a slice: its first, for others have no meaning.
type Endpoint struct {
	Address netip.Addr `json:"address"`
	// Conditions that the object leaves open are what the API says they mean.
	Ready       bool `json:"ready,omitempty"`
	Serving     bool `json:"serving,omitempty"`
	Terminating bool `json:"terminating,omitempty"`
	// Failing endpoints fail a health check that this node makes itself.
	Failing bool   `json:"failing,omitempty"`
	Node    string `json:"node,omitempty"`
	Zone    string `json:"zone,omitempty"`
	// Pod is the pod behind it, empty where something else is.
	Pod Key `json:"pod,omitzero"`
	// ServerID names the endpoint in QUIC connection IDs, in hexadecimal digits; empty: its address does.
	ServerID string `json:"serverID,omitempty"`
	// ForZones and ForNodes are the hints: which clients should use the endpoint.
	ForZones []string `json:"forZones,omitempty"`
	ForNodes []string `json:"forNodes,omitempty"`
}

// Equal reports whether two endpoints are the same.
func (e Endpoint) Equal(o Endpoint) bool {
	return e.Address == o.Address && e.Ready == o.Ready && e.Serving == o.Serving && e.Terminating == o.Terminating &&
		e.Failing == o.Failing && e.ServerID == o.ServerID &&
		e.Node == o.Node && e.Zone == o.Zone && e.Pod == o.Pod && slices.Equal(e.ForZones, o.ForZones) &&
		slices.Equal(e.ForNodes, o.ForNodes)
}

// Key is the slice's namespace and name.
func (s *EndpointSlice) Key() Key { return Key{Namespace: s.Namespace, Name: s.Name} }

// ServiceKey is the Service that the slice is of; its name may be empty.
func (s *EndpointSlice) ServiceKey() Key { return Key{Namespace: s.Namespace, Name: s.Service} }

// Equal reports whether two rows say the same.
func (s *EndpointSlice) Equal(o *EndpointSlice) bool {
	return s.Namespace == o.Namespace && s.Name == o.Name && s.Service == o.Service && s.AddressType == o.AddressType &&
		s.Source == o.Source && maps.Equal(s.Annotations, o.Annotations) && slices.Equal(s.Ports, o.Ports) &&
		slices.EqualFunc(s.Endpoints, o.Endpoints, Endpoint.Equal)
}

// TableHeader names the columns of TableRow.
func (*EndpointSlice) TableHeader() []string {
	return []string{"Namespace", "Name", "Service", "Ports", "Endpoints", "Source"}
}

// TableRow is the row as text; an endpoint that isn't plainly ready says so.
func (s *EndpointSlice) TableRow() []string {
	parts := make([]string, len(s.Endpoints))
	for i, e := range s.Endpoints {
		parts[i] = e.Address.String()
		switch {
		case e.Terminating && e.Serving:
			parts[i] += " (terminating)"
		case e.Terminating:
			parts[i] += " (terminating, not serving)"
		case !e.Ready:
			parts[i] += " (not ready)"
		case e.Failing:
			parts[i] += " (failing)"
		}
	}
	return []string{s.Namespace, s.Name, s.Service, join(s.Ports), strings.Join(parts, " "), s.Source}
}
