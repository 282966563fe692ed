package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/flow"
	"myelin/internal/ticker"
	"myelin/service/nat"
)

// growthInterval is how often the use of maps is compared with their size, whose rows have to be counted. Conntrack
// tables are looked at more often (flow.LookInterval).
const growthInterval = 10 * time.Second

// growth is what limits the growth of the tables of conntrack and NAT entries.
type growth struct {
	limit int    // in entries of each table; 0: they do not grow
	by    string // the keys that set limit
	stuck string // why they could not be made larger, empty if they could
}

// crowded reports whether a table is too small for a number of entries. One pod gets no more than half of a table, so
// it is at most three eighths full.
func crowded(entries, size int) bool { return entries*8 > size*3 }

// sizeFor is the size of a table that has so many entries: base, or a multiple of it by a power of 2, but no more than
// limit.
func sizeFor(entries, base, limit int) int {
	size := base
	for crowded(entries, size) && size < limit {
		size *= 2
	}
	return max(base, min(size, limit))
}

// grownFor is the size of a table that was pinned: one that grows gets room for twice its entries, because these have
// come within seconds, and as many again may come before it can grow once more. It does not shrink to less than twice
// its rows, since those of proven flows would be evicted while they are copied. With keep it does not shrink at all:
// tables that are made to grow in turn would cause one reload after the other.
func grownFor(p bpf.Pinned, base, limit int, keep bool) int {
	entries := p.Counted
	if p.Max > 0 && crowded(entries, p.Max) {
		entries *= 2
	}
	least := base
	for least < 2*p.Rows {
		least *= 2
	}
	if keep {
		least = p.Max
	}
	return max(sizeFor(entries, base, limit), min(least, p.Max, max(base, limit)))
}

// pinnedFlows are the tables that grow, with the demand of their entries.
type pinnedFlows struct{ flows, nat bpf.Pinned }

func (d *datapath) pinnedFlows() (p pinnedFlows, err error) {
	hz, err := bpf.ClockRate()
	if err != nil {
		return p, err
	}
	clock, err := flow.ReadClock(hz)
	if err != nil {
		return p, err
	}
	p.flows, err = bpf.CountPinned(d.dir(), "flows", func(k *flow.Key, r *flow.Row) int {
		return flow.Demand(clock, k, r)
	})
	if err != nil {
		return p, err
	}
	p.nat, err = bpf.CountPinned(d.dir(), "nat_entries", func(k *bpf.DatapathNatTuple, r *bpf.DatapathNatEntry) int {
		return nat.Demand(clock, k, r)
	})
	p.flows.Counted, p.nat.Counted = max(p.flows.Counted, d.need["flows"]), max(p.nat.Counted, d.need["nat_entries"])
	return p, err
}

// loadGrown loads the programs with tables as large as the flows in the pinned ones need, or as they are now, if the
// kernel has no memory for that.
func (d *datapath) loadGrown(o bpf.Options) (err error) {
	if d.growth.limit == 0 && !o.Grow {
		d.Datapath, err = d.load(o)
		return err
	}
	p, err := d.pinnedFlows()
	if err != nil {
		return err
	}
	flows, nats := int(o.Sizes.Flows), int(o.Sizes.Translations)
	if d.growth.limit != 0 {
		o.FlowRoom = bpf.Room{Start: o.Sizes.Flows, Limit: uint32(max(flows, d.growth.limit)), By: d.growth.by}
		o.NatRoom = bpf.Room{Start: o.Sizes.Translations, Limit: uint32(max(nats, d.growth.limit)), By: d.growth.by}
		o.Sizes.Flows = uint32(grownFor(p.flows, flows, d.growth.limit, o.Keep))
		o.Sizes.Translations = uint32(grownFor(p.nat, nats, d.growth.limit, o.Keep))
	}
	d.Datapath, err = d.load(o)
	if !errors.Is(err, unix.ENOMEM) {
		return err
	}
	d.growth.stuck = fmt.Sprintf("no memory for %d conntrack and %d NAT entries", o.Sizes.Flows, o.Sizes.Translations)
	d.Log.Warn("maps do not grow", "error", err, "entries", o.Sizes.Flows, "nat", o.Sizes.Translations)
	if d.growth.limit != 0 {
		o.Sizes.Flows, o.Sizes.Translations = uint32(max(flows, p.flows.Max)), uint32(max(nats, p.nat.Max))
	}
	o.Stay = true
	d.Datapath, err = d.load(o)
	return err
}

// needs are how many rows maps must have room for in the next life: those that they were refused in this one, or in one
// before.
func (d *datapath) needs() map[string]int {
	if d.Datapath == nil {
		return d.need
	}
	all := map[string]int{}
	maps.Copy(all, d.need)
	for name, rows := range d.Datapath.Needs() {
		all[name] = max(all[name], rows)
	}
	return all
}

// require has the next life make room for so many entries in a map at least.
func (d *datapath) require(name string, entries int) {
	all := map[string]int{}
	maps.Copy(all, d.need)
	all[name] = max(all[name], entries)
	d.need = all
}

// takeOverFlows replaces the programs of before where tables of another size had been filled, and copies the flows that
// began since.
func (a *agent) takeOverFlows() {
	if err := a.Datapath.TakeOverOrigins(); err != nil {
		a.Log.Warn("sockets that were connected during the start may not know their Service's address", "error", err)
	}
	switch n, err := a.Datapath.TakeOver(); {
	case err != nil:
		a.Log.Warn("flows that began during the start may end", "error", err)
	case n > 0:
		a.Log.Info("took over flows that began during the start", "flows", n)
	}
}

// watchGrowth requests a reload, which makes larger tables, when flows need them (flow.Demand). A flood of packets with
// forged sources proves nothing: the datapath evicts its entries. Each reload at least doubles a table. Other maps grow
// for the rows that they have, and at once for rows that were refused.
func (a *agent) watchGrowth(ctx context.Context) error {
	g := a.datapath.growth
	if g.limit == 0 && !a.Config.GrowsMaps() || g.stuck != "" {
		return nil
	}
	a.flows.Expect(a.readyAfter()) // a reload takes as long as the start did
	tick, counted := ticker.New(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.Next(flow.LookInterval):
		}
		why := a.refused()
		if why == "" {
			why = a.flowsTooSmall()
		}
		if now := time.Now(); why == "" && now.Sub(counted) >= growthInterval &&
			now.Sub(a.began) >= a.readyAfter()+reloadPause {
			why, counted = a.crowded(), now
		}
		if why == "" {
			continue
		}
		select {
		case a.reload <- why:
		default: // another reason for a reload is pending
		}
		return nil
	}
}

// refused names a map that had no room for rows, empty if there is none.
func (a *agent) refused() string {
	for name, rows := range a.Datapath.Needs() {
		return fmt.Sprintf("the map %s has no room for %d rows: it grows", name, rows)
	}
	return ""
}

// crowded names a map that is to grow, other than a table of flows, empty if there is none. It counts their rows.
func (a *agent) crowded() string {
	why, err := a.Datapath.Crowded()
	if err != nil {
		a.Log.Warn("it is not known whether maps should grow", "error", err)
	}
	return why
}

// flowsTooSmall says which table of flows is to grow, empty if there is none. It prepares the reload.
func (a *agent) flowsTooSmall() string {
	g := a.datapath.growth
	if g.limit == 0 {
		return ""
	}
	tables := a.flows.Tables()
	name := tooSmall(tables, g.limit)
	if name == "" {
		return ""
	}
	u := tables[name]
	a.datapath.require(name, u.Demand)
	a.flows.Lend()
	return fmt.Sprintf("flows need room for %d entries in the table %s, which has %d: it grows", u.Demand, name, u.Max)
}

// tooSmall names the first table that is to grow, empty if there is none.
func tooSmall(tables map[string]flow.Usage, limit int) string {
	for _, name := range []string{"flows", "nat_entries"} {
		if u := tables[name]; u.Max > 1 && u.Max < limit && crowded(u.Demand, u.Max) {
			return name
		}
	}
	return ""
}
