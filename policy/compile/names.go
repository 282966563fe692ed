package compile

import (
	"encoding/binary"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"myelin/l7/config"
	"myelin/policy"
)

// namesSource is that of the addresses of names. The kernel has one address in their place, SelectorAddress, since each
// endpoint has learnt other addresses of them: the datapath looks up which numbers an address has.
func namesSource(names []policy.NamePattern) addressSource {
	names = slices.Clone(names)
	policy.SortNames(names)
	names = slices.Compact(names)
	var text []byte
	for _, n := range names {
		text = append(text, n.Name+"\x00"+n.Pattern+"\x00"...)
	}
	return addressSource{key: "names " + hash128(string(text)), pods: true, names: names}
}

// SelectorAddress stands in the map of peers for all addresses that the names of a selector have: ff00::N. No peer can
// have a multicast address.
func SelectorAddress(number uint32) netip.Addr {
	a := [16]byte{0xff}
	binary.BigEndian.PutUint32(a[12:], number)
	return netip.AddrFrom16(a)
}

// fillNames gives an address set of names its number and its address.
func (c *Compiler) fillNames(set *addressSet) {
	if set.selector == 0 {
		set.selector = c.rules.Get(LedgerKey(set.source.key))
		c.selectors[set.selector] = set
		c.space.setOwner(SelectorAddress(set.selector), c.peers.noLabels)
	}
	c.space.fillSet(set, singles([]netip.Addr{SelectorAddress(set.selector)}), nil)
}

// releaseNames undoes fillNames for a set that no rule uses.
func (c *Compiler) releaseNames(set *addressSet) {
	if set.selector != 0 && len(set.users) == 0 {
		c.space.setOwner(SelectorAddress(set.selector), nil)
		c.rules.Release(LedgerKey(set.source.key))
		delete(c.selectors, set.selector)
	}
}

// watchesDNS reports whether the proxy must see the endpoint's DNS messages for the rule.
func (r *rule) watchesDNS() bool {
	return r.L7 != nil && len(r.L7.DNS) > 0 ||
		slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return p.Names != nil })
}

// ProxySelectors are the names that rules select, sorted by number.
func (c *Compiler) ProxySelectors() (out []config.Selector) {
	for _, number := range slices.Sorted(maps.Keys(c.selectors)) {
		out = append(out, config.Selector{Number: number, Names: c.selectors[number].source.names})
	}
	return out
}

// SelectorsOf are the numbers of selectors that names which an address has belong to.
func (c *Compiler) SelectorsOf(names []string) (out []uint32) {
	for number, set := range c.selectors {
		if set.source.matchesNames(names) {
			out = append(out, number)
		}
	}
	slices.Sort(out)
	return out
}

func (s *addressSource) matchesNames(names []string) bool {
	return slices.ContainsFunc(s.names, func(p policy.NamePattern) bool {
		return slices.ContainsFunc(names, p.Matches)
	})
}

// WatchesDNS reports whether the endpoint's DNS messages pass through the proxy: some rule of its egress names peers by
// DNS names, or has rules for DNS.
func (t *Endpoint) WatchesDNS() bool {
	return slices.ContainsFunc(t.Sets[policy.Egress][:], func(s *Set) bool { return s != nil && s.watchesDNS })
}

// Selectors are the numbers of the selectors that the rules of the endpoint's egress have, sorted.
func (t *Endpoint) Selectors() (out []uint32) {
	for n := range t.namedBy() {
		out = append(out, n)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// namedBy yields the selectors of the endpoint's egress with the rule of each, which may come several times.
func (t *Endpoint) namedBy() iter.Seq2[uint32, *rule] {
	return func(yield func(uint32, *rule) bool) {
		for _, s := range t.Sets[policy.Egress] {
			if s == nil || !s.watchesDNS {
				continue
			}
			for r := range s.places {
				for _, a := range r.addresses {
					if n := a.set.selector; n != 0 && !yield(n, r) {
						return
					}
				}
			}
		}
	}
}

// NamePolicies are the policies by which the endpoint in a slot may use names, by the number of the selector.
func (c *Compiler) NamePolicies(slot uint16) map[uint32][]string {
	t, out := c.endpoints[slot], map[uint32][]string{}
	if t == nil {
		return out
	}
	for n, r := range t.namedBy() {
		out[n] = append(out[n], r.Origin.Ref.String())
	}
	for n := range out {
		slices.Sort(out[n])
		out[n] = slices.Compact(out[n])
	}
	return out
}

// PassesProxy reports whether rules of the endpoint allow flows only through the proxy.
func (t *Endpoint) PassesProxy() bool {
	proxied := func(e entry) bool { return e.rule != nil && e.rule.L7 != nil }
	for _, of := range t.Sets {
		for _, s := range of {
			if s != nil && slices.ContainsFunc(s.entries, proxied) {
				return true
			}
		}
	}
	return false
}
