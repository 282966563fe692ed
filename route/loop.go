package route

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"myelin/cluster"
	"myelin/internal/table"
	"myelin/ipam"
)

// run is the one loop that reads the kernel's devices and derives rows.
func (r *Routes) run(ctx context.Context, health cell.Health) error {
	const (
		settle = 2 * time.Millisecond // a link comes with several messages
		again  = time.Second          // after an error
		watch  = 15 * time.Second     // between looks at the next hops
	)
	ticker := time.NewTicker(watch)
	defer ticker.Stop()
	for {
		var retry <-chan time.Time
		sources, err := r.derive()
		if err == nil {
			select {
			case <-ctx.Done():
				return nil
			case <-sources.nodes:
			case <-sources.endpoints:
			case <-sources.podCIDRs:
			case <-sources.outside.Changed:
			case <-sources.outside.Unknown:
			case <-sources.detours:
			case <-r.monitor.ready:
				time.Sleep(settle)
				err = r.observe(r.monitor.take())
			case <-ticker.C:
				err = r.look()
			}
		}
		if err == nil {
			health.OK("follows the kernel")
			continue
		}
		health.Degraded("read or derive routes", err)
		r.monitor.note(func(c *changes) { c.all = true })
		retry = time.After(again)
		select {
		case <-ctx.Done():
			return nil
		case <-retry:
		}
	}
}

// sources are channels that are closed when the table changes.
type sources struct {
	nodes, endpoints, podCIDRs, detours <-chan struct{}
	outside                             cluster.Outsides
}

// seen is what rows were last derived from.
type seen struct {
	input
	nodes, own, outside, detours statedb.Revision
}

// derive writes the rows that follow from nodes, endpoints and devices.
func (r *Routes) derive() (sources, error) {
	txn := r.DB.ReadTxn()
	nodes, nodesChanged := r.nodes.AllWatch(txn)
	own, ownKnown, ownRevision, ownChanged := r.own(txn)
	outside := cluster.ReadOutsides(txn, r.outside)
	detours := cluster.ReadDetours(txn, r.detours)
	endpoints, endpointsChanged := r.endpoints.AllWatch(txn)
	changed := sources{nodesChanged, endpointsChanged, ownChanged, detours.Changed, outside}
	if r.devices.links == nil {
		return changed, nil // the first reading of the kernel comes with the subscription
	}
	last := r.last
	r.last = nil // unless all goes well
	next := &seen{input: input{Config: r.config}, nodes: r.nodes.Revision(txn), own: ownRevision,
		outside: outside.Revision, detours: detours.Revision}
	if last != nil && last.nodes == next.nodes && last.own == next.own && last.outside == next.outside &&
		last.detours == next.detours {
		next.Nodes, next.Gateways = last.Nodes, last.Gateways
	} else {
		last = nil
		next.Nodes, next.Gateways = r.listNodes(nodes, own, outside.ByNode, detours.ByNode)
		// A node's address may make a device a wire.
		if _, err := r.devices.write(r.selection()); err != nil {
			return changed, fmt.Errorf("write devices: %w", err)
		}
	}
	for e := range endpoints {
		if e.Guarded() {
			next.Endpoints = append(next.Endpoints, localPod{Link: e.LinkName, MAC: e.PodMAC, Addresses: e.Addresses()})
		}
	}
	next.Devices = statedb.Collect(r.Devices.All(r.DB.ReadTxn()))
	nodesKnown, _ := r.nodes.Initialized(txn)
	endpointsKnown, _ := r.endpoints.Initialized(txn)
	done, err := r.writeDifference(last, next)
	if err == nil && !done {
		err = r.write(derive(next.input), nodesKnown && endpointsKnown && ownKnown && outside.Unknown == nil)
	}
	if err == nil {
		r.last = next
	}
	return changed, err
}

// listNodes is what routes need of nodes: of this one as own has it, of others with their pods outside.
func (r *Routes) listNodes(rows iter.Seq2[*cluster.Node, statedb.Revision], own *ipam.Assignment,
	outside map[string][]netip.Prefix, detours map[string]string) (list []peerNode, gateways []netip.Addr) {
	for n := range rows {
		row := peerNode{Name: n.Name, Addresses: n.Addresses, PodCIDRs: n.PodCIDRs,
			Encrypted: n.Encrypts(r.config.EncryptionType), Detour: detours[n.Name]}
		switch {
		case n.Name != r.config.Node:
			row.PodCIDRs = slices.Concat(n.PodCIDRs, outside[n.Name])
		case own != nil:
			row.PodCIDRs = own.InForce
		}
		list = append(list, row)
	}
	if own != nil {
		gateways = own.Gateways()
	}
	return list, gateways
}

// own is the row of this node's podCIDRs in force, empty until there is one,
// and nil if they are not assigned.
func (r *Routes) own(txn statedb.ReadTxn) (row *ipam.Assignment, known bool, rev statedb.Revision,
	changed <-chan struct{}) {
	if r.podCIDRs == nil {
		return nil, true, 0, nil
	}
	row, _, changed, ok := r.podCIDRs.GetWatch(txn, ipam.ByNode(r.config.Node))
	if !ok {
		row = &ipam.Assignment{}
	}
	known, _ = r.podCIDRs.Initialized(txn)
	return row, known, r.podCIDRs.Revision(txn), changed
}

// writeDifference writes what the coming and going of pods changes, without
// looking at the rows of other nodes and pods. Not done where that is not all
// that changed.
func (r *Routes) writeDifference(last, next *seen) (done bool, err error) {
	if last == nil || r.ready != nil {
		return false, nil
	}
	goneState, comeState, ok := difference(last.input, next.input)
	if !ok {
		return false, nil
	}
	gone, come := derive(goneState), derive(comeState)
	wtxn := r.DB.WriteTxn(r.Routes, r.Neighbours, r.Sysctls)
	defer wtxn.Abort()
	if r.contested(wtxn, gone.Routes, come.Routes) {
		return false, nil
	}
	routes, err1 := table.Replace(wtxn, r.Routes, present(wtxn, r.Routes, gone.Routes), come.Routes, (*Route).Equal)
	neighbours, err2 := table.Replace(wtxn, r.Neighbours, present(wtxn, r.Neighbours, gone.Neighbours), come.Neighbours,
		(*Neighbour).Equal)
	sysctls, err3 := table.Replace(wtxn, r.Sysctls, present(wtxn, r.Sysctls, gone.Sysctls), come.Sysctls,
		(*Sysctl).Equal)
	if err := errors.Join(err1, err2, err3); err != nil {
		return false, err
	}
	if routes+neighbours+sysctls > 0 {
		wtxn.Commit()
	}
	return true, nil
}

// contested reports whether the place of a row of gone or come has a row of
// neither: which of them has it, and which is an error, is for derive to say.
func (r *Routes) contested(txn statedb.ReadTxn, gone, come []*Route) bool {
	known := map[string]bool{}
	for _, row := range gone {
		known[row.id()] = true
	}
	for _, row := range slices.Concat(gone, come) {
		for other := range r.Routes.List(txn, routeByPrefix(row.Prefix)) {
			if other.key() == row.key() && !known[other.id()] {
				return true
			}
		}
	}
	return false
}

// present yields the rows of t that have the keys of rows.
func present[Row any](txn statedb.ReadTxn, t statedb.Table[*Row], rows []*Row) iter.Seq2[*Row, statedb.Revision] {
	return func(yield func(*Row, statedb.Revision) bool) {
		for _, row := range rows {
			if have, rev, ok := t.Get(txn, t.PrimaryIndexer().QueryFromObject(row)); ok && !yield(have, rev) {
				return
			}
		}
	}
}

// write makes the tables equal to desired, and says once that they are
// complete.
func (r *Routes) write(desired derived, complete bool) error {
	wtxn := r.DB.WriteTxn(r.Routes, r.Neighbours, r.Addresses, r.Sysctls, r.NextHops)
	defer wtxn.Abort()
	total := 0
	for _, write := range []func() (int, error){
		func() (int, error) {
			return table.Replace(wtxn, r.Routes, r.Routes.All(wtxn), desired.Routes, (*Route).Equal)
		},
		func() (int, error) {
			return table.Replace(wtxn, r.Neighbours, r.Neighbours.All(wtxn), desired.Neighbours, (*Neighbour).Equal)
		},
		func() (int, error) {
			return table.Replace(wtxn, r.Addresses, r.Addresses.All(wtxn), desired.Addresses, (*Address).Equal)
		},
		func() (int, error) {
			return table.Replace(wtxn, r.Sysctls, r.Sysctls.All(wtxn), desired.Sysctls, (*Sysctl).Equal)
		},
		func() (int, error) {
			return table.Replace(wtxn, r.NextHops, r.NextHops.All(wtxn), desired.NextHops, (*NextHop).Equal)
		},
	} {
		n, err := write()
		if err != nil {
			return err
		}
		total += n
	}
	if complete && r.ready != nil {
		r.ready(wtxn)
		r.ready = nil
		total++
	}
	if total > 0 {
		wtxn.Commit()
	}
	return nil
}

// observe brings the device table up to date, and makes the reconcilers write
// again what the kernel lost by the change.
func (r *Routes) observe(c changes) error {
	if err := r.devices.read(c); err != nil {
		return err
	}
	moved, err := r.devices.write(r.selection())
	if err != nil {
		return err
	}
	// A device that went down and up again looks the same in between two
	// readings, yet has lost its routes.
	txn := r.DB.ReadTxn()
	for i := range c.links {
		if d, _, ok := r.Devices.Get(txn, DeviceByIndex(i)); ok {
			moved = append(moved, d)
		}
	}
	for i := range c.addresses {
		if d, _, ok := r.Devices.Get(txn, DeviceByIndex(i)); ok && d.Kind != Pod {
			moved = append(moved, d)
		}
	}
	return r.restore(moved, c)
}

// restore marks rows as pending whose counterpart in the kernel may be gone:
// routes that were deleted or replaced by another program, and all that hangs on a
// device that vanished, appeared, or went up or down, or on its addresses. The
// kernel drops IPv4 routes of a device that goes down, and routes whose source
// address goes away, without telling.
func (r *Routes) restore(moved []*Device, c changes) error {
	if len(moved) == 0 && len(c.routes) == 0 && !c.all {
		return nil
	}
	names, sources, living := map[string]bool{}, map[netip.Addr]bool{}, map[string]bool{}
	for _, d := range moved {
		names[d.Name] = true
		_, living[d.Name] = r.devices.links[d.Index]
		for _, a := range d.Addresses {
			sources[a.Addr()] = true
		}
	}
	wtxn := r.DB.WriteTxn(r.Routes, r.Neighbours, r.Addresses, r.Sysctls, r.NextHops)
	defer wtxn.Abort()
	err := errors.Join(
		pend(wtxn, r.Routes, routeStatus, func(row *Route) bool {
			return c.all || c.routes[row.key()] || names[row.Device] || sources[row.Source] ||
				row.Unreachable && names["lo"]
		}),
		pend(wtxn, r.Neighbours, neighbourStatus, func(row *Neighbour) bool { return c.all || names[row.Device] }),
		pend(wtxn, r.Addresses, addressStatus, func(*Address) bool { return c.all || names["lo"] }),
		pend(wtxn, r.NextHops, nextHopStatus, func(row *NextHop) bool { return c.all || names[row.Device] }),
		// The rows of a device that is gone are about to go as well.
		pend(wtxn, r.Sysctls, sysctlStatus, func(row *Sysctl) bool { return living[sysctlDevice(row.Name)] }),
	)
	if err != nil {
		return err
	}
	wtxn.Commit()
	return nil
}

// pend marks the rows that match as pending, which makes the reconciler write
// them again.
func pend[Row any](wtxn statedb.WriteTxn, t statedb.RWTable[*Row], status func(*Row) *reconciler.Status,
	match func(*Row) bool,
) error {
	for row := range t.All(wtxn) {
		if status(row).Kind == reconciler.StatusKindPending || !match(row) {
			continue
		}
		next := *row
		*status(&next) = reconciler.StatusPending()
		if _, _, err := t.Insert(wtxn, &next); err != nil {
			return fmt.Errorf("mark row of %s as pending: %w", t.Name(), err)
		}
	}
	return nil
}
