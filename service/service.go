// Package service computes the desired state of load balancing on one node from Services, EndpointSlices and host
// ports: tables of frontends and backends, which package maps writes to the kernel.
package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"myelin/cluster"
)

// Type is why a frontend exists, and the type of a Service.
type Type uint8

// The types. If two frontends of a Service have the same address, the first type of this list applies.
const (
	ClusterIP Type = iota + 1
	LoadBalancer
	ExternalIP
	NodePort
	HostPort
)

func (t Type) String() string {
	names := []string{"unknown", "ClusterIP", "LoadBalancer", "ExternalIPs", "NodePort", "HostPort"}
	if int(t) < len(names) {
		return names[t]
	}
	return names[0]
}

// MarshalText is the type's name.
func (t Type) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// Scope is a set of origins of traffic.
type Scope uint8

// External is traffic from outside the cluster, Internal from its pods and nodes.
const (
	External Scope = 1 << iota
	Internal
)

// Algorithm selects a backend for a new flow.
type Algorithm string

// Algorithms. LeastConnections selects the better of two random backends; the empty one is the node's.
const (
	Random           Algorithm = "random"
	Maglev           Algorithm = "maglev"
	LeastConnections Algorithm = "least-conn"
)

// Forwarding is how packets are sent to a backend on another node.
type Forwarding string

// DefaultForwarding is that of the node; Hybrid is DSR for TCP and SNAT for the rest.
const (
	DefaultForwarding Forwarding = ""
	SNAT              Forwarding = "snat"
	DSR               Forwarding = "dsr"
	Hybrid            Forwarding = "hybrid"
)

// Service is what a Kubernetes Service, or a Pod with host ports, requires on this node.
type Service struct {
	// ID is never 0. It stays the same over restarts of the agent while the Service exists.
	ID        uint32 `json:"id"`
	Namespace string `json:"namespace"`
	// Name is that of the object, for a Pod followed by ":host-ports".
	Name string `json:"name"`
	// Type is that of the object; frontends have their own.
	Type Type `json:"type"`
	// Affinity is how long a client stays with its backend; 0 is off.
	Affinity time.Duration `json:"affinity,omitempty"`
	// ExternalLocal and InternalLocal are the traffic policies. The sets of frontends take them into account; they also
	// preserve the client's address.
	ExternalLocal bool `json:"externalLocal,omitempty"`
	InternalLocal bool `json:"internalLocal,omitempty"`
	// Restricted says that LoadBalancer frontends check source ranges, for both families. SourceRanges are allowed, or
	// denied with SourceDeny. Without a valid range, no client is allowed.
	Restricted   bool           `json:"restricted,omitempty"`
	SourceDeny   bool           `json:"sourceDeny,omitempty"`
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	Algorithm    Algorithm      `json:"algorithm,omitempty"`
	Forwarding   Forwarding     `json:"forwarding,omitempty"`
	// ServerIDLength is the length of server IDs in QUIC connection IDs, in octets, by which backends of UDP ports are
	// selected; 0: they are not.
	ServerIDLength      uint8  `json:"serverIDLength,omitempty"`
	HealthCheckNodePort uint16 `json:"healthCheckNodePort,omitempty"`
	// LocalEndpoints is the number of addresses of ready endpoints on this node, of the family with more of them. It is
	// 0 without a HealthCheckNodePort.
	LocalEndpoints    int    `json:"localEndpoints"`
	PublishNotReady   bool   `json:"publishNotReady,omitempty"`
	LoadBalancerClass string `json:"loadBalancerClass,omitempty"`
	// Problems are the parts of the object that are not realised, each as "field: reason".
	Problems []string `json:"problems,omitempty"`
	// Source is where the object is from, e.g. "manifests:web.yaml".
	Source string `json:"source,omitempty"`
}

// Key is the Service's namespace and name.
func (s *Service) Key() cluster.Key { return cluster.Key{Namespace: s.Namespace, Name: s.Name} }

// Equal reports whether two rows are the same.
func (s *Service) Equal(o *Service) bool {
	return s.ID == o.ID && s.Namespace == o.Namespace && s.Name == o.Name && s.Type == o.Type &&
		s.Affinity == o.Affinity &&
		s.ExternalLocal == o.ExternalLocal && s.InternalLocal == o.InternalLocal && s.Restricted == o.Restricted &&
		s.SourceDeny == o.SourceDeny && slices.Equal(s.SourceRanges, o.SourceRanges) && s.Algorithm == o.Algorithm &&
		s.Forwarding == o.Forwarding && s.ServerIDLength == o.ServerIDLength &&
		s.HealthCheckNodePort == o.HealthCheckNodePort &&
		s.LocalEndpoints == o.LocalEndpoints && s.PublishNotReady == o.PublishNotReady &&
		s.LoadBalancerClass == o.LoadBalancerClass && s.Source == o.Source && slices.Equal(s.Problems, o.Problems)
}

// TableHeader names the columns of TableRow.
func (*Service) TableHeader() []string {
	return []string{"ID", "Service", "Type", "Options", "Problems", "Source"}
}

// TableRow is the row as text.
func (s *Service) TableRow() []string {
	return []string{
		strconv.FormatUint(uint64(s.ID), 10), s.Key().String(), s.Type.String(),
		strings.Join(s.options(), " "), strings.Join(s.Problems, "; "), s.Source,
	}
}

// options are the settings that differ from the default.
func (s *Service) options() []string {
	var out []string
	add := func(on bool, format string, args ...any) {
		if on {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(s.Affinity > 0, "affinity=%s", s.Affinity)
	add(s.ExternalLocal, "external=local")
	add(s.InternalLocal, "internal=local")
	add(s.Restricted && !s.SourceDeny, "allow=%v", s.SourceRanges)
	add(s.Restricted && s.SourceDeny, "deny=%v", s.SourceRanges)
	add(s.Algorithm != "", "algorithm=%s", s.Algorithm)
	add(s.Forwarding != "", "forwarding=%s", s.Forwarding)
	add(s.ServerIDLength != 0, "quic-server-id-length=%d", s.ServerIDLength)
	add(s.HealthCheckNodePort != 0, "health=%d(%d)", s.HealthCheckNodePort, s.LocalEndpoints)
	add(s.PublishNotReady, "publish-not-ready")
	add(s.LoadBalancerClass != "", "class=%s", s.LoadBalancerClass)
	return out
}
