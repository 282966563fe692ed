package cluster

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// FromNode makes a row of a Node. A bad object gives FieldErrors, which name
// every bad field, and no row. The row shares no memory with the object.
func FromNode(node *corev1.Node, source string) (*Node, error) {
	var c checker
	c.name("metadata.name", node.Name, validation.IsDNS1123Subdomain)
	c.absent("metadata.namespace", node.Namespace)
	c.labels(node.Labels)
	row := &Node{Name: node.Name, Labels: maps.Clone(node.Labels), Source: source}
	for i, a := range node.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		addr, ok := c.addr(path("status.addresses", i, "address"), a.Address)
		if ok && !slices.Contains(row.Addresses, addr) {
			row.Addresses = append(row.Addresses, addr)
		}
	}
	row.PodCIDRs = podCIDRs(&c, &node.Spec)
	row.WireGuardKey = c.wireGuardKey(node.Annotations, WireGuardAnnotation)
	row.NextWireGuardKey = c.wireGuardKey(node.Annotations, NextWireGuardAnnotation)
	row.IPsec = c.ipsec(node.Annotations)
	if err := c.err(); err != nil {
		return nil, err
	}
	return row, nil
}

// WireGuardKeys reads a node's public key, and the one that it changes to, from the annotations of another object than
// its Node; errors as FromNode's.
func WireGuardKeys(annotations map[string]string) (key, next string, err error) {
	var c checker
	key = c.wireGuardKey(annotations, WireGuardAnnotation)
	next = c.wireGuardKey(annotations, NextWireGuardAnnotation)
	return key, next, c.err()
}

// wireGuardKeySize is that of a public key in bytes: a point of Curve25519.
const wireGuardKeySize = 32

func (c *checker) wireGuardKey(annotations map[string]string, name string) string {
	text := annotations[name]
	if text == "" {
		return ""
	}
	if data, err := base64.StdEncoding.DecodeString(text); err != nil || len(data) != wireGuardKeySize {
		c.add(fmt.Sprintf("metadata.annotations[%s]", name), "%q is not a key of %d bytes in base64",
			text, wireGuardKeySize)
		return ""
	}
	return text
}

// podCIDRs reads spec.podCIDRs, or spec.podCIDR where only that is set.
func podCIDRs(c *checker, spec *corev1.NodeSpec) []netip.Prefix {
	if len(spec.PodCIDRs) == 0 {
		if spec.PodCIDR == "" {
			return nil
		}
		if p, ok := c.prefix("spec.podCIDR", spec.PodCIDR); ok {
			return []netip.Prefix{p}
		}
		return nil
	}
	if spec.PodCIDR != "" && spec.PodCIDR != spec.PodCIDRs[0] {
		c.add("spec.podCIDR", "%q must be the same as spec.podCIDRs[0] %q", spec.PodCIDR, spec.PodCIDRs[0])
	}
	return prefixList(c, "spec.podCIDRs", spec.PodCIDRs)
}

// PodCIDRs reads prefixes of a node from another object than its Node; errors as
// FromNode's, under the name of the list.
func PodCIDRs(field string, list []string) ([]netip.Prefix, error) {
	var c checker
	out := prefixList(&c, field, list)
	return out, c.err()
}

func prefixList(c *checker, name string, list []string) (out []netip.Prefix) {
	for i, s := range list {
		field := path(name, i)
		p, ok := c.prefix(field, s)
		if !ok {
			continue
		}
		for _, other := range out {
			if p.Overlaps(other) {
				c.add(field, "%s overlaps %s of the same list", p, other)
			}
		}
		out = append(out, p)
	}
	return out
}

// FromNamespace makes a row of a Namespace; errors as FromNode's. As the API
// server does, it sets the label kubernetes.io/metadata.name.
func FromNamespace(ns *corev1.Namespace, source string) (*Namespace, error) {
	var c checker
	c.name("metadata.name", ns.Name, validation.IsDNS1123Label)
	c.absent("metadata.namespace", ns.Namespace)
	c.labels(ns.Labels)
	if err := c.err(); err != nil {
		return nil, err
	}
	labels := maps.Clone(ns.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[corev1.LabelMetadataName] = ns.Name
	return &Namespace{Name: ns.Name, Labels: labels, Source: source}, nil
}

// FromPod makes a row of a Pod; errors as FromNode's. A Pod without a
// namespace is in "default", as kubectl has it.
func FromPod(pod *corev1.Pod, source string) (*Pod, error) {
	var c checker
	row := &Pod{
		Namespace:      pod.Namespace,
		Name:           pod.Name,
		UID:            string(pod.UID),
		NodeName:       pod.Spec.NodeName,
		ServiceAccount: pod.Spec.ServiceAccountName,
		Labels:         maps.Clone(pod.Labels),
		Annotations:    maps.Clone(pod.Annotations),
		HostNetwork:    pod.Spec.HostNetwork,
		NetAdmin:       netAdmin(&pod.Spec),
		Phase:          string(pod.Status.Phase),
		Ready:          ready(&pod.Status),
		Terminating:    pod.DeletionTimestamp != nil,
		Source:         source,
	}
	if row.Namespace == "" {
		row.Namespace = metav1.NamespaceDefault
	}
	c.name("metadata.name", row.Name, validation.IsDNS1123Subdomain)
	c.name("metadata.namespace", row.Namespace, validation.IsDNS1123Label)
	c.labels(row.Labels)
	if row.NodeName != "" {
		c.name("spec.nodeName", row.NodeName, validation.IsDNS1123Subdomain)
	}
	if row.ServiceAccount != "" {
		c.name("spec.serviceAccountName", row.ServiceAccount, validation.IsDNS1123Subdomain)
	}
	c.phase(pod.Status.Phase)
	c.podStatus(row, &pod.Status)
	containers := pod.Spec.Containers
	row.Ports = c.ports("spec.containers", containers)
	row.Ports = append(row.Ports, c.ports("spec.initContainers", sidecars(pod.Spec.InitContainers))...)
	if !row.HostNetwork {
		row.HostPorts = c.hostPorts("spec.containers", containers)
		row.HostPorts = append(row.HostPorts, c.hostPorts("spec.initContainers", sidecars(pod.Spec.InitContainers))...)
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	return row, nil
}

// ready is the condition Ready, or what the phase says where there are no
// conditions at all.
func ready(status *corev1.PodStatus) bool {
	for _, c := range status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return len(status.Conditions) == 0 && status.Phase == corev1.PodRunning
}

// podStatus reads status.podIPs and status.hostIPs, or their singular forms
// where only those are set.
func (c *checker) podStatus(row *Pod, status *corev1.PodStatus) {
	var pods, hosts []string
	for _, ip := range status.PodIPs {
		pods = append(pods, ip.IP)
	}
	for _, ip := range status.HostIPs {
		hosts = append(hosts, ip.IP)
	}
	row.Addresses = c.dual("status.podIP", status.PodIP, "status.podIPs", pods)
	row.HostAddresses = c.dual("status.hostIP", status.HostIP, "status.hostIPs", hosts)
}

// dual reads a pair of fields of which the plural one has at most one address
// a family, and the singular one is its first.
func (c *checker) dual(single, value, plural string, values []string) []netip.Addr {
	if len(values) == 0 {
		if value == "" {
			return nil
		}
		if a, ok := c.addr(single, value); ok {
			return []netip.Addr{a}
		}
		return nil
	}
	if value != "" && value != values[0] {
		c.add(single, "%q must be the same as %s[0] %q", value, plural, values[0])
	}
	var out []netip.Addr
	for i, s := range values {
		field := path(plural, i, "ip")
		a, ok := c.addr(field, s)
		if !ok {
			continue
		}
		for _, other := range out {
			if other.Is4() == a.Is4() {
				c.add(field, "%s is a second address of the same family as %s", a, other)
			}
		}
		out = append(out, a)
	}
	return out
}

// ports collects the named ports and checks all.
func (c *checker) ports(field string, containers []corev1.Container) []Port {
	var out []Port
	for i, ctr := range containers {
		for j, p := range ctr.Ports {
			at := path(field, i, "ports", j)
			if p.ContainerPort < 1 || p.ContainerPort > 65535 {
				c.add(at+".containerPort", "%d is not in 1..65535", p.ContainerPort)
				continue
			}
			proto, ok := c.protocol(at+".protocol", p.Protocol)
			if !ok || p.Name == "" {
				continue
			}
			c.name(at+".name", p.Name, validation.IsValidPortName)
			out = append(out, Port{Name: p.Name, Number: uint16(p.ContainerPort), Protocol: proto})
		}
	}
	return out
}

// sidecars are the init containers that go on running beside the others, so
// that their ports can be reached (restartPolicy Always).
func sidecars(inits []corev1.Container) []corev1.Container {
	out := make([]corev1.Container, len(inits))
	for i, ctr := range inits {
		// The places of the others stay, so that field paths are right.
		if ctr.RestartPolicy != nil && *ctr.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out[i] = ctr
		}
	}
	return out
}
