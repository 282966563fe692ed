package ipam

import (
	"fmt"
	"math"
	"net/netip"
)

// pool hands out the addresses of one prefix in turn, so that an address that
// was released rests until every other one has been used. It stores only what
// is in use: a /64 costs as much as its pods.
type pool struct {
	prefix   netip.Prefix
	first    netip.Addr // the one after the gateway
	last     netip.Addr // IPv4: the one before broadcast
	capacity uint64     // saturates
	cursor   netip.Addr // where the next search begins
	owners   map[netip.Addr]string
}

func newPool(prefix netip.Prefix) (*pool, error) {
	if !prefix.IsValid() || prefix.Addr().Is4In6() {
		return nil, fmt.Errorf("podCIDR %s: not an IPv4 or IPv6 prefix", prefix)
	}
	if prefix != prefix.Masked() {
		return nil, fmt.Errorf("podCIDR %s: host bits are set, write %s", prefix, prefix.Masked())
	}
	hostBits := prefix.Addr().BitLen() - prefix.Bits()
	if hostBits < 2 {
		return nil, fmt.Errorf("podCIDR %s: no address is left for a pod, a /%d is the least", prefix,
			prefix.Addr().BitLen()-2)
	}
	p := &pool{
		prefix: prefix,
		first:  Gateway(prefix).Next(),
		last:   lastAddr(prefix),
		owners: make(map[netip.Addr]string),
	}
	reserved := uint64(2) // network (IPv6: subnet-router anycast, RFC 4291 section 2.6.1) and gateway
	if prefix.Addr().Is4() {
		p.last = p.last.Prev()
		reserved++
	}
	p.capacity = math.MaxUint64
	if hostBits < 64 {
		p.capacity = 1<<hostBits - reserved
	}
	p.cursor = p.first
	return p, nil
}

// Gateway returns the address that pods of prefix use as their gateway: the
// first usable one, network + 1.
func Gateway(prefix netip.Prefix) netip.Addr { return prefix.Masked().Addr().Next() }

// lastAddr returns the highest address of prefix.
func lastAddr(prefix netip.Prefix) netip.Addr {
	b := prefix.Addr().AsSlice()
	for i := prefix.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// usable reports whether a may belong to a pod.
func (p *pool) usable(a netip.Addr) bool {
	return p.first.Compare(a) <= 0 && a.Compare(p.last) <= 0
}

func (p *pool) next(a netip.Addr) netip.Addr {
	if a == p.last {
		return p.first
	}
	return a.Next()
}

// allocate is O(addresses in use) at worst: the search meets each used address
// at most once before a free one.
func (p *pool) allocate(owner string) (netip.Addr, error) {
	if uint64(len(p.owners)) >= p.capacity {
		return netip.Addr{}, fmt.Errorf("podCIDR %s: all %d addresses in use", p.prefix, p.capacity)
	}
	a := p.cursor
	for p.owners[a] != "" {
		a = p.next(a)
	}
	p.owners[a] = owner
	p.cursor = p.next(a)
	return a, nil
}

// allocateExcept is allocate without the addresses that are in use elsewhere: it
// meets each of them at most once.
func (p *pool) allocateExcept(owner string, elsewhere func(netip.Addr) bool) (netip.Addr, error) {
	var met []netip.Addr
	defer func() {
		for _, a := range met {
			delete(p.owners, a)
		}
	}()
	for {
		a, err := p.allocate(owner)
		if err != nil && len(met) > 0 {
			err = fmt.Errorf("%w, %d of them by pods of another network", err, len(met))
		}
		if err != nil || elsewhere == nil || !elsewhere(a) {
			return a, err
		}
		met = append(met, a)
	}
}

// claim takes a for owner and keeps the cursor behind the highest claim, so
// that a restart does not hand out what was released just before it.
func (p *pool) claim(owner string, a netip.Addr) error {
	switch other := p.owners[a]; {
	case a == Gateway(p.prefix):
		return fmt.Errorf("reserved in podCIDR %s as its gateway", p.prefix)
	case !p.usable(a):
		return fmt.Errorf("reserved in podCIDR %s: %w", p.prefix, ErrOutside)
	case other != "" && other != owner:
		return fmt.Errorf("in use by %s", other)
	}
	p.owners[a] = owner
	if a.Compare(p.cursor) >= 0 {
		p.cursor = p.next(a)
	}
	return nil
}
