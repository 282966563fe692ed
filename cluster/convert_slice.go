package cluster

import (
	"cmp"
	"maps"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The API's own bounds of a slice.
const (
	maxEndpoints  = 1000
	maxSlicePorts = 20000
)

// FromEndpointSlice makes a row of an EndpointSlice; errors as FromNode's.
func FromEndpointSlice(slice *discoveryv1.EndpointSlice, source string) (*EndpointSlice, error) {
	var c checker
	row := &EndpointSlice{
		Namespace: slice.Namespace, Name: slice.Name, Service: slice.Labels[discoveryv1.LabelServiceName],
		AddressType: string(slice.AddressType), Source: source,
	}
	if row.Namespace == "" {
		row.Namespace = metav1.NamespaceDefault
	}
	row.Annotations = maps.Clone(slice.Annotations)
	maps.DeleteFunc(row.Annotations, func(k, _ string) bool { return !strings.HasPrefix(k, "service.cilium.io/") })
	c.name("metadata.name", row.Name, validation.IsDNS1123Subdomain)
	c.name("metadata.namespace", row.Namespace, validation.IsDNS1123Label)
	c.labels(slice.Labels)
	known := c.oneOf("addressType", row.AddressType, "IPv4", "IPv6", "FQDN")
	c.slicePorts(row, slice.Ports)
	if len(slice.Endpoints) > maxEndpoints {
		c.add("endpoints", "%d are too many: at most %d", len(slice.Endpoints), maxEndpoints)
	}
	if known && slice.AddressType != discoveryv1.AddressTypeFQDN {
		c.endpoints(row, slice.Endpoints)
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	return row, nil
}

func (c *checker) slicePorts(row *EndpointSlice, ports []discoveryv1.EndpointPort) {
	if len(ports) > maxSlicePorts {
		c.add("ports", "%d are too many: at most %d", len(ports), maxSlicePorts)
		return
	}
	names := map[string]bool{}
	for i, p := range ports {
		at := path("ports", i)
		var port SlicePort
		if p.Name != nil {
			port.Name = *p.Name
		}
		if names[port.Name] {
			c.add(at+".name", "%q is there twice", port.Name)
		}
		names[port.Name] = true
		if port.Name != "" {
			c.name(at+".name", port.Name, validation.IsDNS1123Label)
		}
		ok := true
		port.Protocol = "TCP"
		if p.Protocol != nil {
			port.Protocol, ok = c.protocol(at+".protocol", *p.Protocol)
		}
		if p.Port == nil {
			continue // means any port, which no Service can ask for
		}
		if port.Port = c.port(at+".port", *p.Port); ok && port.Port != 0 {
			row.Ports = append(row.Ports, port)
		}
	}
}

func (c *checker) endpoints(row *EndpointSlice, endpoints []discoveryv1.Endpoint) {
	row.Endpoints = make([]Endpoint, 0, len(endpoints))
	for i, e := range endpoints {
		at := path("endpoints", i)
		if len(e.Addresses) == 0 {
			c.add(at+".addresses", "must be set")
			continue
		}
		var out Endpoint
		for j, s := range e.Addresses {
			field := path(at+".addresses", j)
			a, ok := c.addr(field, s)
			if ok && a.Is4() != (row.AddressType == "IPv4") {
				c.add(field, "%s is not of addressType %s", a, row.AddressType)
			}
			if j == 0 {
				out.Address = a
			}
		}
		out.Ready = e.Conditions.Ready == nil || *e.Conditions.Ready
		out.Serving = e.Conditions.Serving == nil || *e.Conditions.Serving
		out.Terminating = e.Conditions.Terminating != nil && *e.Conditions.Terminating
		if e.NodeName != nil {
			c.name(at+".nodeName", *e.NodeName, validation.IsDNS1123Subdomain)
			out.Node = *e.NodeName
		}
		if e.Zone != nil {
			out.Zone = *e.Zone
		}
		if t := e.TargetRef; t != nil && t.Kind == "Pod" {
			out.Pod = Key{Namespace: cmp.Or(t.Namespace, row.Namespace), Name: t.Name}
		}
		if e.Hints != nil {
			for _, z := range e.Hints.ForZones {
				out.ForZones = append(out.ForZones, z.Name)
			}
			for _, n := range e.Hints.ForNodes {
				out.ForNodes = append(out.ForNodes, n.Name)
			}
		}
		row.Endpoints = append(row.Endpoints, out)
	}
}
