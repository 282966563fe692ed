// Package lbipam gives Services of type LoadBalancer addresses, out of pools.
package lbipam

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"myelin/cluster"
)

// Pool is addresses, and the Services that may have them.
type Pool struct {
	Name    string
	Created time.Time
	Ranges  []Range
	// Selector is asked of a Service's labels, its namespace and its name (io.kubernetes.service.…).
	Selector labels.Selector
	// Disabled pools give nothing away. What they have given stays.
	Disabled bool
}

// Labels by which pools select what is no label of a Service.
const (
	namespaceLabel = "io.kubernetes.service.namespace"
	nameLabel      = "io.kubernetes.service.name"
)

// Range is addresses from First to Last, both of one family.
type Range struct{ First, Last netip.Addr }

// contains reports whether an address is among them.
func (r Range) contains(a netip.Addr) bool {
	return a.Is4() == r.First.Is4() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

func (r Range) overlaps(o Range) bool {
	return r.First.Is4() == o.First.Is4() && r.First.Compare(o.Last) <= 0 && o.First.Compare(r.Last) <= 0
}

// FromPrefix are the addresses of a prefix, without its first and last one if
// edges is false and there are more than two.
func FromPrefix(p netip.Prefix, edges bool) Range {
	p = p.Masked()
	last := p.Addr().AsSlice()
	for i := p.Bits(); i < len(last)*8; i++ {
		last[i/8] |= 1 << (7 - i%8)
	}
	end, _ := netip.AddrFromSlice(last)
	if !edges && p.Addr().BitLen()-p.Bits() > 1 {
		return Range{p.Addr().Next(), end.Prev()}
	}
	return Range{p.Addr(), end}
}

// Service is one that wants addresses.
type Service struct {
	cluster.Key

	Created time.Time
	Labels  map[string]string
	// IPv4 and IPv6 are the families that it wants.
	IPv4, IPv6 bool
	// Asked are addresses that it wants, and no others; none: any.
	Asked []netip.Addr
	// AskedWrong is what of its request is no address.
	AskedWrong []string
	// Sharing is the key of Services that may have one address together; empty: none
	// may. Namespaces are others than its own that they may be of, "*" for all.
	Sharing    string
	Namespaces []string
	// Ports are number and protocol of each, as in "80/TCP".
	Ports []string
	// Local is externalTrafficPolicy: Local, where those that share must have the
	// same Selector.
	Local    bool
	Selector map[string]string
	// Has are the addresses that it has had until now.
	Has []netip.Addr
}

// Answer is what a Service gets.
type Answer struct {
	// Addresses are in the order of what was asked for, else IPv4 first.
	Addresses []netip.Addr
	// Reason is one word on why some are lacking, and Message says it; both empty if none are.
	Reason, Message string
}

// Usage is how a pool is doing.
type Usage struct {
	// Total and Used are addresses; Total is at most 2^63-1.
	Total, Used int64
	// Conflict is with which older pool it shares addresses, so that nothing is
	// given of it; empty: none.
	Conflict string
}

// Available is how many addresses are left.
func (u Usage) Available() int64 { return u.Total - u.Used }

// Allocate gives each Service its addresses. It keeps what it has, while a pool
// that selects it has that, and older Services come before younger ones. The result doesn't
// depend on the order of lists.
func Allocate(pools []Pool, services []Service) (answers map[cluster.Key]Answer, usage map[string]Usage) {
	a := &allocator{pools: slices.Clone(pools), owners: map[netip.Addr][]*Service{}, conflicts: map[string]string{},
		next: map[string]netip.Addr{}}
	slices.SortFunc(a.pools, func(x, y Pool) int {
		return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Name, y.Name))
	})
	a.findConflicts()
	sorted := make([]*Service, len(services))
	for i := range services {
		sorted[i] = &services[i]
	}
	slices.SortFunc(sorted, func(x, y *Service) int {
		return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.String(), y.String()))
	})
	answers = make(map[cluster.Key]Answer, len(sorted))
	for _, s := range sorted {
		answers[s.Key] = Answer{Addresses: a.keep(s)}
	}
	for _, s := range sorted {
		answers[s.Key] = a.complete(s, answers[s.Key].Addresses)
	}
	return answers, a.usage()
}

type allocator struct {
	pools     []Pool                    // the oldest first
	conflicts map[string]string         // a pool, and the older one that it overlaps
	owners    map[netip.Addr][]*Service // by address: more than one only where they share it
	next      map[string]netip.Addr     // where to look for a free address, by pool and range
}

func (a *allocator) findConflicts() {
	for i := range a.pools {
		for j := range i {
			if a.conflicts[a.pools[j].Name] == "" && overlap(&a.pools[i], &a.pools[j]) {
				a.conflicts[a.pools[i].Name] = a.pools[j].Name
				break
			}
		}
	}
}

func overlap(p, q *Pool) bool {
	return slices.ContainsFunc(p.Ranges, func(r Range) bool { return slices.ContainsFunc(q.Ranges, r.overlaps) })
}

// pool is the one that has an address.
func (a *allocator) pool(addr netip.Addr) *Pool {
	for i := range a.pools {
		p := &a.pools[i]
		if a.conflicts[p.Name] == "" && slices.ContainsFunc(p.Ranges, func(r Range) bool { return r.contains(addr) }) {
			return p
		}
	}
	return nil
}

// selects reports whether a pool is for a Service.
func (p *Pool) selects(s *Service) bool {
	set := labels.Set{}
	for k, v := range s.Labels {
		set[k] = v
	}
	set[namespaceLabel], set[nameLabel] = s.Namespace, s.Name
	return p.Selector == nil || p.Selector.Matches(set)
}

func (s *Service) wants(addr netip.Addr) bool {
	if addr.Is4() && !s.IPv4 || addr.Is6() && !s.IPv6 {
		return false
	}
	return len(s.Asked)+len(s.AskedWrong) == 0 || slices.Contains(s.Asked, addr)
}

// keep takes of what a Service has what it may go on to have.
func (a *allocator) keep(s *Service) (kept []netip.Addr) {
	for _, addr := range s.Has {
		p := a.pool(addr)
		if p == nil || !p.selects(s) || !s.wants(addr) || a.inUse(s, addr) != "" {
			continue
		}
		// Of a family that nothing was asked for, one is enough.
		if len(s.Asked) == 0 && slices.ContainsFunc(kept, func(k netip.Addr) bool { return k.Is4() == addr.Is4() }) {
			continue
		}
		kept = append(kept, addr)
		a.own(s, addr)
	}
	return kept
}

func (a *allocator) own(s *Service, addr netip.Addr) { a.owners[addr] = append(a.owners[addr], s) }

// inUse says why a Service can't have an address that others have: a reason, or
// nothing if it can.
func (a *allocator) inUse(s *Service, addr netip.Addr) string {
	for _, o := range a.owners[addr] {
		if o == s {
			continue
		}
		if s.Sharing == "" || s.Sharing != o.Sharing {
			return "already_allocated"
		}
		if !s.shares(o) {
			return "already_allocated_incompatible_service"
		}
	}
	return ""
}
