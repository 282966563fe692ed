package random

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"

	policyv1 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"myelin/policy/ciliumv2"
	"myelin/test/policy/reference"
)

// Proxied is World with a proxy: some rules of Cilium's policies name peers by DNS names, or have rules above ports,
// and pods have learnt names of addresses outside the cluster. There are size more of these policies, and no tier
// baseline.
func Proxied(r *rand.Rand, size int) *reference.World {
	w := World(r, size)
	w.Proxy = true
	m := &maker{r: r, w: w}
	w.ClusterNetworkPolicies = slices.DeleteFunc(w.ClusterNetworkPolicies,
		func(p *policyv1.ClusterNetworkPolicy) bool { return p.Spec.Tier == policyv1.BaselineTier })
	for i := range size {
		m.ciliumPolicy("proxy" + strconv.Itoa(i))
	}
	for _, p := range w.CiliumNetworkPolicies {
		m.proxy(p.Spec, p.Specs)
	}
	for _, p := range w.CiliumClusterwideNetworkPolicies {
		m.proxy(p.Spec, p.Specs)
	}
	w.Names = map[netip.Addr]map[netip.Addr][]string{}
	for _, pod := range w.Pods {
		for _, ip := range pod.Status.PodIPs {
			own := netip.MustParseAddr(ip.IP)
			learnt := map[netip.Addr][]string{}
			for range 8 {
				a := m.address(own.Is4())
				learnt[a] = append(learnt[a], pick(r, []string{"a.example", "b.example", "a.b.example", "other"}))
			}
			w.Names[own] = learnt
		}
	}
	return w
}

// proxy makes rules of a policy for pods need the proxy.
func (m *maker) proxy(one *ciliumv2.Rule, more []ciliumv2.Rule) {
	specs := more
	if one != nil {
		specs = []ciliumv2.Rule{*one}
	}
	for _, s := range specs {
		if s.NodeSelector != nil {
			continue
		}
		for i := range s.Ingress {
			r := &s.Ingress[i]
			r.ToPorts = m.wide(r.ToPorts, r.ICMPs)
			m.above(r.ToPorts, false)
		}
		for i := range s.Egress {
			r := &s.Egress[i]
			r.ToPorts = m.wide(r.ToPorts, r.ICMPs)
			if m.above(r.ToPorts, true); m.odds(40) {
				r.ToPeers = ciliumv2.ToPeers{ToRequires: r.ToRequires}
				r.ToFQDNs = several(m, 2, m.fqdn)
			}
		}
	}
}

// wide are ports that most probes match, in half of the cases.
func (m *maker) wide(ports []ciliumv2.PortRule, icmps []ciliumv2.ICMPRule) []ciliumv2.PortRule {
	if len(icmps) > 0 || m.odds(50) {
		return ports
	}
	return append(ports, ciliumv2.PortRule{Ports: []ciliumv2.PortProtocol{{Port: "1", EndPort: 65535}}})
}

func (m *maker) fqdn() ciliumv2.FQDN {
	return pick(m.r, []ciliumv2.FQDN{{MatchName: "a.example"}, {MatchName: "Other."}, {MatchPattern: "*.example"},
		{MatchPattern: "**.example"}, {MatchPattern: "*"}, {MatchPattern: "*b.example"}})
}

// above gives items of toPorts rules above them.
func (m *maker) above(items []ciliumv2.PortRule, egress bool) {
	for i := range items {
		p := &items[i]
		switch n := m.r.IntN(100); {
		case n < 30:
			for j := range p.Ports {
				m.readable(&p.Ports[j], "TCP")
			}
			p.Rules = &ciliumv2.L7Rules{HTTP: several(m, 2, func() ciliumv2.HTTP {
				return ciliumv2.HTTP{Path: pick(m.r, []string{"/a", "/b"})}
			})}
		case n < 40:
			p.ServerNames = []string{"a.example"}
			m.readable(&p.Ports[0], "TCP")
		case n < 55 && egress:
			for j := range p.Ports {
				m.readable(&p.Ports[j], pick(m.r, []string{"TCP", "UDP", "ANY"}))
				p.Ports[j].EndPort = 0
			}
			p.Rules = &ciliumv2.L7Rules{DNS: several(m, 2, m.fqdn)}
		}
	}
}

// readable makes a port one of a protocol that the proxy reads, and no "all ports".
func (m *maker) readable(p *ciliumv2.PortProtocol, protocol string) {
	if p.Protocol = protocol; p.Port == "0" {
		p.Port = strconv.Itoa(m.port())
	}
}
