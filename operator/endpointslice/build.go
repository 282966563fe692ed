package endpointslice

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"myelin/cluster"
)

// builder makes the slices of a Service, of the pods that its selector selects
// by name and of the nodes' zones by name. It is a function of these alone, so
// that all nodes make the same.
type builder struct {
	service *cluster.Service
	zones   map[string]string
	groups  map[string]*group
}

func build(s *cluster.Service, pods map[string]*cluster.Pod, zones map[string]string) []*cluster.EndpointSlice {
	b := &builder{service: s, zones: zones, groups: map[string]*group{}}
	var ports, last []cluster.SlicePort
	var key string
	for _, at := range inOrder(pods) {
		pod := at.pod
		if !b.counts(pod) {
			continue
		}
		// Most pods have the same ports as the one before.
		ports = appendPorts(ports[:0], s, pod)
		if key == "" || !slices.Equal(ports, last) {
			key, last = keyOf(ports), slices.Clone(ports)
		}
		for _, a := range addressesOf(pod) {
			if family := familyOf(a); wants(s, family) {
				g := b.group(family, key, last)
				g.members = append(g.members, member{place: at, address: a})
			}
		}
	}
	var out []*cluster.EndpointSlice
	for _, g := range b.groups {
		out = g.cut(out, g.members, "")
	}
	return out
}

// counts reports whether a pod is an endpoint in any state. A pod that has ended
// is none, nor is one whose node is not known: its objects have not been cleaned up,
// unless the Service asks for pods in any state.
func (b *builder) counts(pod *cluster.Pod) bool {
	_, known := b.zones[pod.NodeName]
	return !pod.Ended() && (known || b.service.PublishNotReady)
}

// endpoint is a member to the Service.
func (b *builder) endpoint(m *member) cluster.Endpoint {
	s, pod, zone := b.service, m.pod, b.zones[m.pod.NodeName]
	e := cluster.Endpoint{
		Address: m.address, Ready: s.PublishNotReady || pod.Ready && !pod.Terminating,
		Serving: pod.Ready, Terminating: pod.Terminating, Node: pod.NodeName, Zone: zone, Pod: pod.Key(),
	}
	if e.Ready && s.TrafficDistribution != "" && zone != "" {
		e.ForZones = []string{zone}
	}
	if e.Ready && s.TrafficDistribution == "PreferSameNode" && e.Node != "" {
		e.ForNodes = []string{e.Node}
	}
	return e
}

// addressesOf are those of a pod. One on the host's network has its node's,
// also before its status says so.
func addressesOf(pod *cluster.Pod) []netip.Addr {
	if pod.HostNetwork && len(pod.Addresses) == 0 {
		return pod.HostAddresses
	}
	return pod.Addresses
}

func familyOf(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// wants reports whether a Service has a family. One that says nothing about it,
// since no API server has completed it, has both.
func wants(s *cluster.Service, family string) bool {
	switch {
	case len(s.Families) > 0:
		return slices.Contains(s.Families, family)
	case len(s.ClusterIPs) > 0:
		return slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool { return familyOf(a) == family })
	}
	return true
}

// appendPorts adds the ports of a Service as a pod has them. A name that the
// pod has no port of that protocol for is left out.
func appendPorts(out []cluster.SlicePort, s *cluster.Service, pod *cluster.Pod) []cluster.SlicePort {
	for _, p := range s.Ports {
		number := p.Port
		switch {
		case p.TargetName != "":
			i := slices.IndexFunc(pod.Ports, func(c cluster.Port) bool {
				return c.Name == p.TargetName && c.Protocol == p.Protocol
			})
			if i < 0 {
				continue
			}
			number = pod.Ports[i].Number
		case p.Target != 0:
			number = p.Target
		}
		out = append(out, cluster.SlicePort{Name: p.Name, Protocol: p.Protocol, Port: number})
	}
	return out
}

// keyOf is never empty, and the same for the same ports alone.
func keyOf(ports []cluster.SlicePort) string {
	var b strings.Builder
	for _, p := range ports {
		b.WriteString(p.Name)
		b.WriteByte(':')
		b.WriteString(strconv.Itoa(int(p.Port)))
		b.WriteByte('/')
		b.WriteString(p.Protocol)
		b.WriteByte(' ')
	}
	b.WriteByte('.')
	return b.String()
}

func (b *builder) group(family, key string, ports []cluster.SlicePort) *group {
	at := family + " " + key
	g := b.groups[at]
	if g == nil {
		g = &group{builder: b, family: family, ports: ports, key: key}
		b.groups[at] = g
	}
	return g
}
