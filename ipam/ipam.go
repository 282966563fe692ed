// Package ipam hands out pod addresses from the node's podCIDRs. It keeps no
// file: the endpoints' state files are the only record, and Claim rebuilds the
// allocator from them.
package ipam

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
)

// ErrOutside is returned by Claim for an address that no podCIDR contains.
var ErrOutside = errors.New("in no podCIDR of this node")

// ErrExhausted is wrapped by Allocate when every address is in use.
var ErrExhausted = errors.New("no address left")

// Allocator owns the addresses of a node's podCIDRs. It is safe for concurrent
// use.
type Allocator struct {
	mu     sync.Mutex
	v4, v6 []*pool
	held   map[string][]netip.Addr // owner to its addresses, at most one a family
}

// New makes an allocator over prefixes: none, one or more of each family, used
// in this order. It refuses a prefix with host bits set, one without room for
// a pod (longer than /30 or /126), and prefixes that overlap.
func New(prefixes ...netip.Prefix) (*Allocator, error) {
	al := &Allocator{held: make(map[string][]netip.Addr)}
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
		if prefix.Addr().Is4() {
			al.v4 = append(al.v4, p)
		} else {
			al.v6 = append(al.v6, p)
		}
	}
	return al, nil
}

// Allocate takes one address of each family that has a podCIDR; the other is
// the zero Addr. Either all families succeed or nothing is taken. An owner that
// already holds addresses is refused.
func (al *Allocator) Allocate(owner string) (v4, v6 netip.Addr, err error) {
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
	if v4, err = al.allocateFrom(al.v4, owner); err == nil {
		v6, err = al.allocateFrom(al.v6, owner)
	}
	if err != nil {
		al.release(owner)
		return netip.Addr{}, netip.Addr{}, fmt.Errorf("allocate address for %s: %w", owner, err)
	}
	return v4, v6, nil
}

func (al *Allocator) allocateFrom(pools []*pool, owner string) (netip.Addr, error) {
	var full []error
	for _, p := range pools {
		a, err := p.allocate(owner)
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
// owner holds is no error. It wraps ErrOutside when no podCIDR contains addr:
// a pod may keep such an address after the node's podCIDRs changed.
func (al *Allocator) Claim(owner string, addr netip.Addr) error {
	al.mu.Lock()
	defer al.mu.Unlock()
	for _, p := range al.pools(addr) {
		if !p.prefix.Contains(addr) {
			continue
		}
		for _, a := range al.held[owner] {
			if a == addr {
				return nil
			}
			if a.Is4() == addr.Is4() {
				return fmt.Errorf("claim %s for %s: it already holds %s", addr, owner, a)
			}
		}
		if err := p.claim(owner, addr); err != nil {
			return err
		}
		al.held[owner] = append(al.held[owner], addr)
		return nil
	}
	return fmt.Errorf("claim %s for %s: %w", addr, owner, ErrOutside)
}

// Release gives back whatever owner holds. Releasing nothing is no error.
func (al *Allocator) Release(owner string) {
	al.mu.Lock()
	defer al.mu.Unlock()
	al.release(owner)
}

func (al *Allocator) release(owner string) {
	for _, a := range al.held[owner] {
		for _, p := range al.pools(a) {
			if p.prefix.Contains(a) {
				delete(p.owners, a)
			}
		}
	}
	delete(al.held, owner)
}

func (al *Allocator) pools(a netip.Addr) []*pool {
	if a.Is4() {
		return al.v4
	}
	return al.v6
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
