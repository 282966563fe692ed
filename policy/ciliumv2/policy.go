// Package ciliumv2 has Cilium's policy objects as Go types: apiVersion
// cilium.io/v2, and CiliumCIDRGroup of v2alpha1, which looks the same. The names
// are those of the API, and the comments say what Cilium means by them. Cilium's
// own types would bring all of Cilium along.
//
// A list that is nil was absent; one that is empty but not nil was written as [], and an empty list of peers matches no
// peer.
package ciliumv2

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CiliumNetworkPolicy is a policy for pods of its namespace.
type CiliumNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec  *Rule  `json:"spec,omitempty"`
	Specs []Rule `json:"specs,omitempty"`
	// Status is what nodes report. Nothing here reads it.
	Status json.RawMessage `json:"status,omitempty"`
}

// CiliumClusterwideNetworkPolicy is a policy for pods of all namespaces, or for
// nodes.
type CiliumClusterwideNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   *Rule           `json:"spec,omitempty"`
	Specs  []Rule          `json:"specs,omitempty"`
	Status json.RawMessage `json:"status,omitempty"`
}

// CiliumCIDRGroup gives prefixes a name, so that policies can share them.
type CiliumCIDRGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec CIDRGroupSpec `json:"spec"`
}

// CIDRGroupSpec is what a CiliumCIDRGroup holds.
type CIDRGroupSpec struct {
	// ExternalCIDRs are prefixes or single addresses.
	ExternalCIDRs []string `json:"externalCIDRs"`
}

// Rule is one spec of a policy. One of its selectors must be set, and one of
// its four lists not empty.
type Rule struct {
	// EndpointSelector selects pods; keys may have a prefix for the label's
	// source, as in "k8s:app" or "reserved:init".
	EndpointSelector *metav1.LabelSelector `json:"endpointSelector,omitempty"`
	// NodeSelector selects nodes; CiliumClusterwideNetworkPolicy only.
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	Ingress     []IngressRule     `json:"ingress,omitempty"`
	IngressDeny []IngressDenyRule `json:"ingressDeny,omitempty"`
	Egress      []EgressRule      `json:"egress,omitempty"`
	EgressDeny  []EgressDenyRule  `json:"egressDeny,omitempty"`

	Labels            []Label      `json:"labels,omitempty"`
	EnableDefaultDeny *DefaultDeny `json:"enableDefaultDeny,omitempty"`
	Description       string       `json:"description,omitempty"`
	Log               *Log         `json:"log,omitempty"`
}

// DefaultDeny says whether what no rule allows is denied. Nil: it is, in a
// direction in which there are rules.
type DefaultDeny struct {
	Ingress *bool `json:"ingress,omitempty"`
	Egress  *bool `json:"egress,omitempty"`
}

// Label is one of a rule's own labels; they select nothing.
type Label struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Source string `json:"source,omitempty"`
}

// Log is what flows that the rule decides are marked with.
type Log struct {
	Value string `json:"value,omitempty"`
}

// FromPeers are the sources of an ingress rule. At most one of the lists may be
// set, beside FromRequires.
type FromPeers struct {
	FromEndpoints []metav1.LabelSelector `json:"fromEndpoints,omitempty"`
	// FromRequires must be met by what FromEndpoints selects, here and in all
	// other rules for the same endpoints.
	FromRequires []metav1.LabelSelector `json:"fromRequires,omitempty"`
	FromCIDR     []string               `json:"fromCIDR,omitempty"`
	FromCIDRSet  []CIDRRule             `json:"fromCIDRSet,omitempty"`
	FromEntities []string               `json:"fromEntities,omitempty"`
	FromGroups   []Groups               `json:"fromGroups,omitempty"`
	FromNodes    []metav1.LabelSelector `json:"fromNodes,omitempty"`
}

// ToPeers are the destinations of an egress rule. At most one of the lists may
// be set, beside ToRequires.
type ToPeers struct {
	ToEndpoints []metav1.LabelSelector `json:"toEndpoints,omitempty"`
	ToRequires  []metav1.LabelSelector `json:"toRequires,omitempty"`
	ToCIDR      []string               `json:"toCIDR,omitempty"`
	ToCIDRSet   []CIDRRule             `json:"toCIDRSet,omitempty"`
	ToEntities  []string               `json:"toEntities,omitempty"`
	ToServices  []Service              `json:"toServices,omitempty"`
	ToGroups    []Groups               `json:"toGroups,omitempty"`
	ToNodes     []metav1.LabelSelector `json:"toNodes,omitempty"`
}

// IngressRule allows what all of its parts match. A part that is absent matches
// everything.
type IngressRule struct {
	FromPeers      `json:",inline"`
	ToPorts        []PortRule      `json:"toPorts,omitempty"`
	ICMPs          []ICMPRule      `json:"icmps,omitempty"`
	Authentication *Authentication `json:"authentication,omitempty"`
}

// IngressDenyRule denies what all of its parts match, whatever other rules
// allow.
type IngressDenyRule struct {
	FromPeers `json:",inline"`
	ToPorts   []PortDenyRule `json:"toPorts,omitempty"`
	ICMPs     []ICMPRule     `json:"icmps,omitempty"`
}

// EgressRule allows what all of its parts match.
type EgressRule struct {
	ToPeers        `json:",inline"`
	ToPorts        []PortRule      `json:"toPorts,omitempty"`
	ToFQDNs        []FQDN          `json:"toFQDNs,omitempty"`
	ICMPs          []ICMPRule      `json:"icmps,omitempty"`
	Authentication *Authentication `json:"authentication,omitempty"`
}

// EgressDenyRule denies what all of its parts match.
type EgressDenyRule struct {
	ToPeers `json:",inline"`
	ToPorts []PortDenyRule `json:"toPorts,omitempty"`
	ICMPs   []ICMPRule     `json:"icmps,omitempty"`
}

// CIDRRule is prefixes outside of the cluster: exactly one of CIDR,
// CIDRGroupRef and CIDRGroupSelector, without Except.
type CIDRRule struct {
	CIDR              string                `json:"cidr,omitempty"`
	CIDRGroupRef      string                `json:"cidrGroupRef,omitempty"`
	CIDRGroupSelector *metav1.LabelSelector `json:"cidrGroupSelector,omitempty"`
	// Except must lie within CIDR.
	Except []string `json:"except,omitempty"`
}
