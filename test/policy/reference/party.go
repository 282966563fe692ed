package reference

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/utils/net"
)

// party is what has an address: a pod, a node, or, with neither, a peer outside of the cluster.
type party struct {
	addr netip.Addr
	pod  *corev1.Pod
	node *corev1.Node
}

// party finds the pod or node of an address. A pod on the host's network counts as its node, whose address it uses; a
// pod that has ended has no address.
func (w *World) party(addr netip.Addr) party {
	for _, node := range w.Nodes {
		for _, a := range node.Status.Addresses {
			if a.Type == corev1.NodeInternalIP && same(a.Address, addr) {
				return party{addr: addr, node: node}
			}
		}
	}
	for _, pod := range w.Pods {
		if pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, ip := range pod.Status.PodIPs {
			if same(ip.IP, addr) {
				return party{addr: addr, pod: pod}
			}
		}
	}
	return party{addr: addr}
}

func same(text string, addr netip.Addr) bool {
	a, err := netip.ParseAddr(text)
	return err == nil && a.Unmap() == addr.Unmap()
}

// place is the node that the party is on; empty if it is outside.
func (p party) place() string {
	switch {
	case p.pod != nil:
		return p.pod.Spec.NodeName
	case p.node != nil:
		return p.node.Name
	}
	return ""
}

// outside reports whether the party is neither a pod nor a node.
func (p party) outside() bool { return p.pod == nil && p.node == nil }

// within is true if the party's address is in a prefix, as Kubernetes reads it. A
// single address may stand for a prefix.
func (p party) within(text string) bool {
	if _, network, err := utilnet.ParseCIDRSloppy(text); err == nil {
		return network.Contains(p.addr.Unmap().AsSlice())
	}
	return utilnet.ParseIPSloppy(text).Equal(p.addr.AsSlice())
}

// namespaceLabels are a Namespace's labels, among them the one that the API
// server gives each.
func (w *World) namespaceLabels(name string) map[string]string {
	labels := map[string]string{}
	for _, ns := range w.Namespaces {
		if ns.Name == name {
			for k, v := range ns.Labels {
				labels[k] = v
			}
		}
	}
	labels[corev1.LabelMetadataName] = name
	return labels
}

// find looks a key of a selector up in labels.
type find func(key string) (value string, found bool)

func in(labels map[string]string) find {
	return func(key string) (string, bool) {
		value, found := labels[key]
		return value, found
	}
}

// selects is true if labels meet all that a selector asks for. Nil selects
// nothing, and an empty one everything.
func selects(s *metav1.LabelSelector, labels find) bool {
	if s == nil {
		return false
	}
	for key, want := range s.MatchLabels {
		if value, found := labels(key); !found || value != want {
			return false
		}
	}
	for _, e := range s.MatchExpressions {
		if !meets(e, labels) {
			return false
		}
	}
	return true
}

func meets(e metav1.LabelSelectorRequirement, labels find) bool {
	value, found := labels(e.Key)
	listed := false
	for _, v := range e.Values {
		if found && v == value {
			listed = true
		}
	}
	switch e.Operator {
	case metav1.LabelSelectorOpIn:
		return listed
	case metav1.LabelSelectorOpNotIn:
		return !listed // also where there is no such label
	case metav1.LabelSelectorOpExists:
		return found
	case metav1.LabelSelectorOpDoesNotExist:
		return !found
	}
	return false
}

// number is a protocol's number in IP. No protocol is TCP, as in Kubernetes.
func number(p corev1.Protocol) uint8 {
	switch p {
	case corev1.ProtocolUDP:
		return protoUDP
	case corev1.ProtocolSCTP:
		return protoSCTP
	}
	return protoTCP
}

// Protocols that policies name, as in IP.
const (
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
	protoSCTP   = 132
)

// named is true if the flow goes to the port of that name. Only pods have names
// for ports, and each pod has its own.
func (f flow) named(name string) bool {
	if f.server.pod == nil {
		return false
	}
	containers := f.server.pod.Spec.Containers
	for _, c := range f.server.pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			containers = append(containers[:len(containers):len(containers)], c)
		}
	}
	for _, c := range containers {
		for _, port := range c.Ports {
			if port.Name == name && number(port.Protocol) == f.proto && port.ContainerPort == int32(f.port) {
				return true
			}
		}
	}
	return false
}
