package compile

import (
	"iter"
	"maps"
	"net/netip"
)

// Endpoint returns the endpoint in a slot; nil: there is none.
func (c *Compiler) Endpoint(slot uint16) *Endpoint { return c.endpoints[slot] }

// Sets are the sets that endpoints have or had.
func (c *Compiler) Sets() iter.Seq[*Set] { return maps.Values(c.sets) }

// Resume makes the compiler continue after the last number of a set or class that the maps have.
func (c *Compiler) Resume(last uint32) { c.last = last }

// SetRoom says how many single addresses and how many prefixes the maps hold.
func (c *Compiler) SetRoom(addresses, prefixes int) { c.space.room = [2]int{addresses, prefixes} }

// RoomFrom takes the room that another compiler has.
func (c *Compiler) RoomFrom(other *Compiler) { c.space.room = other.space.room }

// SetSlice bounds how many prefixes of long lists one flush takes; 0: all.
func (c *Compiler) SetSlice(n int) { c.space.slice = n }

// Loading reports whether prefixes of long lists are left for the next flush.
func (c *Compiler) Loading() bool { return len(c.space.loads) > 0 }

// RetryEndpoint has the next plan contain an endpoint whose entry could not be written.
func (c *Compiler) RetryEndpoint(t *Endpoint) { c.dirty[t.subject] = struct{}{} }

// RetryAddresses has the next plan contain changes that could not all be written.
func (c *Compiler) RetryAddresses(changes []AddressChange) {
	c.space.changes, c.space.retried = append(c.space.changes, changes...), true
}

// Postpone is told of a plan that is not written now: the next one contains its addresses, in their order.
func (c *Compiler) Postpone(p *Plan) {
	c.RetryAddresses(p.Addresses)
	p.Addresses = nil
}

// FailAddresses fails the address sets that contain addresses with these identities, since those did not fit.
func (c *Compiler) FailAddresses(numbers []uint32, err error) {
	for _, number := range numbers {
		if d := c.peers.byNumber[number]; d != nil {
			for _, m := range d.members {
				c.space.errorsChanged = c.space.errorsChanged || m.err == nil
				m.err = err
			}
		}
	}
	c.space.finishLoads()
}

// LatestChanges returns the changes of a plan without those that a later one replaces: there are such only if some
// failed before.
func (c *Compiler) LatestChanges(changes []AddressChange) (out []AddressChange) {
	if !c.space.retried {
		return changes
	}
	c.space.retried = false
	last := make(map[netip.Prefix]int, len(changes))
	for i, ch := range changes {
		last[ch.Prefix] = i
	}
	for i, ch := range changes {
		if last[ch.Prefix] == i {
			out = append(out, ch)
		}
	}
	return out
}

// HasAddress reports whether an address or a prefix is to have an entry with a number.
func (c *Compiler) HasAddress(p netip.Prefix, number uint32) bool {
	if o, ok := c.space.owned.Get(p); ok {
		return o.number == number
	}
	cell, ok := c.space.cells.Get(p)
	return ok && cell.number == number
}

// Addresses calls yield with each entry of an address or a prefix that the maps are to have.
func (c *Compiler) Addresses() iter.Seq2[netip.Prefix, uint32] {
	return func(yield func(netip.Prefix, uint32) bool) {
		for p, o := range c.space.owned.All() {
			if !yield(p, o.number) {
				return
			}
		}
		for p, cell := range c.space.cells.All() {
			if cell.number != NoIdentity && !yield(p, cell.number) {
				return
			}
		}
	}
}

// Identify adds an identity, whose labels never change.
func (c *Compiler) Identify(id uint32, labels []string) { c.peers.identify(id, labels) }

// Forget removes an identity when no address has it any longer.
func (c *Compiler) Forget(id uint32) { c.peers.forget(id) }

// SetAudit makes what is denied to an endpoint be reported only, or no longer so.
func (c *Compiler) SetAudit(slot uint16, on bool) {
	if t := c.endpoints[slot]; t != nil && t.Audit != on {
		t.Audit = on
		c.dirty[t.subject] = struct{}{}
	}
}

// DescribeEndpoint sets what an endpoint is called, and whether its labels are unknown so far.
func (c *Compiler) DescribeEndpoint(slot uint16, name, attachment string, unknown bool) {
	t := c.endpoints[slot]
	if t.Unknown != unknown || t.Attachment == "" {
		c.dirty[t.subject] = struct{}{}
	}
	t.Name, t.Attachment, t.Unknown = name, attachment, unknown
}

// Waiting reports whether an endpoint keeps its previous sets until the next ones are complete.
func (c *Compiler) Waiting(t *Endpoint) bool {
	_, is := c.waiting[t]
	return is
}
