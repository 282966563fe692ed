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

// source is what rows of the cluster's tables say of where they come from.
const source = "api"

// prefix of the annotations by which Services and slices say what Kubernetes
// has no field for.
const prefix = "service.cilium.io/"

// serviceRow is a Service as Kubernetes would have it: of type LoadBalancer,
// with the frontends as its load balancer's addresses.
func serviceRow(s *Service) *cluster.Service {
	row := &cluster.Service{
		Name: s.Name, Created: s.Created, Type: service.LoadBalancer.String(), Affinity: s.Affinity, Source: source, Annotations: map[string]string{},
		Ports: []cluster.ServicePort{{Protocol: s.protocol().String(), Port: s.Frontends[0].Port()}},
	}
	for _, f := range s.Frontends {
		row.Ingress = append(row.Ingress, f.Addr())
	}
	for _, r := range s.SourceRanges {
		row.SourceRanges = append(row.SourceRanges, r.String())
	}
	for key, value := range map[string]string{"lb-algorithm": string(s.Algorithm), "forwarding-mode": string(s.Forwarding)} {
		if value != "" {
			row.Annotations[prefix+key] = value
		}
	}
	if s.SourceDeny {
		row.Annotations[prefix+"src-ranges-policy"] = "deny"
	}
	return row
}

// part is what all endpoints of a slice have in common.
type part struct {
	v6           bool
	port, weight uint16
}

// name has characters that no object of Kubernetes has in its.
func (p part) name(of string) string {
	return fmt.Sprintf("%s:%s:%d:%d", of, p.family(), p.port, p.weight)
}

func (p part) family() string {
	if p.v6 {
		return "IPv6"
	}
	return "IPv4"
}

// sliceRows are the EndpointSlices of a Service, sorted by what their backends
// have in common. failing says who fails a health check.
func sliceRows(s *Service, failing func(netip.AddrPort) bool) []*cluster.EndpointSlice {
	parts := map[part][]cluster.Endpoint{}
	for _, b := range s.Backends {
		at := part{b.Address.Addr().Is6(), b.Address.Port(), b.Weight}
		parts[at] = append(parts[at], cluster.Endpoint{Address: b.Address.Addr(), Ready: true, Serving: true, Failing: failing(b.Address)})
	}
	var rows []*cluster.EndpointSlice
	for _, at := range slices.SortedFunc(maps.Keys(parts), func(a, b part) int {
		return cmp.Or(cmp.Compare(a.family(), b.family()), cmp.Compare(a.port, b.port), cmp.Compare(a.weight, b.weight))
	}) {
		row := &cluster.EndpointSlice{
			Name: at.name(s.Name), Service: s.Name, AddressType: at.family(), Source: source, Endpoints: parts[at],
			Ports: []cluster.SlicePort{{Protocol: s.protocol().String(), Port: at.port}},
		}
		if at.weight != service.DefaultWeight {
			row.Annotations = map[string]string{prefix + "weight": strconv.Itoa(int(at.weight))}
		}
		rows = append(rows, row)
	}
	return rows
}
