package bench

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"myelin/cluster"
)

// objects are Services and their EndpointSlices, as an API server has them: what it would have set is set.
type objects struct {
	services []*corev1.Service
	slices   []*discoveryv1.EndpointSlice
}

const (
	namespace = "bench"
	// sliceSize is how many endpoints the API allows in one slice.
	sliceSize = 1000
)

// port is one of a Service, and of its backends.
type port struct {
	name     string
	number   int32
	protocol corev1.Protocol
}

// add adds a Service of one address, and slices of its backends.
func (o *objects) add(family Family, name string, at netip.Addr, ports []port, backends ...netip.Addr) {
	policy := corev1.ServiceInternalTrafficPolicyCluster
	svc := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: at.String(), ClusterIPs: []string{at.String()},
			IPFamilies:      []corev1.IPFamily{corev1.IPFamily(family.protocol())},
			SessionAffinity: corev1.ServiceAffinityNone, InternalTrafficPolicy: &policy,
		},
	}
	for _, p := range ports {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: p.name, Port: p.number, Protocol: p.protocol})
	}
	o.services = append(o.services, svc)
	for first := 0; first < len(backends); first += sliceSize {
		part := fmt.Sprintf("%s-%d", name, first/sliceSize)
		o.slices = append(o.slices, slice(family, name, part, ports, backends[first:min(len(backends),
			first+sliceSize)]))
	}
}

// slice has backends that are all ready.
func slice(family Family, service, name string, ports []port, backends []netip.Addr) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressType(family.protocol()),
	}
	for _, p := range ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.name, Port: &p.number, Protocol: &p.protocol})
	}
	ready := true
	for _, b := range backends {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{b.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return s
}

// protocol is the family's name in the API.
func (f Family) protocol() string { return fmt.Sprintf("IPv%d", f) }

// rows are the objects as sources write them into the cluster's tables.
func (o *objects) rows() (services []*cluster.Service, slices []*cluster.EndpointSlice, err error) {
	for _, s := range o.services {
		row, err := cluster.FromService(s, "bench")
		if err != nil {
			return nil, nil, fmt.Errorf("Service %s: %w", s.Name, err)
		}
		services = append(services, row)
	}
	for _, s := range o.slices {
		row, err := cluster.FromEndpointSlice(s, "bench")
		if err != nil {
			return nil, nil, fmt.Errorf("EndpointSlice %s: %w", s.Name, err)
		}
		slices = append(slices, row)
	}
	return services, slices, nil
}

// write makes a manifest of the objects: one List.
func (o *objects) write(path string) error {
	var items []any
	for _, s := range o.services {
		items = append(items, s)
	}
	for _, s := range o.slices {
		items = append(items, s)
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

func clusterIP(family Family) netip.Addr {
	if family == IPv6 {
		return netip.MustParseAddr("fd00:10:96::10")
	}
	return netip.MustParseAddr("10.96.0.10")
}

const (
	controlPort = 12865 // netserver's own
	dataPort    = 12866 // netserver takes any, but a Service needs to know it
)

// addNetperf adds a Service with all that netperf needs on one address.
func (o *objects) addNetperf(family Family, backends ...netip.Addr) {
	o.add(family, "netperf", clusterIP(family), []port{
		{"control", controlPort, corev1.ProtocolTCP}, {"tcp", dataPort, corev1.ProtocolTCP},
		{"udp", dataPort, corev1.ProtocolUDP},
	}, backends...)
}

// addOthers adds Services of one port with two backends of their own, none of which exists.
func (o *objects) addOthers(family Family, count int) {
	at, backend := netip.MustParseAddr("10.97.0.0"), netip.MustParseAddr("10.128.0.0")
	if family == IPv6 {
		at, backend = netip.MustParseAddr("fd00:10:97::"), netip.MustParseAddr("fd00:10:128::")
	}
	for i := range count {
		first := backend.Next()
		o.add(family, fmt.Sprintf("other-%d", i), at, []port{{"http", 80, corev1.ProtocolTCP}}, first, first.Next())
		at, backend = at.Next(), first.Next()
	}
}

// addresses are count that follow one another.
func addresses(first netip.Addr, count int) []netip.Addr {
	all := make([]netip.Addr, count)
	for i := range all {
		all[i] = first
		first = first.Next()
	}
	return all
}
