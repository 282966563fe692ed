package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"myelin/bpf"
	"myelin/flow"
	"myelin/service/nat"
)

// growthInterval is how often the use of conntrack tables is compared with their size.
const growthInterval = time.Second

// growth is what limits the growth of the tables of conntrack and NAT entries.
type growth struct {
	limit int    // in entries of each table; 0: they do not grow
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

// pinnedFlows are the tables that grow, with their entries of proven flows.
type pinnedFlows struct{ flows, nat bpf.Pinned }

func (d *datapath) pinnedFlows() (p pinnedFlows, err error) {
	if p.flows, err = bpf.CountPinned(d.dir(), "flows", flow.Proven); err != nil {
		return p, err
	}
	p.nat, err = bpf.CountPinned(d.dir(), "nat_entries", nat.Proven)
	return p, err
}

// loadGrown loads the programs with tables as large as the flows in the pinned ones need, or as they are now, if the
// kernel has no memory for that.
func (d *datapath) loadGrown(o bpf.Options) (err error) {
	if d.growth.limit == 0 {
		d.Datapath, err = d.load(o)
		return err
	}
	p, err := d.pinnedFlows()
	if err != nil {
		return err
	}
	flows, nats := int(o.Sizes.Flows), int(o.Sizes.Translations)
	o.Sizes.Flows = uint32(sizeFor(p.flows.Counted, flows, d.growth.limit))
	o.Sizes.Translations = uint32(sizeFor(p.nat.Counted, nats, d.growth.limit))
	d.Datapath, err = d.load(o)
	if !errors.Is(err, unix.ENOMEM) {
		return err
	}
	d.growth.stuck = fmt.Sprintf("no memory for %d conntrack and %d NAT entries", o.Sizes.Flows, o.Sizes.Translations)
	d.Log.Warn("conntrack tables do not grow", "error", err, "entries", o.Sizes.Flows, "nat", o.Sizes.Translations)
	o.Sizes.Flows, o.Sizes.Translations = uint32(max(flows, p.flows.Max)), uint32(max(nats, p.nat.Max))
	d.Datapath, err = d.load(o)
	return err
}

// takeOverFlows copies the flows that began after tables of another size had been filled, when all programs use these.
func (a *agent) takeOverFlows() {
	switch n, err := a.Datapath.Overlap(); {
	case err != nil:
		a.Log.Warn("flows that began during the start may end", "error", err)
	case n > 0:
		a.Log.Info("took over flows that began during the start", "flows", n)
	}
}

// watchGrowth requests a reload, which makes larger tables, when proven flows need them. A flood of packets with forged
// sources proves nothing: the datapath evicts its entries.
func (a *agent) watchGrowth(ctx context.Context) error {
	g := a.datapath.growth
	if g.limit == 0 || g.stuck != "" {
		return nil
	}
	tick := time.NewTicker(growthInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		why := tooSmall(a.flows.Tables(), g.limit)
		if why == "" || time.Since(a.began) < a.readyAfter()+reloadPause {
			continue
		}
		select {
		case a.reload <- why:
		default: // another reason for a reload is pending
		}
		return nil
	}
}

// tooSmall names the first table that is to grow, empty if there is none.
func tooSmall(tables map[string]flow.Usage, limit int) string {
	for _, name := range []string{"flows", "nat_entries"} {
		u := tables[name]
		if u.Max > 1 && u.Max < limit && crowded(u.Proven, u.Max) {
			return fmt.Sprintf("%d flows use the table %s, which has room for %d: it grows", u.Proven, name, u.Max)
		}
	}
	return ""
}
