package dns

import (
	"net/netip"
	"slices"
	"sync"

	"myelin/cluster"
)

// endpoint is a pod and what it was told.
type endpoint struct {
	pod  cluster.Key
	slot uint16
	own  []netip.Addr // its addresses

	mu        sync.Mutex
	removed   bool
	selectors []uint32 // of the endpoint's policies, sorted
	pending   pending
	names     map[string]*name
	addresses map[netip.Addr]*address
	links     int
	unused    int     // links of names without selectors
	changed   []*name // since the last Save
	questions map[Question]*question
}

// name is a name that was asked for, or a CNAME on the way.
type name struct {
	text      string
	selectors []uint32 // those of the endpoint that match
	links     []link
	changed   bool
	questions []Question // whose answers with addresses of the name pass without the engine
}

// link is an address of a name.
type link struct {
	address *address
	ttl     uint64 // its end, CLOCK_MONOTONIC in nanoseconds
	expires uint64 // the same, or later: until when answers that the engine does not see may name the address
}

// address is an address of names.
type address struct {
	addr  netip.Addr
	names []*name
	// selected are the selectors of all names, the one that was learnt last first.
	selected []selected
	// What the map has; written is false if it has no entry.
	put     [MaxSelectors]uint32
	puts    uint8
	written bool
	tried   bool // it may have an entry
	expires uint64
	used    uint64 // when a connection was last seen after the TTL had ended
}

type selected struct {
	number  uint32
	expires uint64 // end of the TTL
}

// learn takes the addresses of an answer, and keeps them until then (0: the end of their TTL). When it returns, they
// are in the map. The caller holds ep.mu.
func (e *Engine) learn(ep *endpoint, s *scratch, until uint64) {
	if len(s.answer.Addresses) == 0 {
		return
	}
	c, now := e.current.Load(), e.Clock.Monotonic()
	for i := range s.answer.Chain {
		n := e.nameOf(ep, c, s, s.answer.Chain[i].Bytes())
		for _, a := range s.answer.Addresses {
			expires := now + max(seconds(a.TTL), c.minTTL)
			e.link(ep, n, a.Addr, link{ttl: expires, expires: max(expires, until)}, now)
		}
		for len(n.links) > c.perName {
			e.evictLink(ep, n, now)
		}
		ep.change(n)
	}
	for _, a := range s.answer.Addresses {
		if kept := ep.addresses[a.Addr]; kept != nil {
			e.write(ep, kept, now)
		}
	}
}

// nameOf finds a name, or adds it.
func (e *Engine) nameOf(ep *endpoint, c *settings, s *scratch, text []byte) *name {
	if n := ep.names[string(text)]; n != nil {
		return n
	}
	n := &name{text: string(text)}
	s.found = c.match(s.found[:0], text)
	n.selectors = common(s.found, ep.selectors)
	ep.names[n.text] = n
	return n
}

// common are the numbers in both lists, which are sorted.
func common(matching, all []uint32) []uint32 {
	var both []uint32
	for _, number := range matching {
		if _, found := slices.BinarySearch(all, number); found {
			both = append(both, number)
		}
	}
	return both
}

// link adds an address to a name, or prolongs its time.
func (e *Engine) link(ep *endpoint, n *name, addr netip.Addr, l link, now uint64) {
	a := ep.addresses[addr]
	if a == nil {
		a = &address{addr: addr}
		ep.addresses[addr] = a
	}
	at := slices.IndexFunc(n.links, func(l link) bool { return l.address == a })
	if at < 0 {
		e.room(ep, n, now)
		if ep.addresses[addr] == nil { // it has just given way
			ep.addresses[addr] = a
		}
		l.address = a
		n.links, a.names = append(n.links, l), append(a.names, n)
		e.count(ep, n, 1)
	} else {
		n.links[at].ttl = max(n.links[at].ttl, l.ttl)
		n.links[at].expires = max(n.links[at].expires, l.expires)
	}
	for i := len(n.selectors) - 1; i >= 0; i-- {
		a.selectFirst(n.selectors[i], l.expires)
	}
}

// selectFirst moves a selector to the front.
func (a *address) selectFirst(number uint32, expires uint64) {
	at := slices.IndexFunc(a.selected, func(s selected) bool { return s.number == number })
	if at < 0 {
		a.selected = append(a.selected, selected{number: number})
		at = len(a.selected) - 1
	}
	first := selected{number, max(expires, a.selected[at].expires)}
	copy(a.selected[1:], a.selected[:at])
	a.selected[0] = first
}

func (e *Engine) count(ep *endpoint, n *name, links int) {
	ep.links += links
	if len(n.selectors) == 0 {
		ep.unused += links
	}
	e.links.Add(int64(links))
}

// room makes room for a link of a name: the endpoint gives up others of its own, so that none can make another pod's
// names be forgotten.
func (e *Engine) room(ep *endpoint, n *name, now uint64) {
	for len(n.selectors) == 0 && ep.unused >= ReservedLinks {
		if !e.evictName(ep, n, true, now) {
			return
		}
	}
	for ep.links >= ReservedLinks && e.links.Load() >= MaxLinks {
		if !e.evictName(ep, n, false, now) {
			return
		}
	}
}

// evictName forgets the name that expires first among some others than keep; false if there are none.
func (e *Engine) evictName(ep *endpoint, keep *name, unused bool, now uint64) bool {
	const sample = 8
	var first *name
	var expires uint64
	seen := 0
	for _, n := range ep.names {
		if n == keep || len(n.links) == 0 || unused && len(n.selectors) > 0 {
			continue
		}
		if last := n.last(); first == nil || last < expires {
			first, expires = n, last
		}
		if seen++; seen == sample {
			break
		}
	}
	if first == nil {
		return e.evictLink(ep, keep, now)
	}
	for len(first.links) > 0 {
		e.evictLink(ep, first, now)
	}
	ep.change(first)
	delete(ep.names, first.text)
	return true
}

// last is when the last address expires.
func (n *name) last() uint64 {
	var last uint64
	for _, l := range n.links {
		last = max(last, l.expires)
	}
	return last
}

// evictLink forgets the address that expires first; false if there is none.
func (e *Engine) evictLink(ep *endpoint, n *name, now uint64) bool {
	if len(n.links) == 0 {
		return false
	}
	first := 0
	for i := range n.links {
		if n.links[i].expires < n.links[first].expires {
			first = i
		}
	}
	e.counters.evicted.Add(1)
	a := n.links[first].address
	e.unlink(ep, n, first)
	a.reselect()
	e.write(ep, a, now)
	return true
}

// unlink removes an address from a name. The caller selects again, and writes.
func (e *Engine) unlink(ep *endpoint, n *name, at int) {
	for len(n.questions) > 0 {
		e.forget(ep, n.questions[0])
	}
	a := n.links[at].address
	last := len(n.links) - 1
	n.links[at] = n.links[last]
	n.links[last] = link{}
	n.links = n.links[:last]
	if i := slices.Index(a.names, n); i >= 0 {
		a.names = slices.Delete(a.names, i, i+1)
	}
	e.count(ep, n, -1)
}

// reselect finds the selectors from the names that are left, and keeps the order of those that were there.
func (a *address) reselect() {
	before := a.selected
	a.selected = nil
	for _, n := range a.names {
		at := slices.IndexFunc(n.links, func(l link) bool { return l.address == a })
		for _, number := range n.selectors {
			a.selectFirst(number, n.links[at].expires)
		}
	}
	order := func(s selected) int {
		return slices.IndexFunc(before, func(b selected) bool { return b.number == s.number })
	}
	slices.SortStableFunc(a.selected, func(x, y selected) int { return order(x) - order(y) })
}

// change notes that a name is to be saved.
func (ep *endpoint) change(n *name) {
	if !n.changed {
		n.changed = true
		ep.changed = append(ep.changed, n)
	}
}
