package random

import (
	"net/netip"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"myelin/policy/ciliumv2"
)

func (m *maker) ciliumPolicy(name string) {
	p := &ciliumv2.CiliumNetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "cilium.io/v2", Kind: "CiliumNetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: pick(m.r, m.w.Namespaces).Name, Name: name},
	}
	if m.odds(80) {
		p.Spec = m.spec(m.selector(m.sourced), false)
	} else {
		p.Specs = several(m, 2, func() ciliumv2.Rule { return *m.spec(m.selector(m.sourced), false) })
	}
	m.w.CiliumNetworkPolicies = append(m.w.CiliumNetworkPolicies, p)
}

func (m *maker) clusterwidePolicy(name string) {
	p := &ciliumv2.CiliumClusterwideNetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "cilium.io/v2", Kind: "CiliumClusterwideNetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
	}
	if m.odds(40) {
		p.Spec = m.spec(m.selector(m.sourced), true)
	} else {
		p.Spec = m.spec(m.endpointSelector(), false)
	}
	m.w.CiliumClusterwideNetworkPolicies = append(m.w.CiliumClusterwideNetworkPolicies, p)
}

// spec has at least one rule.
func (m *maker) spec(subject metav1.LabelSelector, nodes bool) *ciliumv2.Rule {
	s := &ciliumv2.Rule{EndpointSelector: &subject}
	if nodes {
		s = &ciliumv2.Rule{NodeSelector: &subject}
	}
	if m.odds(60) {
		s.Ingress = several(m, 3, m.ingress)
	}
	if m.odds(50) || s.Ingress == nil {
		s.Egress = several(m, 3, m.egress)
	}
	if m.odds(20) {
		s.IngressDeny = several(m, 2, func() ciliumv2.IngressDenyRule {
			ports, icmps := m.layer4()
			return ciliumv2.IngressDenyRule{FromPeers: m.from(), ToPorts: deny(ports), ICMPs: icmps}
		})
	}
	if m.odds(20) {
		s.EgressDeny = several(m, 2, func() ciliumv2.EgressDenyRule {
			ports, icmps := m.layer4()
			return ciliumv2.EgressDenyRule{ToPeers: m.to(), ToPorts: deny(ports), ICMPs: icmps}
		})
	}
	if m.odds(30) {
		s.EnableDefaultDeny = &ciliumv2.DefaultDeny{}
		if m.odds(70) {
			yes := m.odds(20)
			s.EnableDefaultDeny.Ingress = &yes
		}
		if m.odds(70) {
			yes := m.odds(20)
			s.EnableDefaultDeny.Egress = &yes
		}
	}
	return s
}

func (m *maker) ingress() ciliumv2.IngressRule {
	ports, icmps := m.layer4()
	r := ciliumv2.IngressRule{FromPeers: m.from(), ToPorts: ports, ICMPs: icmps}
	if m.odds(6) {
		r.FromRequires = []metav1.LabelSelector{m.endpointSelector()}
	}
	return r
}

func (m *maker) egress() ciliumv2.EgressRule {
	ports, icmps := m.layer4()
	r := ciliumv2.EgressRule{ToPeers: m.to(), ToPorts: ports, ICMPs: icmps}
	if m.odds(6) {
		r.ToRequires = []metav1.LabelSelector{m.endpointSelector()}
	}
	return r
}

// from has one of the lists of peers at most.
func (m *maker) from() ciliumv2.FromPeers {
	switch n := m.r.IntN(100); {
	case n < 35:
		return ciliumv2.FromPeers{FromEndpoints: several(m, 2, m.endpointSelector)}
	case n < 55:
		return ciliumv2.FromPeers{FromEntities: several(m, 2, m.entity)}
	case n < 65:
		return ciliumv2.FromPeers{FromCIDR: several(m, 2, m.cidr)}
	case n < 75:
		return ciliumv2.FromPeers{FromCIDRSet: several(m, 2, m.cidrRule)}
	case n < 83:
		return ciliumv2.FromPeers{FromNodes: several(m, 2, func() metav1.LabelSelector {
			return m.selector(m.sourced)
		})}
	}
	return ciliumv2.FromPeers{}
}

func (m *maker) to() ciliumv2.ToPeers {
	switch n := m.r.IntN(100); {
	case n < 30:
		return ciliumv2.ToPeers{ToEndpoints: several(m, 2, m.endpointSelector)}
	case n < 48:
		return ciliumv2.ToPeers{ToEntities: several(m, 2, m.entity)}
	case n < 58:
		return ciliumv2.ToPeers{ToCIDR: several(m, 2, m.cidr)}
	case n < 68:
		return ciliumv2.ToPeers{ToCIDRSet: several(m, 2, m.cidrRule)}
	case n < 75:
		return ciliumv2.ToPeers{ToNodes: several(m, 2, func() metav1.LabelSelector { return m.selector(m.sourced) })}
	case n < 87:
		return ciliumv2.ToPeers{ToServices: several(m, 2, m.service)}
	}
	return ciliumv2.ToPeers{}
}

func (m *maker) entity() string {
	if m.odds(10) { // entities without members
		return pick(m.r, []string{"init", "health", "unmanaged", "ingress", "none"})
	}
	return pick(m.r, []string{
		"all", "world", "world-ipv4", "world-ipv6", "world-ipv6", "cluster", "host", "remote-node", "kube-apiserver",
		"kube-apiserver",
	})
}

// cidr is a prefix, or an address alone.
func (m *maker) cidr() string {
	if p := m.far(); !p.IsSingleIP() || m.odds(50) {
		return p.String()
	} else {
		return p.Addr().String()
	}
}

func (m *maker) cidrRule() ciliumv2.CIDRRule {
	switch n := m.r.IntN(100); {
	case n < 25:
		return ciliumv2.CIDRRule{CIDRGroupRef: pick(m.r, []string{"g0", "g1", "missing"})}
	case n < 45:
		s := m.selector(plain)
		return ciliumv2.CIDRRule{CIDRGroupSelector: &s}
	}
	p := m.far()
	if m.odds(70) { // so wide that there is much to except
		p = netip.PrefixFrom(p.Addr(), m.r.IntN(4)).Masked()
	}
	rule := ciliumv2.CIDRRule{CIDR: p.String()}
	if m.odds(80) {
		rule.Except = m.excepts(p)
	}
	return rule
}

func (m *maker) service() ciliumv2.Service {
	svc := pick(m.r, m.w.Services)
	if m.odds(60) {
		return ciliumv2.Service{K8sService: &ciliumv2.ServiceName{ServiceName: svc.Name, Namespace: svc.Namespace}}
	}
	s := &ciliumv2.ServiceSelector{}
	if m.odds(70) {
		s.Selector = m.selector(plain)
	}
	if m.odds(50) {
		s.Namespace = svc.Namespace
	}
	return ciliumv2.Service{K8sServiceSelector: s}
}

// layer4 is ports, or types of ICMP, or neither.
func (m *maker) layer4() ([]ciliumv2.PortRule, []ciliumv2.ICMPRule) {
	switch n := m.r.IntN(100); {
	case n < 40:
		return nil, nil
	case n < 85:
		return several(m, 2, func() ciliumv2.PortRule {
			return ciliumv2.PortRule{Ports: several(m, 2, m.portProtocol)}
		}), nil
	}
	return nil, []ciliumv2.ICMPRule{{Fields: several(m, 3, m.icmp)}}
}

func deny(ports []ciliumv2.PortRule) []ciliumv2.PortDenyRule {
	var rules []ciliumv2.PortDenyRule
	for _, p := range ports {
		rules = append(rules, ciliumv2.PortDenyRule{Ports: p.Ports})
	}
	return rules
}

func (m *maker) portProtocol() ciliumv2.PortProtocol {
	p := ciliumv2.PortProtocol{Protocol: pick(m.r, []string{"", "ANY", "TCP", "TCP", "UDP", "UDP", "SCTP", "SCTP"})}
	first := m.port()
	p.Port = strconv.Itoa(first)
	switch n := m.r.IntN(100); {
	case n < 15:
		p.Port = "0"
	case n < 45:
		p.Port = pick(m.r, portNames())
	case n < 65 && first < 65535:
		p.EndPort = int32(m.last(first))
	}
	return p
}

func (m *maker) icmp() ciliumv2.ICMPField {
	f := ciliumv2.ICMPField{Family: pick(m.r, []string{"", "IPv4", "IPv6"})}
	types := []intstr.IntOrString{intstr.FromInt32(8), intstr.FromString("EchoRequest"), intstr.FromInt32(13),
		intstr.FromString("Timestamp")}
	if f.Family == "IPv6" {
		types = []intstr.IntOrString{intstr.FromInt32(128), intstr.FromString("EchoRequest"), intstr.FromInt32(139),
			intstr.FromString("EchoRequest")}
	}
	t := pick(m.r, types)
	f.Type = &t
	return f
}
