package serviceapi

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"myelin/cluster"
	"myelin/service"
)

// source is the Source of rows in the cluster's tables.
const source = "api"

// prefix is that of annotations for options that Kubernetes has no field for.
const prefix = "service.cilium.io/"

// serviceRow is a Service in the form that it would have in Kubernetes: of type LoadBalancer, with the frontends as
// addresses of its load balancer.
func serviceRow(s *Service) *cluster.Service {
	row := &cluster.Service{
		Name: s.Name, Created: s.Created, Type: service.LoadBalancer.String(), Affinity: s.Affinity,
		Source: source, Annotations: map[string]string{},
		Ports: []cluster.ServicePort{{Protocol: s.protocol().String(), Port: s.Frontends[0].Port()}},
	}
	for _, f := range s.Frontends {
		row.Ingress = append(row.Ingress, f.Addr())
	}
	for _, r := range s.SourceRanges {
		row.SourceRanges = append(row.SourceRanges, r.String())
	}
	for key, value := range map[string]string{
		"lb-algorithm": string(s.Algorithm), "forwarding-mode": string(s.Forwarding),
	} {
		if value != "" {
			row.Annotations[prefix+key] = value
		}
	}
	if s.ServerIDLength != 0 {
		row.Annotations[service.ServerIDAnnotation] = strconv.Itoa(int(s.ServerIDLength))
	}
	if s.SourceDeny {
		row.Annotations[prefix+"src-ranges-policy"] = "deny"
	}
	return row
}

// group is what all endpoints of a slice have in common.
type group struct {
	v6           bool
	port, weight uint16
}

// name contains characters that names of Kubernetes objects do not have.
func (g group) name(of string) string {
	return fmt.Sprintf("%s:%s:%d:%d", of, g.family(), g.port, g.weight)
}

func (g group) family() string {
	if g.v6 {
		return "IPv6"
	}
	return "IPv4"
}

// sliceRows are the EndpointSlices of a Service, one for each group of backends. failing reports whether a backend
// fails its health check.
func sliceRows(s *Service, failing func(netip.AddrPort) bool) []*cluster.EndpointSlice {
	groups := map[group][]cluster.Endpoint{}
	for _, b := range s.Backends {
		at := group{b.Address.Addr().Is6(), b.Address.Port(), b.Weight}
		groups[at] = append(groups[at], cluster.Endpoint{
			Address: b.Address.Addr(), Ready: true, Serving: true, Failing: failing(b.Address),
			ServerID: b.ServerID,
		})
	}
	var rows []*cluster.EndpointSlice
	for _, at := range slices.SortedFunc(maps.Keys(groups), func(a, b group) int {
		return cmp.Or(cmp.Compare(a.family(), b.family()), cmp.Compare(a.port, b.port), cmp.Compare(a.weight, b.weight))
	}) {
		row := &cluster.EndpointSlice{
			Name: at.name(s.Name), Service: s.Name, AddressType: at.family(), Source: source, Endpoints: groups[at],
			Ports: []cluster.SlicePort{{Protocol: s.protocol().String(), Port: at.port}},
		}
		if at.weight != service.DefaultWeight {
			row.Annotations = map[string]string{prefix + "weight": strconv.Itoa(int(at.weight))}
		}
		rows = append(rows, row)
	}
	return rows
}
