package endpointslice

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"myelin/cluster"
)

// maxEndpoints of a slice, as kube-controller-manager has it by default: what a
// change of one pod rewrites.
const maxEndpoints = 100

// mark is in the name of every slice that is made here, and can't be in that
// of an object, which is a DNS name.
const mark = ":"

func made(row *cluster.EndpointSlice) bool { return strings.Contains(row.Name, mark) }

// group are the pods of one family whose ports have the same numbers.
type group struct {
	*builder
	family  string
	ports   []cluster.SlicePort
	key     string // of ports
	members []member
}

// place is where a pod belongs: slices are made by the first bits of the hash
// of its name.
type place struct {
	hash uint64
	pod  *cluster.Pod
}

// inOrder sorts pods by their places.
func inOrder(pods map[string]*cluster.Pod) []place {
	all := make([]place, 0, len(pods))
	for name, pod := range pods {
		all = append(all, place{xxhash.Sum64String(name), pod})
	}
	slices.SortFunc(all, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.pod.Name, b.pod.Name))
	})
	return all
}

// member is a pod with its address of the family.
type member struct {
	place
	address netip.Addr
}

// hashBits bounds cut: more there aren't to tell pods apart.
const hashBits = 64

// cut makes slices of members, which have bits as the first ones of their
// hashes and are sorted by them. It takes no more bits than it must. So a pod
// that comes or goes changes one slice, which may be cut in two or joined with
// the one beside it, and no other one; and it need not be stored which pod is
// where.
func (g *group) cut(out []*cluster.EndpointSlice, members []member, bits string) []*cluster.EndpointSlice {
	switch {
	case len(members) == 0:
		return out
	case len(members) <= maxEndpoints || len(bits) == hashBits:
		return append(out, g.slice(members, bits))
	}
	next := uint64(1) << (hashBits - 1 - len(bits))
	at := slices.IndexFunc(members, func(m member) bool { return m.hash&next != 0 })
	if at < 0 {
		at = len(members)
	}
	return g.cut(g.cut(out, members[:at], bits+"0"), members[at:], bits+"1")
}

// slice is one whose name says what it is of: Service, family, ports, bits.
func (g *group) slice(members []member, bits string) *cluster.EndpointSlice {
	s := g.service
	name := s.Name + mark + strings.ToLower(g.family) + mark + fmt.Sprintf("%016x", xxhash.Sum64String(g.key))
	if bits != "" {
		name += mark + bits
	}
	row := &cluster.EndpointSlice{
		Namespace: s.Namespace, Name: name, Service: s.Name, AddressType: g.family, Ports: g.ports,
		Endpoints: make([]cluster.Endpoint, len(members)), Source: "made from Service " + s.Key().String(),
	}
	for i := range members {
		row.Endpoints[i] = g.endpoint(&members[i])
	}
	return row
}
