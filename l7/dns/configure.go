package dns

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"myelin/cluster"
	"myelin/l7/config"
)

// Configure replaces the configuration. Selectors that are new get the addresses of names that are known, and endpoints
// that are gone are forgotten, with their entries in the map. If patterns are not valid, the error says which; they
// match nothing, and the rest applies.
func (e *Engine) Configure(c *config.Config) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := e.current.Load()
	next := newSettings(c)
	err := next.compile(c, before)
	present := map[uint16]bool{}
	var gone []*endpoint
	for _, wanted := range c.Endpoints {
		ep := e.endpoints[wanted.Slot]
		if ep != nil && ep.pod != wanted.Pod {
			gone = append(gone, ep)
			ep = nil
		}
		if ep == nil {
			ep = newEndpoint(wanted)
			e.endpoints[wanted.Slot] = ep
		}
		present[wanted.Slot] = true
		for _, a := range wanted.Addresses {
			next.endpoints[a.Unmap()] = ep
		}
	}
	for slot, ep := range e.endpoints {
		if !present[slot] {
			gone = append(gone, ep)
			delete(e.endpoints, slot)
		}
	}
	e.current.Store(next)
	for _, ep := range gone {
		e.remove(ep)
	}
	a := applying{next, next.index != before.index, map[string][]uint32{}, nil}
	for _, wanted := range c.Endpoints {
		e.apply(&a, e.endpoints[wanted.Slot], wanted.Selectors)
	}
	return err
}

func newEndpoint(c config.Endpoint) *endpoint {
	ep := &endpoint{pod: c.Pod, slot: c.Slot, names: map[string]*name{}, addresses: map[netip.Addr]*address{}}
	for _, a := range c.Addresses {
		ep.own = append(ep.own, a.Unmap())
	}
	return ep
}

// remove forgets an endpoint. The caller holds e.mu.
func (e *Engine) remove(ep *endpoint) {
	ep.mu.Lock()
	defer ep.mu.Unlock()
	ep.removed, e.rewrite = true, true
	e.forgetAll(ep, false, 0)
	for _, a := range ep.addresses {
		if a.tried {
			e.delete(ep, a)
		}
	}
	e.links.Add(int64(-ep.links))
}

// applying is the state of Configure, for one endpoint after another.
type applying struct {
	settings *settings
	newIndex bool
	matches  map[string][]uint32 // by name, shared by endpoints
	last     []uint32            // selectors of the endpoint before, which the next one often has, too
}

// apply gives an endpoint its selectors, and the names that it knows theirs.
func (e *Engine) apply(a *applying, ep *endpoint, selectors []uint32) {
	selectors = slices.Clone(selectors)
	slices.Sort(selectors)
	selectors = slices.Compact(selectors)
	if slices.Equal(selectors, a.last) {
		selectors = a.last
	}
	a.last = selectors
	ep.mu.Lock()
	defer ep.mu.Unlock()
	if !a.settings.pass {
		e.forgetAll(ep, false, 0)
	}
	same := slices.Equal(selectors, ep.selectors)
	ep.selectors = selectors
	if same && !a.newIndex {
		return
	}
	affected := map[*address]bool{}
	for text, n := range ep.names {
		matching, found := a.matches[text]
		if !found {
			matching = a.settings.match(nil, []byte(text))
			a.matches[text] = matching
		}
		e.reselectName(ep, n, common(matching, selectors), affected)
	}
	now := e.Clock.Monotonic()
	for address := range affected {
		address.reselect()
		e.write(ep, address, now)
	}
}

// reselectName gives a name its selectors, and notes whose address that affects.
func (e *Engine) reselectName(ep *endpoint, n *name, selectors []uint32, affected map[*address]bool) {
	if slices.Equal(selectors, n.selectors) {
		return
	}
	if len(n.selectors) == 0 {
		ep.unused -= len(n.links)
	}
	n.selectors = selectors
	if len(n.selectors) == 0 {
		ep.unused += len(n.links)
	}
	for _, l := range n.links {
		affected[l.address] = true
	}
}

// Row is a name that a pod knows.
type Row struct {
	Pod  cluster.Key
	Slot uint16
	// Name has no final dot.
	Name      string
	Addresses []RowAddress
	// Selectors are the numbers of the selectors of the pod's policies that the name matches.
	Selectors []uint32
}

// RowAddress is an address of a name. TTL is what remains of it; 0: it has ended, but a connection uses the address, or
// Collect has not run since.
type RowAddress struct {
	Addr netip.Addr
	TTL  time.Duration
}

// Names are the names of all pods, by slot, name and address.
func (e *Engine) Names() []Row {
	var rows []Row
	for _, ep := range e.all() {
		first := len(rows)
		ep.mu.Lock()
		now := e.Clock.Monotonic()
		for _, n := range ep.names {
			row := Row{Pod: ep.pod, Slot: ep.slot, Name: n.text, Selectors: slices.Clone(n.selectors)}
			for _, l := range n.links {
				ttl := time.Duration(max(l.ttl, now) - now)
				row.Addresses = append(row.Addresses, RowAddress{l.address.addr, ttl})
			}
			slices.SortFunc(row.Addresses, func(a, b RowAddress) int { return a.Addr.Compare(b.Addr) })
			rows = append(rows, row)
		}
		ep.mu.Unlock()
		slices.SortFunc(rows[first:], func(a, b Row) int { return strings.Compare(a.Name, b.Name) })
	}
	return rows
}
