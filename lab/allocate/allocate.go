// Package allocate gives Services what an API server would give them: addresses of the cluster's ranges, and node
// ports.
package allocate

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/big"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"myelin/cluster"
)

// Ranges are what is allocated from.
type Ranges struct {
	Services            []netip.Prefix // at most one of each family, in the order of preference
	FirstPort, LastPort int32          // node ports, both included
}

// Allocator knows what Services have, and gives them what they lack. What it chooses depends on the names of Services
// and on what is taken, so that the same manifests get the same in another cluster.
type Allocator struct {
	ranges Ranges
	addrs  map[netip.Addr]string // "namespace/name" of the Service that has it
	ports  map[string]string     // "TCP/30080" likewise
}

// New returns an allocator of which nothing is taken.
func New(ranges Ranges) *Allocator {
	return &Allocator{ranges: ranges, addrs: map[netip.Addr]string{}, ports: map[string]string{}}
}

func keyOf(s *corev1.Service) string { return s.Namespace + "/" + s.Name }

// Take notes what the Service says itself. Errors name what another Service has, and node ports off the range; such are
// not noted. Values that can't be read are left to others to refuse.
func (a *Allocator) Take(s *corev1.Service) cluster.FieldErrors {
	var faults cluster.FieldErrors
	fault := func(format string, field any, args ...any) {
		faults = append(faults, cluster.FieldError{Field: fmt.Sprint(field), Reason: fmt.Sprintf(format, args...)})
	}
	for i, text := range addressesOf(s) {
		field := fmt.Sprintf("spec.clusterIPs[%d]", i)
		if len(s.Spec.ClusterIPs) == 0 {
			field = "spec.clusterIP"
		}
		addr, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		if other, taken := a.addrs[addr]; taken && other != keyOf(s) {
			fault("%s is allocated to Service %s", field, addr, other)
			continue
		}
		a.addrs[addr] = keyOf(s)
	}
	if !hasNodePorts(s) {
		return faults
	}
	for i, p := range s.Spec.Ports {
		field := fmt.Sprintf("spec.ports[%d].nodePort", i)
		other, taken := a.ports[portKey(p.Protocol, p.NodePort)]
		switch {
		case p.NodePort == 0:
		case p.NodePort < a.ranges.FirstPort || p.NodePort > a.ranges.LastPort:
			fault("%d is not in the range of node ports, %d to %d", field, p.NodePort, a.ranges.FirstPort,
				a.ranges.LastPort)
		case taken && other != keyOf(s):
			fault("%s is allocated to Service %s", field, portKey(p.Protocol, p.NodePort), other)
		default:
			a.ports[portKey(p.Protocol, p.NodePort)] = keyOf(s)
		}
	}
	return faults
}

// Complete gives the Service what it lacks. What an earlier version of it had, if there is one, is kept where it fits.
func (a *Allocator) Complete(s, earlier *corev1.Service) cluster.FieldErrors {
	if earlier == nil {
		earlier = &corev1.Service{}
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	var faults cluster.FieldErrors
	if s.Spec.ClusterIP != corev1.ClusterIPNone {
		faults = append(faults, a.addresses(s, earlier)...)
	}
	if hasNodePorts(s) {
		faults = append(faults, a.nodePorts(s, earlier)...)
	}
	return faults
}

// addressesOf are the addresses that a Service names, none for a headless one.
func addressesOf(s *corev1.Service) []string {
	switch {
	case s.Spec.Type == corev1.ServiceTypeExternalName || s.Spec.ClusterIP == corev1.ClusterIPNone:
		return nil
	case len(s.Spec.ClusterIPs) > 0:
		return s.Spec.ClusterIPs
	case s.Spec.ClusterIP != "":
		return []string{s.Spec.ClusterIP}
	}
	return nil
}

func (a *Allocator) addresses(s, earlier *corev1.Service) cluster.FieldErrors {
	have := addressesOf(s)
	families, faults := a.families(s, have)
	if faults != nil || len(have) >= len(families) {
		return faults
	}
	old := addressesOf(earlier)
	for _, family := range families[len(have):] {
		addr, ok := a.inherit(s, old, family)
		if !ok {
			i := slices.IndexFunc(a.ranges.Services, func(p netip.Prefix) bool { return familyOf(p.Addr()) == family })
			if addr, ok = a.address(s, a.ranges.Services[i]); !ok {
				return cluster.FieldErrors{
					{Field: "spec.clusterIPs", Reason: a.ranges.Services[i].String() + " has no address left"},
				}
			}
		}
		a.addrs[addr] = keyOf(s)
		have = append(slices.Clone(have), addr.String())
	}
	s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = have[0], have, families
	if s.Spec.IPFamilyPolicy == nil {
		policy := corev1.IPFamilyPolicySingleStack
		if len(families) > 1 {
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
		s.Spec.IPFamilyPolicy = &policy
	}
	return nil
}

// inherit takes the address of a family that the Service had, where nothing else has it now.
func (a *Allocator) inherit(s *corev1.Service, old []string, family corev1.IPFamily) (netip.Addr, bool) {
	for _, text := range old {
		addr, err := netip.ParseAddr(text)
		if other := a.addrs[addr]; err == nil && familyOf(addr) == family && (other == "" || other == keyOf(s)) {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// families are those that a Service is to have, as an API server defaults them.
func (a *Allocator) families(s *corev1.Service, have []string) ([]corev1.IPFamily, cluster.FieldErrors) {
	families := slices.Clone(s.Spec.IPFamilies)
	if len(families) == 0 {
		for _, text := range have {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				return nil, nil // refused by agents
			}
			families = append(families, familyOf(addr))
		}
	}
	var all []corev1.IPFamily
	for _, p := range a.ranges.Services {
		all = append(all, familyOf(p.Addr()))
	}
	if len(families) == 0 && len(all) > 0 {
		families = all[:1:1]
	}
	for i, f := range families {
		if !slices.Contains(all, f) && i >= len(have) {
			return nil, cluster.FieldErrors{
				{
					Field:  fmt.Sprintf("spec.ipFamilies[%d]", i),
					Reason: fmt.Sprintf("%s: the cluster has no range of Services of it", f),
				},
			}
		}
	}
	policy := corev1.IPFamilyPolicySingleStack
	if s.Spec.IPFamilyPolicy != nil {
		policy = *s.Spec.IPFamilyPolicy
	}
	if policy == corev1.IPFamilyPolicySingleStack || len(families) > 1 {
		return families, nil
	}
	for _, f := range all {
		if !slices.Contains(families, f) {
			families = append(families, f)
		}
	}
	if len(families) < 2 && policy == corev1.IPFamilyPolicyRequireDualStack {
		return nil, cluster.FieldErrors{
			{Field: "spec.ipFamilyPolicy", Reason: "RequireDualStack: the cluster has one range of Services"},
		}
	}
	return families, nil
}

func familyOf(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// address finds a free one. Like an API server it leaves the lowest ones, which people choose themselves, for last.
func (a *Allocator) address(s *corev1.Service, p netip.Prefix) (netip.Addr, bool) {
	size := uint64(1) << min(20, p.Addr().BitLen()-p.Bits())
	last := size // exclusive
	if p.Addr().Is4() && size > 2 {
		last-- // broadcast
	}
	for n := range choices(keyOf(s), 1, last, min(max(16, size/16), 256)) {
		if addr := plus(p.Masked().Addr(), n); a.addrs[addr] == "" {
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// choices yields the numbers from first to before last, all once, from a place that a name determines; the reserved
// ones at the beginning come last.
func choices(name string, first, last, reserved uint64) func(func(uint64) bool) {
	return func(yield func(uint64) bool) {
		h := fnv.New64a()
		h.Write([]byte(name))
		low := min(first+reserved, last)
		if last-first <= reserved {
			low = first
		}
		for _, part := range [][2]uint64{{low, last}, {first, low}} {
			n := part[1] - part[0]
			for i := range n {
				if !yield(part[0] + (h.Sum64()%n+i)%n) {
					return
				}
			}
		}
	}
}

func plus(a netip.Addr, n uint64) netip.Addr {
	sum := new(big.Int).SetBytes(a.AsSlice())
	sum.Add(sum, new(big.Int).SetUint64(n))
	b := make([]byte, a.BitLen()/8)
	addr, _ := netip.AddrFromSlice(sum.FillBytes(b))
	return addr
}

func portKey(protocol corev1.Protocol, port int32) string {
	return fmt.Sprintf("%s/%d", cmp.Or(protocol, corev1.ProtocolTCP), port)
}
