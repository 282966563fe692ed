// Package ipam hands out pod addresses from the node's podCIDRs. It keeps no
// file: the endpoints' state files are the only record, and Claim rebuilds the
// allocator from them.
package ipam

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// ErrOutside is returned by Claim for an address that no podCIDR contains.
var ErrOutside = errors.New("in no podCIDR of this node")

// ErrExhausted is wrapped by Allocate when every address is in use.
var ErrExhausted = errors.New("no address left")

// Allocator owns the addresses of a node's podCIDRs. It is safe for concurrent
// use.
type Allocator struct {
	mu      sync.Mutex
	v4, v6  []*pool
	held    map[string][]netip.Addr // owner to its addresses, at most one a family
	outside map[netip.Addr]string   // those of them that are in no podCIDR, to their owners
}

// New makes an allocator over prefixes: none, one or more of each family, used
// in this order. It refuses a prefix with host bits set, one without room for
// a pod (longer than /30 or /126), and prefixes that overlap.
func New(prefixes ...netip.Prefix) (*Allocator, error) {
	al := &Allocator{held: make(map[string][]netip.Addr), outside: make(map[netip.Addr]string)}
	if err := al.Set(prefixes); err != nil {
		return nil, err
	}
	return al, nil
}

// gatewayOwner holds the gateways that Set is given; no attachment is called so.
const gatewayOwner = "gateway"

// Set makes prefixes the podCIDRs from now on, in this order, by the rules of
// New. gateways are addresses that pods of former podCIDRs have as their
// gateway: they are not handed out either. Addresses in use stay with their
// owners, be they in a podCIDR or not. On error nothing has changed; one more
// reason than those of New is that the gateway of a prefix is a pod's address.
func (al *Allocator) Set(prefixes []netip.Prefix, gateways ...netip.Addr) error {
	pools, err := newPools(prefixes)
	if err != nil {
		return err
	}
	al.mu.Lock()
	defer al.mu.Unlock()
	owners := make(map[netip.Addr]string)
	for owner, held := range al.held {
		for _, a := range held {
			owners[a] = owner
		}
	}
	for _, p := range pools {
		if owner := owners[Gateway(p.prefix)]; owner != "" {
			return fmt.Errorf("podCIDR %s: its gateway %s is the address of %s", p.prefix, Gateway(p.prefix), owner)
		}
	}
	before := slices.Concat(al.v4, al.v6)
	al.v4, al.v6, al.outside = nil, nil, make(map[netip.Addr]string)
	for _, p := range pools {
		for _, g := range gateways {
			if p.prefix.Contains(g) && p.usable(g) {
				p.owners[g] = gatewayOwner
			}
		}
		if p.prefix.Addr().Is4() {
			al.v4 = append(al.v4, p)
		} else {
			al.v6 = append(al.v6, p)
		}
	}
	for a, owner := range owners {
		if p := al.poolOf(a); p == nil || p.claim(owner, a) != nil {
			al.outside[a] = owner
		}
	}
	// Claims have put the cursors behind the highest address in use, which says
	// less than where a pool that stays has got to.
	for _, p := range pools {
		for _, old := range before {
			if old.prefix == p.prefix {
				p.cursor = old.cursor
			}
		}
	}
	return nil
}

func newPools(prefixes []netip.Prefix) (pools []*pool, err error) {
	for i, prefix := range prefixes {
		p, err := newPool(prefix)
		if err != nil {
			return nil, err
		}
		for _, other := range prefixes[:i] {
			if prefix.Overlaps(other) {
				return nil, fmt.Errorf("podCIDR %s: overlaps podCIDR %s", prefix, other)
			}
		}
		pools = append(pools, p)
	}
	return pools, nil
}

// Allocate takes one address of each family that has a podCIDR; the other is
// the zero Addr. Either all families succeed or nothing is taken. An owner that
// already holds addresses is refused. Addresses that are elsewhere in use, which
// elsewhere says if it is not nil, are left out.
func (al *Allocator) Allocate(owner string, elsewhere func(netip.Addr) bool) (v4, v6 netip.Addr, err error) {
	if owner == "" {
		return v4, v6, errors.New("allocate address: owner is empty")
	}
	al.mu.Lock()
	defer al.mu.Unlock()
	if held := al.held[owner]; held != nil {
		return v4, v6, fmt.Errorf("allocate address for %s: it already holds %v", owner, held)
	}
	if len(al.v4)+len(al.v6) == 0 {
		return v4, v6, fmt.Errorf("allocate address for %s: the node has no podCIDR", owner)
	}
	if v4, err = al.allocateFrom(al.v4, owner, elsewhere); err == nil {
		v6, err = al.allocateFrom(al.v6, owner, elsewhere)
	}
	if err != nil {
		al.release(owner)
		return netip.Addr{}, netip.Addr{}, fmt.Errorf("allocate address for %s: %w", owner, err)
	}
	return v4, v6, nil
}

func (al *Allocator) allocateFrom(pools []*pool, owner string, elsewhere func(netip.Addr) bool) (netip.Addr, error) {
	var full []error
	for _, p := range pools {
		a, err := p.allocateExcept(owner, elsewhere)
		if err == nil {
			al.held[owner] = append(al.held[owner], a)
			return a, nil
		}
		full = append(full, err)
	}
	if full != nil {
		return netip.Addr{}, exhausted{errors.Join(full...)}
	}
	return netip.Addr{}, nil
}

// exhausted says which podCIDRs are full and is ErrExhausted.
type exhausted struct{ error }

func (exhausted) Is(target error) bool { return target == ErrExhausted }

// Claim takes addr for owner, as it was before a restart. Claiming again what
// owner holds is no error. It wraps ErrOutside when no podCIDR can give addr to
// a pod: a pod may keep such an address after the node's podCIDRs changed, and
// owner holds it all the same.
func (al *Allocator) Claim(owner string, addr netip.Addr) error {
	al.mu.Lock()
	defer al.mu.Unlock()
	for _, a := range al.held[owner] {
		if a == addr {
			return nil
		}
		if a.Is4() == addr.Is4() {
			return fmt.Errorf("claim %s for %s: it already holds %s", addr, owner, a)
		}
	}
	err := ErrOutside
	if p := al.poolOf(addr); p != nil {
		err = p.claim(owner, addr)
	}
	if errors.Is(err, ErrOutside) {
		if other := al.outside[addr]; other != "" {
			return fmt.Errorf("claim %s for %s: in use by %s", addr, owner, other)
		}
		al.outside[addr] = owner
		err = fmt.Errorf("claim %s for %s: %w", addr, owner, err)
	} else if err != nil {
		return fmt.Errorf("claim %s for %s: %w", addr, owner, err)
	}
	al.held[owner] = append(al.held[owner], addr)
	return err
}

// Release gives back whatever owner holds. Releasing nothing is no error.
func (al *Allocator) Release(owner string) {
	al.mu.Lock()
	defer al.mu.Unlock()
	al.release(owner)
}

func (al *Allocator) release(owner string) {
	for _, a := range al.held[owner] {
		delete(al.outside, a)
		if p := al.poolOf(a); p != nil && p.owners[a] == owner {
			delete(p.owners, a)
		}
	}
	delete(al.held, owner)
}

// poolOf returns the podCIDR that contains a, or nil.
func (al *Allocator) poolOf(a netip.Addr) *pool {
	for _, p := range slices.Concat(al.v4, al.v6) {
		if p.prefix.Contains(a) {
			return p
		}
	}
	return nil
}

// Usage is how full one podCIDR is. Capacity is the number of addresses that
// pods can have, 1<<64 - 1 where it is more.
type Usage struct {
	Prefix   netip.Prefix
	Gateway  netip.Addr
	InUse    uint64
	Capacity uint64
	Owners   map[netip.Addr]string
}

// Dump returns a copy of the state of each podCIDR, IPv4 first.
func (al *Allocator) Dump() []Usage {
	al.mu.Lock()
	defer al.mu.Unlock()
	var usages []Usage
	for _, pools := range [][]*pool{al.v4, al.v6} {
		for _, p := range pools {
			usages = append(usages, Usage{
				Prefix: p.prefix, Gateway: Gateway(p.prefix), InUse: uint64(len(p.owners)),
				Capacity: p.capacity, Owners: maps.Clone(p.owners),
			})
		}
	}
	return usages
}

// Outside returns a copy of the addresses in use that are in no podCIDR, with
// their owners.
func (al *Allocator) Outside() map[netip.Addr]string {
	al.mu.Lock()
	defer al.mu.Unlock()
	return maps.Clone(al.outside)
}
