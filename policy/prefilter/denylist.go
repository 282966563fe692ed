package prefilter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/internal/table"
	"myelin/policy"
	"myelin/policy/identity"
	"myelin/policy/maps"
)

// denylistParams are what a denylist needs.
type denylistParams struct {
	DB     *statedb.DB
	Groups statedb.Table[*policy.Group]
	Nodes  statedb.Table[*cluster.Node]
	// OffCIDR are pods in no podCIDR of their Node; nil: there are none.
	OffCIDR statedb.Table[*cluster.Outside]
	// Names are the groups whose prefixes are blocked.
	Names []string
	Maps  *maps.Writer
	Log   *slog.Logger
}

// denylist keeps the datapath's denylist equal to CIDR groups. Addresses of nodes and of their pods are exempt, unless
// a group has a prefix within them.
type denylist struct {
	denylistParams
	// rows has what is in force, by group.
	rows statedb.RWTable[*denylistRow]

	have map[netip.Prefix]uint32 // in the kernel; nil: not read yet
}

// denylistRow is a group whose prefixes are blocked.
type denylistRow struct {
	Name     string `json:"name"`
	Prefixes int    `json:"prefixes"`
	// Own are addresses of nodes, their podCIDRs and pods outside of these, that the group covers, and that
	// may come in all the same.
	Own int `json:"own"`
	// Problem is why the group is not in force; empty if it is.
	Problem string `json:"problem,omitempty"`
}

// TableHeader names the columns of TableRow.
func (*denylistRow) TableHeader() []string { return []string{"Group", "Prefixes", "Own", "State"} }

// TableRow is the row as text.
func (r *denylistRow) TableRow() []string {
	return []string{r.Name, strconv.Itoa(r.Prefixes), strconv.Itoa(r.Own), cmp.Or(r.Problem, "in force")}
}

// newDenylist creates the table "prefilter".
func newDenylist(p denylistParams) (*denylist, error) {
	rows, err := statedb.NewTable(p.DB, "prefilter", statedb.Index[*denylistRow, string]{
		Name:       "name",
		FromObject: func(r *denylistRow) index.KeySet { return index.NewKeySet(index.String(r.Name)) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	})
	if err != nil {
		return nil, fmt.Errorf("create table prefilter: %w", err)
	}
	return &denylist{denylistParams: p, rows: rows}, nil
}

// run follows the groups and nodes until ctx ends. What an agent before had in
// the kernel holds until both are known.
func (l *denylist) run(ctx context.Context) error {
	failures := 0
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		err := l.round(w)
		if err == nil {
			failures = 0
			return nil
		}
		failures++
		after := table.RetryAfter(failures)
		w.After(after)
		l.Log.Error("the denylist is not complete in the kernel", "error", err, "again after", after)
		return nil
	})
}

func (l *denylist) round(w *table.Watch) error {
	r := l.DB.ReadTxn()
	if !w.Initialized(r, l.Groups, l.Nodes) {
		return nil
	}
	_, groups := l.Groups.AllWatch(r)
	_, nodes := l.Nodes.AllWatch(r)
	outside := cluster.ReadOutsides(r, l.OffCIDR)
	if outside.Unknown != nil {
		w.Add(outside.Unknown)
		return nil
	}
	w.Add(groups, nodes, outside.Changed)
	want, rows := l.wanted(r, outside.ByNode)
	err := l.write(want)
	if err != nil {
		for _, row := range rows {
			row.Problem = err.Error()
		}
	}
	return errors.Join(err, l.publish(rows))
}

// wanted is the list of each prefix, 0 where it may come in. Outside are pods in no podCIDR of their Node, by node.
func (l *denylist) wanted(r statedb.ReadTxn, outside map[string][]netip.Prefix) (
	map[netip.Prefix]uint32, []*denylistRow,
) {
	want, lengths := map[netip.Prefix]uint32{}, map[int]bool{}
	var rows []*denylistRow
	for i, name := range l.Names {
		row := &denylistRow{Name: name}
		rows = append(rows, row)
		g, _, ok := l.Groups.Get(r, policy.GroupByName(name))
		if !ok {
			row.Problem = "there is no CiliumCIDRGroup of this name"
			continue
		}
		if g.InForce == policy.Closed {
			row.Problem = "only the CIDRs that are understood are kept out: " + g.Problem
		}
		row.Prefixes = len(g.Prefixes)
		for _, prefix := range g.Prefixes {
			if _, ok := want[prefix]; !ok {
				want[prefix], lengths[prefix.Bits()] = uint32(i+1), true
			}
		}
	}
	own := map[netip.Prefix]bool{}
	for n := range l.Nodes.All(r) {
		for _, a := range identity.NodeAddresses(n) {
			own[netip.PrefixFrom(a, a.BitLen())] = true
		}
		for _, prefix := range slices.Concat(n.PodCIDRs, outside[n.Name]) {
			own[prefix] = true
		}
	}
	var exempt []netip.Prefix // noted afterwards: what may come in must not hide what covers another
	for prefix := range own {
		if list := covering(want, lengths, prefix); list > 0 {
			rows[list-1].Own++
			exempt = append(exempt, prefix)
		}
	}
	for _, prefix := range exempt {
		want[prefix] = 0
	}
	return want, rows
}

// covering is the list of some prefix that has all of another one, or 0.
func covering(want map[netip.Prefix]uint32, lengths map[int]bool, prefix netip.Prefix) uint32 {
	for bits := range lengths {
		if bits > prefix.Bits() {
			continue
		}
		if list := want[netip.PrefixFrom(prefix.Addr(), bits).Masked()]; list > 0 {
			return list
		}
	}
	return 0
}

// read learns what an agent before left in the kernel.
func (l *denylist) read() error {
	have := map[netip.Prefix]uint32{}
	d := l.Maps.Datapath
	err1 := bpf.Each(d.Denylist, func(a *bpf.DatapathAddr, list *uint32) bool {
		addr := a.Netip()
		have[netip.PrefixFrom(addr, addr.BitLen())] = *list
		return true
	})
	err2 := bpf.Each(d.DenylistPrefixes, func(k *bpf.DatapathPrefixKey, list *uint32) bool {
		have[k.Netip()] = *list
		return true
	})
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("read the denylist: %w", err)
	}
	l.have = have
	return nil
}

// write makes the maps equal to what is wanted, so that at no time a packet is
// kept out or let in by half of a change, unless there is no room for that.
func (l *denylist) write(want map[netip.Prefix]uint32) error {
	if l.have == nil {
		if err := l.read(); err != nil {
			return err
		}
	}
	had := l.have
	gone, put := map[bool][]netip.Prefix{}, map[bool][]netip.Prefix{} // by whether they are blocked
	for prefix, list := range had {
		if _, ok := want[prefix]; !ok {
			gone[list > 0] = append(gone[list > 0], prefix)
		}
	}
	for prefix, list := range want {
		if old, ok := had[prefix]; !ok || old != list {
			put[list > 0] = append(put[list > 0], prefix)
		}
	}
	l.have = nil // read again unless all of it is done
	err := errors.Join(l.put(put[false], want), l.put(put[true], want))
	if err2 := l.drop(gone[true]); err != nil || err2 != nil {
		err = errors.Join(err2, l.put(put[false], want), l.put(put[true], want))
	}
	if err = errors.Join(err, l.drop(gone[false])); err != nil {
		return err
	}
	l.have = want
	return nil
}

func (l *denylist) put(list []netip.Prefix, want map[netip.Prefix]uint32) error {
	addrs, prefixes := split(list)
	of := func(n int, at func(int) netip.Prefix) (values []uint32) {
		for i := range n {
			values = append(values, want[at(i)])
		}
		return values
	}
	d := l.Maps.Datapath
	return errors.Join(
		maps.Put(l.Maps, "denylist", d.Denylist, addrs, of(len(addrs), func(i int) netip.Prefix {
			a := addrs[i].Netip()
			return netip.PrefixFrom(a, a.BitLen())
		})),
		maps.Put(l.Maps, "denylist_prefixes", d.DenylistPrefixes, prefixes, of(len(prefixes),
			func(i int) netip.Prefix { return prefixes[i].Netip() })),
	)
}

func (l *denylist) drop(list []netip.Prefix) error {
	addrs, prefixes := split(list)
	d := l.Maps.Datapath
	return errors.Join(maps.Delete(l.Maps, "denylist", d.Denylist, addrs), maps.Delete(l.Maps, "denylist_prefixes",
		d.DenylistPrefixes, prefixes))
}

// split tells single addresses from prefixes.
func split(list []netip.Prefix) (addrs []bpf.DatapathAddr, prefixes []bpf.DatapathPrefixKey) {
	for _, p := range list {
		if p.IsSingleIP() {
			addrs = append(addrs, bpf.Addr(p.Addr()))
		} else {
			prefixes = append(prefixes, bpf.Prefix(p))
		}
	}
	return addrs, prefixes
}

func (l *denylist) publish(rows []*denylistRow) error {
	txn := l.DB.WriteTxn(l.rows)
	defer txn.Abort()
	for _, row := range rows {
		if _, _, err := l.rows.Insert(txn, row); err != nil {
			return fmt.Errorf("write table prefilter: %w", err)
		}
	}
	txn.Commit()
	return nil
}
