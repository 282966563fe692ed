package l7

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"myelin/l7/control"
	"myelin/l7/dns"
)

const (
	// namesAge is how old names may be without a new answer: those that have expired are shown as long.
	namesAge = 10 * time.Second
	// namesShare is how many times what reading the names took passes, at least, until they are read again.
	namesShare = 50
)

// known is an address that the pod with an endpoint slot has learnt.
type known struct {
	slot uint16
	addr netip.Addr
}

// names are the names by which pods know addresses, a copy of what the proxy has. They are read from it when a flow
// needs them, if there were answers since.
type names struct {
	fetch func(context.Context) ([]dns.Row, error)
	now   func() time.Time

	table   atomic.Pointer[map[known][]string] // sorted names; nil: none were read
	changed atomic.Bool                        // there were answers since the names were read
	next    atomic.Int64                       // Unix time in ns: not read again before
	mu      sync.Mutex                         // held while they are read
	read    time.Time                          // when they were
}

// seen notes that pods have got answers, if there are any among the proxy's records.
func (n *names) seen(list []control.Record) {
	if slices.ContainsFunc(list, func(r control.Record) bool { return r.DNS != nil && len(r.DNS.Addresses) > 0 }) {
		n.changed.Store(true)
	}
}

// of returns the names by which the pod with an endpoint slot knows an address, sorted. They must not be changed.
func (n *names) of(slot uint16, addr netip.Addr) []string {
	if now := n.now(); now.UnixNano() >= n.next.Load() && n.mu.TryLock() { // others go on with what was read before
		n.refresh(now)
		n.mu.Unlock()
	}
	if t := n.table.Load(); t != nil {
		return (*t)[known{slot, addr}]
	}
	return nil
}

// refresh reads the names, unless those that were read are still right. n.mu is held.
func (n *names) refresh(now time.Time) {
	if !n.changed.Load() && now.Sub(n.read) < namesAge {
		return
	}
	n.changed.Store(false) // before the names are read: what comes later changes them again
	ctx, cancel := context.WithTimeout(context.Background(), statusTime)
	defer cancel()
	rows, err := n.fetch(ctx)
	n.read = n.now()
	took := n.read.Sub(now)
	n.next.Store(n.read.Add(namesShare * took).UnixNano())
	if err != nil { // no policy needs the proxy, or it doesn't run: what it knew was right when the flows were seen
		return
	}
	table := make(map[known][]string)
	for i := range rows {
		for _, a := range rows[i].Addresses {
			k := known{rows[i].Slot, a.Addr}
			table[k] = append(table[k], rows[i].Name)
		}
	}
	for _, list := range table {
		slices.Sort(list)
	}
	n.table.Store(&table)
}

// NamesOf returns the names by which the pod of this node with an endpoint slot knows an address: those that it was
// given as an answer by DNS, sorted, without final dots. It is for flows: names that have expired may be among them.
// The result must not be changed. Safe for concurrent use.
func (f *Feature) NamesOf(slot uint16, addr netip.Addr) []string {
	if !f.Config.EnforcesL7() || f.client == nil {
		return nil
	}
	return f.names.of(slot, addr)
}
