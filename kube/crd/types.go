package crd

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CiliumLoadBalancerIPPool is addresses for Services of type LoadBalancer.
type CiliumLoadBalancerIPPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   PoolSpec   `json:"spec"`
	Status PoolStatus `json:"status,omitzero"`
}

// PoolSpec has the addresses of a pool, and selects the Services that get them.
type PoolSpec struct {
	// ServiceSelector selects Services by labels, by io.kubernetes.service.namespace and
	// io.kubernetes.service.name; all are selected where it is absent.
	ServiceSelector *metav1.LabelSelector `json:"serviceSelector,omitempty"`
	// AllowFirstLastIPs is whether the first and the last address of a cidr are given
	// away. They are, unless it is No.
	AllowFirstLastIPs string `json:"allowFirstLastIPs,omitempty"`
	// Blocks are the addresses.
	Blocks []PoolBlock `json:"blocks,omitempty"`
	// Disabled pools give nothing away. What they have given stays.
	Disabled bool `json:"disabled,omitempty"`
}

// PoolBlock is a prefix, or a range of addresses.
type PoolBlock struct {
	// CIDR is a prefix.
	CIDR string `json:"cidr,omitempty"`
	// Start is the first address of a range.
	Start string `json:"start,omitempty"`
	// Stop is the last address of a range, which is Start alone where it is absent.
	Stop string `json:"stop,omitempty"`
}

// PoolStatus is what the operator says of a pool.
type PoolStatus struct {
	// Conditions are cilium.io/PoolConflict, and cilium.io/IPsTotal, IPsAvailable
	// and IPsUsed, whose messages are numbers.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// CiliumNode is what the operator and the agent of a node know of it: the
// prefixes of its pods, and which policies it has.
type CiliumNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   NodeSpec   `json:"spec"`
	Status NodeStatus `json:"status,omitzero"`
}

// NodeSpec is written by the operator.
type NodeSpec struct {
	// Addresses are those of the Node.
	Addresses []NodeAddress `json:"addresses,omitempty"`
	// IPAM is what pods get addresses of.
	IPAM NodeIPAM `json:"ipam,omitzero"`
}

// NodeAddress is an address of a node.
type NodeAddress struct {
	// Type is InternalIP or another that Nodes have.
	Type string `json:"type,omitempty"`
	// IP is the address.
	IP string `json:"ip,omitempty"`
}

// NodeIPAM is what pods get addresses of.
type NodeIPAM struct {
	// PodCIDRs are prefixes, at most one of a family.
	PodCIDRs []string `json:"podCIDRs,omitempty"`
}

// NodeStatus is written by the operator (ipam) and by the node's agent (policies).
type NodeStatus struct {
	// IPAM is how the operator gets on with the node's prefixes.
	IPAM NodeIPAMStatus `json:"ipam,omitzero"`
	// Policies is what the node has of the cluster's policies.
	Policies *NodePolicies `json:"policies,omitempty"`
}

// NodeIPAMStatus is how the operator gets on with the node's prefixes.
type NodeIPAMStatus struct {
	// Operator is what the operator says.
	Operator OperatorStatus `json:"operator-status,omitzero"`
}

// OperatorStatus is what the operator says of a node's prefixes.
type OperatorStatus struct {
	// Error is why the node has no prefixes, or why they are wrong.
	Error string `json:"error,omitempty"`
}

// NodePolicies is what a node has of the cluster's policies.
type NodePolicies struct {
	// Revision is the highest resourceVersion of a policy up to which all are in the
	// kernel, but for those that fail.
	Revision string `json:"revision,omitempty"`
	// Failing are policies that are not in force as they are written.
	Failing []FailingPolicy `json:"failing,omitempty"`
	// FailingMore is how many others there are, for which there is no room.
	FailingMore int32 `json:"failingMore,omitempty"`
	// Error is why pods' policies can't be in the kernel, whichever they are.
	Error string `json:"error,omitempty"`
}

// FailingPolicy is a policy that is not in force as it is written.
type FailingPolicy struct {
	// Kind is the policy's.
	Kind string `json:"kind"`
	// Namespace is the policy's, empty where it has none.
	Namespace string `json:"namespace,omitempty"`
	// Name is the policy's.
	Name string `json:"name"`
	// Reason is why.
	Reason string `json:"reason"`
}

// PolicyStatus is what the operator says of a policy.
type PolicyStatus struct {
	// Conditions has Valid: whether the policy can be in force, and why not.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Realised is on which nodes it is in force.
	Realised *Realised `json:"realised,omitempty"`
}

// Realised is on which nodes a policy is in force.
type Realised struct {
	// Revision is the resourceVersion of the version that is counted.
	Revision string `json:"revision,omitempty"`
	// Generation is the metadata.generation of that version.
	Generation int64 `json:"generation,omitempty"`
	// Nodes is how many have it in force, of those that tell.
	Nodes int32 `json:"nodes"`
	// Wanted is how many tell.
	Wanted int32 `json:"wanted"`
	// Failing are nodes that can't have it in force, at most ten.
	Failing []FailingNode `json:"failing,omitempty"`
}

// FailingNode is a node that can't have a policy in force.
type FailingNode struct {
	// Node is its name.
	Node string `json:"node"`
	// Reason is why.
	Reason string `json:"reason"`
}

// Revision is the version of a policy that nodes and the operator speak of: the
// resourceVersion of when its rules became what they are, as far as the operator
// noted it, so that writing a status makes no new one.
func Revision(generation int64, resourceVersion string, status *PolicyStatus) string {
	if r := status.Realised; r != nil && r.Generation == generation && r.Revision != "" {
		return r.Revision
	}
	return resourceVersion
}
