package cluster

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// defaultAffinity is the API's: three hours. The longest is a day.
const (
	defaultAffinity = 10800
	maxAffinity     = 86400
)

// FromService makes a row of a Service; errors as FromNode's. What the API
// server would have allocated or set may be missing.
func FromService(svc *corev1.Service, source string) (*Service, error) {
	var c checker
	spec := &svc.Spec
	row := &Service{
		Namespace: svc.Namespace, Name: svc.Name, UID: string(svc.UID), Created: svc.CreationTimestamp.Time,
		Labels: maps.Clone(svc.Labels), Annotations: withoutApplied(svc.Annotations),
		Selector: maps.Clone(spec.Selector),
		Type:     string(spec.Type), PublishNotReady: spec.PublishNotReadyAddresses,
		SourceRanges: slices.Clone(spec.LoadBalancerSourceRanges), Source: source,
	}
	if row.Namespace == "" {
		row.Namespace = metav1.NamespaceDefault
	}
	if row.Type == "" {
		row.Type = string(corev1.ServiceTypeClusterIP)
	}
	c.name("metadata.name", row.Name, validation.IsDNS1123Label)
	c.name("metadata.namespace", row.Namespace, validation.IsDNS1123Label)
	c.labels(row.Labels)
	c.oneOf("spec.type", row.Type, "ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
	c.families(row, spec)
	c.clusterIPs(row, spec)
	for i, s := range spec.ExternalIPs {
		if a, ok := c.addr(path("spec.externalIPs", i), s); ok && !slices.Contains(row.ExternalIPs, a) {
			row.ExternalIPs = append(row.ExternalIPs, a)
		}
	}
	c.ingress(row, svc.Status.LoadBalancer.Ingress)
	c.servicePorts(row, spec.Ports)
	c.affinity(row, spec)
	c.traffic(row, spec)
	if err := c.err(); err != nil {
		return nil, err
	}
	return row, nil
}

// withoutApplied leaves out kubectl's copy of the object, which would double
// the row's size.
func withoutApplied(annotations map[string]string) map[string]string {
	out := maps.Clone(annotations)
	delete(out, corev1.LastAppliedConfigAnnotation)
	return out
}

func (c *checker) oneOf(field, value string, allowed ...string) bool {
	if slices.Contains(allowed, value) {
		return true
	}
	c.add(field, "%q is none of %s", value, strings.Join(allowed, ", "))
	return false
}

func (c *checker) families(row *Service, spec *corev1.ServiceSpec) {
	for i, f := range spec.IPFamilies {
		field := path("spec.ipFamilies", i)
		switch {
		case !c.oneOf(field, string(f), "IPv4", "IPv6"):
		case slices.Contains(row.Families, string(f)):
			c.add(field, "%q is there twice", f)
		default:
			row.Families = append(row.Families, string(f))
		}
	}
	if p := spec.IPFamilyPolicy; p != nil {
		c.oneOf("spec.ipFamilyPolicy", string(*p), "SingleStack", "PreferDualStack", "RequireDualStack")
	}
}

// clusterIPs reads spec.clusterIPs, or spec.clusterIP where only that is set.
func (c *checker) clusterIPs(row *Service, spec *corev1.ServiceSpec) {
	values, plural := spec.ClusterIPs, true
	if len(values) == 0 && spec.ClusterIP != "" {
		values, plural = []string{spec.ClusterIP}, false
	}
	if plural && len(values) > 0 && spec.ClusterIP != "" && spec.ClusterIP != values[0] {
		c.add("spec.clusterIP", "%q must be the same as spec.clusterIPs[0] %q", spec.ClusterIP, values[0])
	}
	if slices.Equal(values, []string{corev1.ClusterIPNone}) {
		row.Headless = true
		return
	}
	for i, s := range values {
		field := "spec.clusterIP"
		if plural {
			field = path("spec.clusterIPs", i)
		}
		a, ok := c.addr(field, s)
		if !ok {
			continue
		}
		for _, other := range row.ClusterIPs {
			if other.Is4() == a.Is4() {
				c.add(field, "%s is a second address of the same family as %s", a, other)
			}
		}
		row.ClusterIPs = append(row.ClusterIPs, a)
	}
}

func (c *checker) ingress(row *Service, ingress []corev1.LoadBalancerIngress) {
	for i, in := range ingress {
		at := path("status.loadBalancer.ingress", i)
		proxied := in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeProxy
		if in.IPMode != nil {
			c.oneOf(at+".ipMode", string(*in.IPMode), "VIP", "Proxy")
		}
		if in.IP == "" {
			continue // a name, which is another load balancer's
		}
		if a, ok := c.addr(at+".ip", in.IP); ok && !proxied && !slices.Contains(row.Ingress, a) {
			row.Ingress = append(row.Ingress, a)
		}
	}
}

func (c *checker) servicePorts(row *Service, ports []corev1.ServicePort) {
	if len(ports) == 0 && !row.Headless && row.Type != string(corev1.ServiceTypeExternalName) {
		c.add("spec.ports", "must be set")
	}
	for i, p := range ports {
		at := path("spec.ports", i)
		proto, ok := c.protocol(at+".protocol", p.Protocol)
		port := ServicePort{Name: p.Name, Protocol: proto}
		if len(ports) > 1 || p.Name != "" {
			c.name(at+".name", p.Name, validation.IsDNS1123Label)
		}
		port.Port = c.port(at+".port", p.Port)
		if p.NodePort != 0 {
			port.NodePort = c.port(at+".nodePort", p.NodePort)
			if row.Type == string(corev1.ServiceTypeClusterIP) {
				c.add(at+".nodePort", "%d: a Service of type ClusterIP has none", p.NodePort)
			}
		}
		port.Target, port.TargetName = c.targetPort(at+".targetPort", p.TargetPort)
		if !ok || port.Port == 0 {
			continue
		}
		for _, o := range row.Ports {
			switch {
			case o.Name == port.Name:
				c.add(at+".name", "%q is there twice", port.Name)
			case o.Port == port.Port && o.Protocol == port.Protocol:
				c.add(at+".port", "%d/%s is there twice", port.Port, port.Protocol)
			case o.NodePort != 0 && o.NodePort == port.NodePort && o.Protocol == port.Protocol:
				c.add(at+".nodePort", "%d/%s is there twice", port.NodePort, port.Protocol)
			}
		}
		row.Ports = append(row.Ports, port)
	}
}

// protocol reads a port's protocol, which is TCP where none is said.
func (c *checker) protocol(field string, p corev1.Protocol) (string, bool) {
	if p == "" {
		return string(corev1.ProtocolTCP), true
	}
	return string(p), c.oneOf(field, string(p), "TCP", "UDP", "SCTP")
}

func (c *checker) port(field string, value int32) uint16 {
	if value < 1 || value > 65535 {
		c.add(field, "%d is not in 1..65535", value)
		return 0
	}
	return uint16(value)
}

// targetPort reads a number or a name. Neither means the Service's own port, as
// the API has it.
func (c *checker) targetPort(field string, p intstr.IntOrString) (number uint16, name string) {
	switch {
	case p.Type == intstr.String && p.StrVal != "":
		c.name(field, p.StrVal, validation.IsValidPortName)
		return 0, p.StrVal
	case p.Type == intstr.Int && p.IntVal != 0:
		return c.port(field, p.IntVal), ""
	}
	return 0, ""
}

func (c *checker) affinity(row *Service, spec *corev1.ServiceSpec) {
	kind := spec.SessionAffinity
	if kind == "" || kind == corev1.ServiceAffinityNone || !c.oneOf("spec.sessionAffinity", string(kind), "None",
		"ClientIP") {
		return
	}
	seconds := int32(defaultAffinity)
	if s := spec.SessionAffinityConfig; s != nil && s.ClientIP != nil && s.ClientIP.TimeoutSeconds != nil {
		seconds = *s.ClientIP.TimeoutSeconds
	}
	if seconds < 1 || seconds > maxAffinity {
		c.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", "%d is not in 1..%d", seconds, maxAffinity)
	}
	row.Affinity = time.Duration(seconds) * time.Second
}

// traffic reads the traffic policies.
func (c *checker) traffic(row *Service, spec *corev1.ServiceSpec) {
	if p := spec.ExternalTrafficPolicy; p != "" && c.oneOf("spec.externalTrafficPolicy", string(p), "Cluster",
		"Local") {
		row.ExternalLocal = p == corev1.ServiceExternalTrafficPolicyLocal
	}
	if p := spec.InternalTrafficPolicy; p != nil && c.oneOf("spec.internalTrafficPolicy", string(*p), "Cluster",
		"Local") {
		row.InternalLocal = *p == corev1.ServiceInternalTrafficPolicyLocal
	}
	if p := spec.HealthCheckNodePort; p != 0 {
		row.HealthCheckNodePort = c.port("spec.healthCheckNodePort", p)
	}
	if p := spec.LoadBalancerClass; p != nil {
		c.name("spec.loadBalancerClass", *p, validation.IsQualifiedName)
		row.LoadBalancerClass = *p
	}
	if p := spec.TrafficDistribution; p != nil &&
		c.oneOf("spec.trafficDistribution", *p, "PreferClose", "PreferSameZone", "PreferSameNode") {
		row.TrafficDistribution = *p
	}
}

// hostPorts collects the ports that containers have on the node. Pods on the
// host's network have them without anybody's help.
func (c *checker) hostPorts(field string, containers []corev1.Container) []HostPort {
	var out []HostPort
	for i, ctr := range containers {
		for j, p := range ctr.Ports {
			at := path(field, i, "ports", j)
			if p.HostPort == 0 || p.ContainerPort < 1 || p.ContainerPort > 65535 {
				continue // ports reports the second
			}
			proto := p.Protocol
			if proto == "" {
				proto = corev1.ProtocolTCP
			}
			h := HostPort{Port: c.port(at+".hostPort", p.HostPort), Target: uint16(p.ContainerPort),
				Protocol: string(proto)}
			if p.HostIP != "" {
				a, err := netip.ParseAddr(p.HostIP)
				if err != nil || a.Zone() != "" || a.Is4In6() || a.IsMulticast() {
					c.add(at+".hostIP", "%q is not an address of a node", p.HostIP)
					continue
				}
				h.Address = a
			}
			out = append(out, h)
		}
	}
	return out
}
