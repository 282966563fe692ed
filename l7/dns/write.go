package dns

import (
	"net/netip"
	"slices"
)

// write makes the map agree with the selectors of an address, and forgets an address without names. An entry is
// written again when its selectors change, or its time is up to CollectInterval behind: not for each answer.
func (e *Engine) write(ep *endpoint, a *address, now uint64) {
	numbers, n, expires, left := a.entry(e.current.Load(), now)
	switch {
	case n == 0 && a.tried:
		e.delete(ep, a)
	case n > 0 && (!a.written || a.expires+uint64(CollectInterval) < expires ||
		!slices.Equal(numbers[:n], a.put[:a.puts])):
		a.tried, a.put, a.puts, a.expires = true, numbers, uint8(n), expires
		err := e.Map.Put(ep.slot, a.addr, Entry{Selectors: a.put[:n], Expires: expires})
		a.written = err == nil
		if err != nil {
			e.counters.putFailed.Add(1)
			if e.putLog.allow(now) {
				e.Log.Error("A DNS answer can't be written to the map: connections to its addresses are denied",
					"pod", ep.pod, "address", a.addr, "error", err, "failed", e.counters.putFailed.Load())
			}
		}
		if left > 0 {
			e.counters.selectorsDropped.Add(uint64(left))
			if e.fullLog.allow(now) {
				e.Log.Warn("An address has more selectors than fit: those that were learnt first are left out",
					"pod", ep.pod, "address", a.addr, "selectors", n+left, "limit", MaxSelectors)
			}
		}
	}
	if len(a.names) == 0 {
		delete(ep.addresses, a.addr)
	}
}

// entry finds what the map is to have: the selectors that were learnt last, sorted, and how many are left out.
func (a *address) entry(c *settings, now uint64) (numbers [MaxSelectors]uint32, n int, expires uint64, left int) {
	for _, s := range a.selected {
		if s.expires+uint64(Hold) <= now && a.used == 0 {
			continue
		}
		if n == MaxSelectors {
			left++
			continue
		}
		numbers[n], expires = s.number, max(expires, s.expires)
		n++
	}
	if a.used != 0 {
		expires = max(expires, a.used+c.grace)
	}
	slices.Sort(numbers[:n])
	return numbers, n, expires + uint64(Hold), left
}

func (e *Engine) delete(ep *endpoint, a *address) {
	if err := e.Map.Delete(ep.slot, a.addr); err != nil {
		if e.putLog.allow(e.Clock.Monotonic()) {
			e.Log.Error("An address can't be deleted from the map: it stays allowed until it expires",
				"pod", ep.pod, "address", a.addr, "error", err)
		}
		return
	}
	a.tried, a.written, a.puts, a.expires = false, false, 0, 0
}

// Collect deletes the addresses whose TTL has ended, unless a connection uses them or has used them until less than
// idleConnectionGracePeriod ago. It is to be called every CollectInterval; inUse reports whether a pod has a connection
// to an address.
func (e *Engine) Collect(inUse func(slot uint16, a netip.Addr) bool) {
	for _, ep := range e.all() {
		ep.mu.Lock()
		c, now := e.current.Load(), e.Clock.Monotonic()
		e.forgetAll(ep, true, now)
		for _, a := range ep.addresses {
			if !a.hasExpired(now) {
				a.used = 0
				continue
			}
			if inUse(ep.slot, a.addr) {
				a.used = now
			} else if a.used == 0 || now >= a.used+c.grace {
				a.used = 0
				e.expire(ep, a, now)
				continue
			}
			e.write(ep, a, now)
		}
		ep.mu.Unlock()
	}
}

func (a *address) hasExpired(now uint64) bool {
	for _, n := range a.names {
		for _, l := range n.links {
			if l.address == a && l.expires <= now {
				return true
			}
		}
	}
	return false
}

// expire removes an address from the names whose TTL has ended.
func (e *Engine) expire(ep *endpoint, a *address, now uint64) {
	for _, n := range slices.Clone(a.names) {
		at := slices.IndexFunc(n.links, func(l link) bool { return l.address == a })
		if n.links[at].expires > now {
			continue
		}
		e.unlink(ep, n, at)
		ep.change(n)
		if len(n.links) == 0 {
			delete(ep.names, n.text)
		}
	}
	a.reselect()
	e.write(ep, a, now)
}

// all are the endpoints, by slot.
func (e *Engine) all() []*endpoint {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]*endpoint, 0, len(e.endpoints))
	for _, ep := range e.endpoints {
		all = append(all, ep)
	}
	slices.SortFunc(all, func(a, b *endpoint) int { return int(a.slot) - int(b.slot) })
	return all
}
