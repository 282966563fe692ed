// Package random makes up clusters, policies and probes, to compare what
// enforces policies with what they mean. Clusters are small and have few labels,
// ports and addresses, so that policies overlap often.
package random

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"myelin/policy/ciliumv2"
	"myelin/test/policy/reference"
)

// maker makes a world up. All that is random comes from r.
type maker struct {
	r *rand.Rand
	w *reference.World
	// ports are those of pods, by their labels: what has the same labels has the
	// same ports, as replicas have.
	ports map[string][]corev1.ContainerPort
	// favourite makes policies of the kind that most are of; nil: none is.
	favourite func(name string)
}

// World makes a cluster of 2 to 4 namespaces, 2 or 3 nodes and 3 to 8 pods, seen
// from one of its nodes, with size/2 to size policies. The same r, at the same state,
// makes the same world. All objects are valid.
func World(r *rand.Rand, size int) *reference.World {
	m := &maker{r: r, w: &reference.World{}, ports: map[string][]corev1.ContainerPort{}}
	m.nodes(2 + r.IntN(2))
	m.namespaces(2 + r.IntN(3))
	m.pods(3 + r.IntN(6))
	m.services()
	m.groups()
	if kinds := m.kinds(); m.odds(50) {
		m.favourite = pick(r, kinds)
	}
	for i := range size - r.IntN(size/2+1) {
		m.policy(fmt.Sprintf("p%d", i))
	}
	m.w.Node = pick(r, m.w.Nodes).Name
	m.w.Cluster, m.w.CIDRNodes = clusterName, len(m.w.Pods)%3 == 0
	return m.w
}

// kinds make policies, each of one kind.
func (m *maker) kinds() []func(name string) {
	return []func(string){m.networkPolicy, m.ciliumPolicy, m.clusterwidePolicy, m.clusterPolicy}
}

// policy adds one policy of any kind. In half of all worlds most are of one kind,
// so that they meet.
func (m *maker) policy(name string) {
	if m.favourite != nil && m.odds(80) {
		m.favourite(name)
		return
	}
	pick(m.r, m.kinds())(name)
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

// odds is true in so many of 100 cases.
func (m *maker) odds(percent int) bool { return m.r.IntN(100) < percent }

// several makes 1 to most items.
func several[T any](m *maker, most int, one func() T) []T {
	list := make([]T, 1+m.r.IntN(most))
	for i := range list {
		list[i] = one()
	}
	return list
}

// clusterName is what worlds' clusters are called: one of the labels' values.
const clusterName = "a"

// accounts are service accounts of pods; a pod that no API server has seen has none.
func accounts() []string { return []string{"", "a", "b"} }

// Labels have three keys and three values.
func keys() []string   { return []string{"app", "tier", "env"} }
func values() []string { return []string{"a", "b", "c"} }

// labels sets each key in two of three cases.
func (m *maker) labels() map[string]string {
	labels := map[string]string{}
	for _, key := range keys() {
		if m.odds(67) {
			labels[key] = pick(m.r, values())
		}
	}
	return labels
}

func (m *maker) nodes(n int) {
	for i := 1; i <= n; i++ {
		node := &corev1.Node{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i), Labels: m.labels()},
		}
		node.Spec.PodCIDRs = []string{fmt.Sprintf("10.0.%d.0/24", i), fmt.Sprintf("fd00:10:0:%d::/64", i)}
		node.Spec.PodCIDR = node.Spec.PodCIDRs[0]
		node.Status.Addresses = []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: node.Name},
			{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.168.64.%d", i)},
			{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("fd00:64::%d", i)},
		}
		m.w.Nodes = append(m.w.Nodes, node)
	}
}

func (m *maker) namespaces(n int) {
	for i := range n {
		ns := &corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", i), Labels: m.labels()},
		}
		ns.Labels[corev1.LabelMetadataName] = ns.Name
		m.w.Namespaces = append(m.w.Namespaces, ns)
	}
}

func (m *maker) pods(n int) {
	for i := range n {
		pod := &corev1.Pod{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: pick(m.r, m.w.Namespaces).Name, Name: fmt.Sprintf("pod%d", i), Labels: m.labels(),
			},
		}
		node := m.r.IntN(len(m.w.Nodes))
		pod.Spec.NodeName = m.w.Nodes[node].Name
		pod.Spec.HostNetwork = m.odds(10)
		pod.Spec.ServiceAccountName = accounts()[i%3]
		pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i", Ports: m.containerPorts(pod)}}
		pod.Status.Phase = corev1.PodRunning
		addrs := []string{fmt.Sprintf("10.0.%d.%d", node+1, i+10), fmt.Sprintf("fd00:10:0:%d::%d", node+1, i+10)}
		if pod.Spec.HostNetwork {
			addrs = []string{m.w.Nodes[node].Status.Addresses[1].Address, m.w.Nodes[node].Status.Addresses[2].Address}
		} else if m.odds(10) {
			addrs = addrs[1:]
		} else if m.odds(10) {
			addrs = addrs[:1]
		}
		pod.Status.PodIP = addrs[0]
		for _, a := range addrs {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a})
		}
		m.w.Pods = append(m.w.Pods, pod)
	}
}

// portNames are names of ports that policies and pods use.
func portNames() []string { return []string{"http", "dns", "admin"} }

func (m *maker) containerPorts(pod *corev1.Pod) []corev1.ContainerPort {
	same := pod.Namespace
	for _, key := range slices.Sorted(maps.Keys(pod.Labels)) {
		same += " " + key + "=" + pod.Labels[key]
	}
	if ports, known := m.ports[same]; known {
		return ports
	}
	var ports []corev1.ContainerPort
	for _, name := range portNames() {
		if m.odds(70) {
			ports = append(ports, corev1.ContainerPort{
				Name: name, ContainerPort: int32(m.port()), Protocol: pick(m.r, protocols()),
			})
		}
	}
	m.ports[same] = ports
	return ports
}

// services are one with a selector, one without, and the API server's.
func (m *maker) services() {
	for i, ns := range m.w.Namespaces {
		svc := &corev1.Service{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
			ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: fmt.Sprintf("svc%d", i), Labels: m.labels()},
		}
		svc.Spec.Ports = []corev1.ServicePort{{Port: 80}}
		if m.odds(60) {
			svc.Spec.Selector = map[string]string{pick(m.r, keys()): pick(m.r, values())}
		} else {
			m.slices(svc, func(four bool) string { return pick(m.r, append(outside(four), m.address(four))).String() })
		}
		m.w.Services = append(m.w.Services, svc)
	}
	if !m.odds(50) {
		return
	}
	m.w.Namespaces = append(m.w.Namespaces, &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{corev1.LabelMetadataName: "default"}},
	})
	svc := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
	}
	svc.Spec.Ports = []corev1.ServicePort{{Name: "https", Port: 443}}
	m.slices(svc, func(four bool) string {
		if m.odds(50) {
			return pick(m.r, outside(four)).String()
		}
		return nodeAddress(pick(m.r, m.w.Nodes), four)
	})
	m.w.Services = append(m.w.Services, svc)
}

// slices gives a Service an EndpointSlice of each family, of one or two addresses.
func (m *maker) slices(svc *corev1.Service, address func(four bool) string) {
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		slice := &discoveryv1.EndpointSlice{
			TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: svc.Namespace, Name: svc.Name + "-" + map[bool]string{true: "4",
					false: "6"}[family == discoveryv1.AddressTypeIPv4],
				Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name},
			},
			AddressType: family,
		}
		port := svc.Spec.Ports[0].Port
		slice.Ports = []discoveryv1.EndpointPort{{Name: &svc.Spec.Ports[0].Name, Port: &port}}
		slice.Endpoints = several(m, 2, func() discoveryv1.Endpoint {
			return discoveryv1.Endpoint{Addresses: []string{address(family == discoveryv1.AddressTypeIPv4)}}
		})
		m.w.EndpointSlices = append(m.w.EndpointSlices, slice)
	}
}

// groups are two CiliumCIDRGroups. Policies name a third as well.
func (m *maker) groups() {
	for i := range 2 {
		group := &ciliumv2.CiliumCIDRGroup{
			TypeMeta:   metav1.TypeMeta{APIVersion: "cilium.io/v2", Kind: "CiliumCIDRGroup"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("g%d", i), Labels: m.labels()},
		}
		group.Spec.ExternalCIDRs = several(m, 3, func() string { return m.far().String() })
		m.w.CIDRGroups = append(m.w.CIDRGroups, group)
	}
}
