// Package policy is the model of network policies: the objects of each API become rules of one kind, in tables. Its
// subpackages compile, enforce and explain them.
package policy

import (
	"fmt"
	"net/netip"

	"myelin/cluster"
)

// Direction is that of a flow, seen from the endpoint a rule is for.
type Direction uint8

// The directions index arrays of two.
const (
	Ingress Direction = iota
	Egress
)

// String is "ingress" or "egress".
func (d Direction) String() string { return [...]string{"ingress", "egress"}[d] }

// Tier orders rules before anything else does.
type Tier uint8

// Tiers in the order of evaluation. TierDefault holds NetworkPolicies
// and CiliumNetworkPolicies: in it deny beats allow, whatever the order, and an
// endpoint that some policy isolates is denied what no rule allows. In the
// others the first rule that matches decides, by priority, then name, then
// place in the object; what none matches goes on to the next tier.
const (
	TierAdmin Tier = iota
	TierDefault
	TierBaseline
)

// Action is what a rule says of what it matches.
type Action uint8

// Pass leaves a tier for the next one; only TierAdmin has it: behind
// TierBaseline is what allows everything.
const (
	Deny Action = iota
	Allow
	Pass
)

// String is "deny", "allow" or "pass".
func (a Action) String() string { return [...]string{"deny", "allow", "pass"}[a] }

// Ref names an object.
type Ref struct {
	// Kind is "NetworkPolicy", "CiliumNetworkPolicy",
	// "CiliumClusterwideNetworkPolicy", "CiliumCIDRGroup" or
	// "ClusterNetworkPolicy".
	Kind string `json:"kind"`
	cluster.Key
}

// String is "Kind namespace/name".
func (r Ref) String() string { return r.Kind + " " + r.Key.String() }

// Origin is the place in an object that a rule was made of.
type Origin struct {
	Ref Ref `json:"ref"`
	// Path is as in "spec.ingress[0]".
	Path string `json:"path"`
	// Source is where the object was read, e.g. "manifests:policies.yaml", and
	// Line the line of Path there; 0: not known.
	Source string `json:"source,omitempty"`
	Line   int    `json:"line,omitempty"`
}

// String is as in "NetworkPolicy default/web spec.ingress[0] (policies.yaml:12)".
func (o Origin) String() string {
	if o.Source == "" {
		return o.Ref.String() + " " + o.Path
	}
	if o.Line == 0 {
		return fmt.Sprintf("%s %s (%s)", o.Ref, o.Path, o.Source)
	}
	return fmt.Sprintf("%s %s (%s:%d)", o.Ref, o.Path, o.Source, o.Line)
}

// Spec is what an object says about one selection of endpoints. An object with
// several specs, or one that treats its directions apart, has several.
type Spec struct {
	Ref Ref `json:"-"`
	// Subject says which endpoints the spec is for.
	Subject Selector `json:"subject"`
	// Nodes: the subject is nodes, by their labels, instead of pods.
	Nodes    bool  `json:"nodes,omitempty"`
	Tier     Tier  `json:"tier"`
	Priority int32 `json:"priority,omitempty"` // TierAdmin and TierBaseline: lower comes first
	// Isolates says, by Direction, that what no rule of TierDefault allows is
	// denied to the endpoints.
	Isolates [2]bool `json:"isolates"`
	Rules    []Rule  `json:"rules"`
	// Required must match, by Direction and Action, the peers that rules of that action
	// select by labels: Cilium's fromRequires and toRequires. They hold for all
	// peers with Endpoints and no Entity, in all rules of TierDefault that the
	// endpoints have, of other objects too; this spec's own peers have them in
	// Peer.Required already.
	Required [2][2][]Selector `json:"-"`
	// Log is what flows that the spec decides are marked with.
	Log string `json:"log,omitempty"`
	// Unenforced says what of the spec beside its rules is not understood, each as
	// "field: reason". What it could mean is denied.
	Unenforced []string `json:"unenforced,omitempty"`
}

// Rule matches flows of one direction by peer and port.
type Rule struct {
	Origin    Origin    `json:"origin"`
	Direction Direction `json:"direction"`
	Action    Action    `json:"action"`
	// Peers: one of them must match. Nil matches all peers, and an
	// empty list that is not nil matches none.
	Peers []Peer `json:"peers"`
	// Ports: one of them must match. Nil matches all.
	Ports []Port `json:"ports"`
	// L7 is what the proxy enforces on the flows that the rule allows; nil: nothing, they do not pass through the
	// proxy. Allow rules of TierDefault only.
	L7 *L7 `json:"l7,omitempty"`
	// Unenforced says which parts of the rule are not understood, or cannot be
	// enforced, each as "field: reason". An allow rule allows nothing by them, a deny
	// rule denies all that they could mean: Peers and Ports are so already.
	Unenforced []string `json:"unenforced,omitempty"`
}

// Peer is what a rule matches at the other end of a flow. One of Endpoints, Nodes, Prefixes, Service and Names is
// set.
type Peer struct {
	// Endpoints selects by labels: pods, nodes and reserved identities.
	Endpoints *Selector `json:"endpoints,omitempty"`
	// Entity is Cilium's name for what Endpoints selects, where it is not the
	// object that says Endpoints; an entity may be several peers.
	Entity string `json:"entity,omitempty"`
	// Nodes selects nodes by their labels.
	Nodes *Selector `json:"nodes,omitempty"`
	// Prefixes selects by address.
	Prefixes *Prefixes `json:"prefixes,omitempty"`
	// Service selects what is behind a Service.
	Service *ServicePeer `json:"service,omitempty"`
	// Names selects the addresses outside the cluster that DNS answers to the endpoint gave for names: toFQDNs.
	Names []NamePattern `json:"names,omitempty"`
	// Required must match as well: fromRequires and toRequires.
	Required []Selector `json:"required,omitempty"`
}

// Prefixes are addresses: those in Include that are not in Except.
type Prefixes struct {
	Include []netip.Prefix `json:"include,omitempty"`
	Except  []netip.Prefix `json:"except,omitempty"`
	// Group and GroupSelector name CiliumCIDRGroups, whose prefixes count as
	// well as Include.
	Group         string    `json:"group,omitempty"`
	GroupSelector *Selector `json:"groupSelector,omitempty"`
	// Pods: addresses of pods and nodes count too (Kubernetes' ipBlock). Else
	// only those outside of the cluster do (Cilium's CIDRs).
	Pods bool `json:"pods,omitempty"`
}

// ServicePeer names Services: by name, or by labels if there is a Selector. An
// empty Namespace means any.
type ServicePeer struct {
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"`
	Selector  *Selector `json:"selector,omitempty"`
}

// Protocols as in IP, with what policies mean by no protocol.
const (
	ProtoAny    uint8 = 0
	ProtoICMP   uint8 = 1
	ProtoTCP    uint8 = 6
	ProtoUDP    uint8 = 17
	ProtoICMPv6 uint8 = 58
	ProtoSCTP   uint8 = 132
)

// Port is a protocol, and ports or types of it.
type Port struct {
	// Proto is ProtoAny for all protocols: then there are no ports.
	Proto uint8
	// First to Last are ports, or ICMP types; 0 to 65535 means all.
	First, Last uint16
	// Name is a port of the pod that flows go to, instead of numbers.
	Name string
}
