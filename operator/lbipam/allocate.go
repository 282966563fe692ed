package lbipam

import (
	"fmt"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strings"
)

// shares reports whether two Services with one sharing key can have one address.
func (s *Service) shares(o *Service) bool {
	admits := func(a, b *Service) bool {
		return a.Namespace == b.Namespace || slices.Contains(a.Namespaces, "*") ||
			slices.Contains(a.Namespaces, b.Namespace)
	}
	if !admits(s, o) || !admits(o, s) {
		return false
	}
	if slices.ContainsFunc(s.Ports, func(p string) bool { return slices.Contains(o.Ports, p) }) {
		return false
	}
	return s.Local == o.Local && (!s.Local || maps.Equal(s.Selector, o.Selector))
}

// complete gives a Service what it lacks.
func (a *allocator) complete(s *Service, have []netip.Addr) Answer {
	out := Answer{Addresses: have}
	lacks := func(reason, format string, args ...any) {
		if out.Reason == "" {
			out.Reason = reason
		} else {
			out.Message += "; "
		}
		out.Message += fmt.Sprintf(format, args...)
	}
	for _, text := range s.AskedWrong {
		lacks("invalid_address", "%q is no address", text)
	}
	if len(s.Asked)+len(s.AskedWrong) > 0 {
		out.Addresses = nil
		for _, addr := range s.Asked {
			reason, why := "", ""
			if !slices.Contains(have, addr) {
				reason, why = a.ask(s, addr)
			}
			if reason != "" {
				lacks(reason, "%s %s", addr, why)
				continue
			}
			out.Addresses = append(out.Addresses, addr)
		}
		return out
	}
	for _, want := range []struct {
		family bool
		is4    bool
		name   string
	}{{s.IPv4, true, "IPv4"}, {s.IPv6, false, "IPv6"}} {
		if !want.family || slices.ContainsFunc(out.Addresses, func(x netip.Addr) bool { return x.Is4() == want.is4 }) {
			continue
		}
		addr, reason, why := a.find(s, want.is4)
		if reason != "" {
			lacks(reason, "%s: %s", want.name, why)
			continue
		}
		out.Addresses = append(out.Addresses, addr)
	}
	slices.SortStableFunc(out.Addresses, func(x, y netip.Addr) int { return x.BitLen() - y.BitLen() })
	return out
}

// ask takes an address that a Service wants, or says why it can't.
func (a *allocator) ask(s *Service, addr netip.Addr) (reason, why string) {
	p := a.pool(addr)
	switch {
	case addr.Is4() && !s.IPv4 || addr.Is6() && !s.IPv6:
		return "wrong_family", "is of a family that the Service doesn't have"
	case p == nil:
		return "no_pool", "is in no pool"
	case p.Disabled:
		return "pool_disabled", "is of pool " + p.Name + ", which is disabled"
	case !p.selects(s):
		return "pool_selector_mismatch", "is of pool " + p.Name + ", which doesn't select the Service"
	}
	if reason = a.inUse(s, addr); reason != "" {
		return reason, "is " + a.owners[addr][0].String() + "'s"
	}
	a.own(s, addr)
	return "", ""
}

// find takes an address of a family: one that others share with the Service, else
// a free one.
func (a *allocator) find(s *Service, is4 bool) (addr netip.Addr, reason, why string) {
	var pools []*Pool
	for i := range a.pools {
		p := &a.pools[i]
		if a.conflicts[p.Name] == "" && !p.Disabled && p.selects(s) && slices.ContainsFunc(p.Ranges,
			func(r Range) bool { return r.First.Is4() == is4 }) {
			pools = append(pools, p)
		}
	}
	if len(pools) == 0 {
		return addr, "no_pool", "there is no pool that is enabled and selects the Service"
	}
	if s.Sharing != "" {
		if addr, ok := a.shared(s, is4, pools); ok {
			a.own(s, addr)
			return addr, "", ""
		}
	}
	for _, p := range pools {
		for i, r := range p.Ranges {
			if r.First.Is4() != is4 {
				continue
			}
			if addr, ok := a.free(fmt.Sprint(p.Name, "/", i), r); ok {
				a.own(s, addr)
				return addr, "", ""
			}
		}
	}
	var names []string
	for _, p := range pools {
		names = append(names, p.Name)
	}
	return addr, "out_of_ips", "no address is left in " + strings.Join(names, ", ")
}

// shared is the lowest address of those with the Service's sharing key that it
// can have too.
func (a *allocator) shared(s *Service, is4 bool, pools []*Pool) (best netip.Addr, ok bool) {
	for addr, owners := range a.owners {
		if addr.Is4() != is4 || len(owners) == 0 || owners[0].Sharing != s.Sharing || a.inUse(s, addr) != "" ||
			!slices.Contains(pools, a.pool(addr)) {
			continue
		}
		if !ok || addr.Less(best) {
			best, ok = addr, true
		}
	}
	return best, ok
}

// free is the lowest address of a range that is not allocated. Nothing becomes free
// meanwhile, so it never looks back.
func (a *allocator) free(name string, r Range) (netip.Addr, bool) {
	addr, ok := a.next[name]
	if !ok {
		addr = r.First
	}
	for addr.IsValid() && r.contains(addr) && len(a.owners[addr]) > 0 {
		addr = addr.Next()
	}
	a.next[name] = addr
	return addr, addr.IsValid() && r.contains(addr)
}

func (a *allocator) usage() map[string]Usage {
	out := map[string]Usage{}
	for i := range a.pools {
		p := &a.pools[i]
		out[p.Name] = Usage{Total: total(p.Ranges), Conflict: a.conflicts[p.Name]}
	}
	for addr := range a.owners {
		if p := a.pool(addr); p != nil {
			u := out[p.Name]
			u.Used++
			out[p.Name] = u
		}
	}
	return out
}

// total is how many addresses ranges have. Where they overlap each counts once.
func total(ranges []Range) int64 {
	sorted := slices.SortedFunc(slices.Values(ranges), func(a, b Range) int { return a.First.Compare(b.First) })
	sum := new(big.Int)
	var last netip.Addr
	for _, r := range sorted {
		first := r.First
		if last.IsValid() && last.Is4() == first.Is4() && first.Compare(last) <= 0 {
			first = last.Next()
		}
		if !first.IsValid() || r.Last.Less(first) {
			continue
		}
		n := new(big.Int).Sub(new(big.Int).SetBytes(r.Last.AsSlice()), new(big.Int).SetBytes(first.AsSlice()))
		sum.Add(sum, n.Add(n, big.NewInt(1)))
		last = r.Last
	}
	if !sum.IsInt64() {
		return 1<<63 - 1
	}
	return sum.Int64()
}
