package allocate

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"myelin/cluster"
)

// hasNodePorts reports whether the ports of a Service are on nodes too.
func hasNodePorts(s *corev1.Service) bool {
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		return true
	case corev1.ServiceTypeLoadBalancer:
		return s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts
	}
	return false
}

func (a *Allocator) nodePorts(s, earlier *corev1.Service) cluster.FieldErrors {
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		if p.NodePort != 0 {
			continue
		}
		port, ok := a.earlierPort(s, earlier, p)
		if !ok {
			port, ok = a.samePort(s, i)
		}
		if !ok {
			port, ok = a.freePort(keyOf(s)+"/"+p.Name+portKey(p.Protocol, p.Port), p.Protocol)
		}
		if !ok {
			return cluster.FieldErrors{{
				Field:  fmt.Sprintf("spec.ports[%d].nodePort", i),
				Reason: fmt.Sprintf("no port from %d to %d is left", a.ranges.FirstPort, a.ranges.LastPort),
			}}
		}
		p.NodePort = port
		a.ports[portKey(p.Protocol, port)] = keyOf(s)
	}
	local := s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if s.Spec.Type == corev1.ServiceTypeLoadBalancer && local && s.Spec.HealthCheckNodePort == 0 {
		port, ok := a.freePort(keyOf(s)+"/health", corev1.ProtocolTCP)
		if earlier.Spec.HealthCheckNodePort != 0 {
			port, ok = earlier.Spec.HealthCheckNodePort, true
		}
		if !ok {
			return cluster.FieldErrors{{Field: "spec.healthCheckNodePort", Reason: "no node port is left"}}
		}
		s.Spec.HealthCheckNodePort = port
		a.ports[portKey(corev1.ProtocolTCP, port)] = keyOf(s)
	}
	return nil
}

// earlierPort is what the port of the same name, or number, had in an earlier version.
func (a *Allocator) earlierPort(s, earlier *corev1.Service, p *corev1.ServicePort) (int32, bool) {
	for _, e := range earlier.Spec.Ports {
		same := e.Name == p.Name && (p.Name != "" || e.Port == p.Port) &&
			cmp.Or(e.Protocol, corev1.ProtocolTCP) == cmp.Or(p.Protocol, corev1.ProtocolTCP)
		other := a.ports[portKey(p.Protocol, e.NodePort)]
		chosen := slices.ContainsFunc(s.Spec.Ports, func(o corev1.ServicePort) bool {
			return o.NodePort == e.NodePort && cmp.Or(o.Protocol, corev1.ProtocolTCP) == cmp.Or(p.Protocol,
				corev1.ProtocolTCP)
		})
		if same && e.NodePort != 0 && !chosen && (other == "" || other == keyOf(s)) {
			return e.NodePort, true
		}
	}
	return 0, false
}

// samePort is the node port of the same port with another protocol, as DNS has it, if it is free.
func (a *Allocator) samePort(s *corev1.Service, i int) (int32, bool) {
	p := s.Spec.Ports[i]
	for _, other := range s.Spec.Ports[:i] {
		if other.Port == p.Port && other.NodePort != 0 && a.ports[portKey(p.Protocol, other.NodePort)] == "" {
			return other.NodePort, true
		}
	}
	return 0, false
}

func (a *Allocator) freePort(name string, protocol corev1.Protocol) (int32, bool) {
	first, last := uint64(a.ranges.FirstPort), uint64(a.ranges.LastPort)+1
	for n := range choices(name, first, last, min(max(16, (last-first)/32), 128)) {
		if a.ports[portKey(protocol, int32(n))] == "" {
			return int32(n), true
		}
	}
	return 0, false
}
