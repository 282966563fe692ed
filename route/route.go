package route

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Route is a row of the table of routes that the kernel must have.
type Route struct {
	Prefix      netip.Prefix      `json:"prefix"`
	Unreachable bool              `json:"unreachable,omitempty"` // answer with ICMP unreachable instead of forwarding; Device is empty then
	Device      string            `json:"device,omitempty"`
	Gateway     netip.Addr        `json:"gateway,omitzero"` // invalid: the destination is on the device's link
	Source      netip.Addr        `json:"source,omitzero"`  // preferred source address; must be one of the host
	MTU         int               `json:"mtu,omitempty"`    // bytes of layer 3, 0: that of the device
	Table       int               `json:"table"`            // 254 is the main table
	Metric      uint32            `json:"metric"`           // lower is preferred
	Owner       string            `json:"owner"`            // what the route is for: "pod LINK", "node NAME", "self"
	Problem     string            `json:"problem,omitempty"`
	Status      reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same; their status does not count.
func (r *Route) Equal(o *Route) bool {
	return r.Prefix == o.Prefix && r.Unreachable == o.Unreachable && r.Device == o.Device && r.Gateway == o.Gateway &&
		r.Source == o.Source && r.MTU == o.MTU && r.Table == o.Table && r.Metric == o.Metric && r.Owner == o.Owner &&
		r.Problem == o.Problem
}

func (r *Route) key() routeKey { return routeKey{r.Table, r.Prefix, r.Metric} }

func (r *Route) id() string {
	return fmt.Sprintf("%s|%d|%d|%s", r.Prefix, r.Table, r.Metric, r.Owner)
}

// String is the route in the words of ip-route(8).
func (r *Route) String() string {
	text := r.Prefix.String()
	if r.Unreachable {
		text = "unreachable " + text
	}
	if r.Gateway.IsValid() {
		text += " via " + r.Gateway.String()
	}
	if r.Device != "" {
		text += " dev " + r.Device
	}
	return text
}

// TableHeader names the columns of TableRow.
func (*Route) TableHeader() []string {
	return []string{"Prefix", "Type", "Gateway", "Device", "Source", "MTU", "Metric", "Owner", "Status"}
}

// TableRow is the row as text.
func (r *Route) TableRow() []string {
	kind := "unicast"
	if r.Unreachable {
		kind = "unreachable"
	}
	return []string{
		r.Prefix.String(), kind, text(r.Gateway), r.Device, text(r.Source), fmt.Sprint(r.MTU), fmt.Sprint(r.Metric),
		r.Owner, r.Status.String(),
	}
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func routeID() statedb.Index[*Route, string] {
	return statedb.Index[*Route, string]{
		Name:       "id",
		FromObject: func(r *Route) index.KeySet { return index.NewKeySet(index.String(r.id())) },
		FromKey:    index.String,
		FromString: index.FromString,
		Unique:     true,
	}
}

func routePrefix() statedb.Index[*Route, netip.Prefix] {
	return statedb.Index[*Route, netip.Prefix]{
		Name:       "prefix",
		FromObject: func(r *Route) index.KeySet { return index.NewKeySet(index.NetIPPrefix(r.Prefix)) },
		FromKey:    index.NetIPPrefix,
		FromString: index.NetIPPrefixString,
	}
}

func routeOwner() statedb.Index[*Route, string] {
	return statedb.Index[*Route, string]{
		Name:       "owner",
		FromObject: func(r *Route) index.KeySet { return index.NewKeySet(index.String(r.Owner)) },
		FromKey:    index.String,
		FromString: index.FromString,
	}
}

// routeByPrefix queries the routes to a prefix.
func routeByPrefix(p netip.Prefix) statedb.Query[*Route] {
	i := routePrefix()
	return i.Query(p)
}

// routeByOwner queries the routes of an owner, e.g. "node n2".
func routeByOwner(owner string) statedb.Query[*Route] {
	i := routeOwner()
	return i.Query(owner)
}

// newRouteTable makes the table of routes in db.
func newRouteTable(db *statedb.DB) (statedb.RWTable[*Route], error) {
	return statedb.NewTable(db, "routes", routeID(), routePrefix(), routeOwner())
}

// routeStatus is where the reconciler keeps its status of a route.
func routeStatus(r *Route) *reconciler.Status { return &r.Status }

// routeOps makes the kernel's routes equal to the rows.
type routeOps struct {
	kernel *Kernel
	table  statedb.Table[*Route]
}

// Update adds the route, or replaces it where one of ours differs. A route of
// another program with the same prefix, table and metric is an error, because a
// replace would destroy it.
func (o *routeOps) Update(_ context.Context, txn statedb.ReadTxn, _ statedb.Revision, r *Route) error {
	if r.Problem != "" {
		if err := o.Delete(nil, txn, 0, r); err != nil {
			return err
		}
		return errors.New(r.Problem)
	}
	want, err := o.kernelRoute(r)
	if err != nil {
		return fmt.Errorf("add route %s: %w", r, err)
	}
	err = o.kernel.RouteAdd(want)
	if errors.Is(err, unix.EEXIST) {
		var have *netlink.Route
		have, err = o.find(r)
		switch {
		case err != nil:
		case have == nil:
			return fmt.Errorf("add route %s: it exists and cannot be found", r)
		case have.Protocol != Protocol:
			return fmt.Errorf("add route %s: there is a route of another program (protocol %s): %s",
				r, have.Protocol, have)
		case same(have, want):
			return nil
		default:
			err = o.kernel.RouteReplace(want)
		}
	}
	if err != nil {
		return fmt.Errorf("add route %s: %w", r, err)
	}
	return nil
}

// Delete removes the route, unless another row wants one in its place: its
// Update replaces this one without a gap.
func (o *routeOps) Delete(_ context.Context, txn statedb.ReadTxn, _ statedb.Revision, r *Route) error {
	for other := range o.table.List(txn, routeByPrefix(r.Prefix)) {
		if other.key() == r.key() && other.Owner != r.Owner && other.Problem == "" {
			return nil
		}
	}
	if o.gone(r) {
		return nil
	}
	have, err := o.find(r)
	if err == nil && have != nil && have.Protocol == Protocol {
		err = o.kernel.RouteDel(have)
	}
	if err != nil && !notFound(err) {
		return fmt.Errorf("delete route %s: %w", r, err)
	}
	return nil
}

// Prune deletes the routes that carry our protocol number and have no row.
func (o *routeOps) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*Route, statedb.Revision]) error {
	wanted := map[routeKey]bool{}
	for r := range rows {
		wanted[r.key()] = wanted[r.key()] || r.Problem == ""
	}
	list, err := o.list(0, &netlink.Route{Protocol: Protocol}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range list {
		if wanted[keyOf(&r)] {
			continue
		}
		if err := o.kernel.RouteDel(&r); err != nil && !notFound(err) {
			errs = append(errs, fmt.Errorf("delete route %s: %w", &r, err))
		}
	}
	return errors.Join(errs...)
}

// list reads the routes of one family, or of both for 0, that pass the filter.
func (o *routeOps) list(family int, filter *netlink.Route, mask uint64) ([]netlink.Route, error) {
	var list []netlink.Route
	err := dump(func() (err error) {
		list, err = o.kernel.RouteListFiltered(family, filter, mask)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return list, nil
}

// find returns the kernel's route with the key of r, or nil. It asks for the
// entry that the first address matches, which is the right one but for a
// prefix with something more specific or preferred in it; reading all routes
// for each row would make a restart with many pods slow.
func (o *routeOps) find(r *Route) (*netlink.Route, error) {
	if r.Table == unix.RT_TABLE_MAIN {
		matches, err := o.kernel.RouteGetWithOptions(r.Prefix.Addr().AsSlice(),
			&netlink.RouteGetOptions{FIBMatch: true})
		if err == nil && len(matches) == 1 && len(matches[0].MultiPath) == 0 && keyOf(&matches[0]) == r.key() {
			return &matches[0], nil
		}
	}
	list, err := o.list(familyOf(r.Prefix.Addr()), &netlink.Route{Table: r.Table, Dst: ipNet(r.Prefix)},
		netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	if err != nil {
		return nil, err
	}
	for i := range list {
		if keyOf(&list[i]) == r.key() {
			return &list[i], nil
		}
	}
	return nil, nil
}

// gone reports whether a look-up shows that no route to the one address of r
// exists. That is the usual case, as the kernel removes the route of a pod with
// the pod's link, and it is cheap. Should a routing rule mislead it, Prune
// finds what is left.
func (o *routeOps) gone(r *Route) bool {
	if !r.Prefix.IsSingleIP() || r.Table != unix.RT_TABLE_MAIN {
		return false
	}
	matches, err := o.kernel.RouteGetWithOptions(r.Prefix.Addr().AsSlice(), &netlink.RouteGetOptions{FIBMatch: true})
	if err != nil {
		return errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETUNREACH)
	}
	return len(matches) == 1 && keyOf(&matches[0]).prefix != r.Prefix
}

func (o *routeOps) kernelRoute(r *Route) (*netlink.Route, error) {
	want := &netlink.Route{
		Dst:      ipNet(r.Prefix),
		Table:    r.Table,
		Priority: int(r.Metric),
		Protocol: Protocol,
		Type:     unix.RTN_UNICAST,
		MTU:      r.MTU,
		Scope:    netlink.SCOPE_UNIVERSE,
	}
	if r.Source.IsValid() {
		want.Src = r.Source.AsSlice()
	}
	if r.Unreachable {
		want.Type = unix.RTN_UNREACHABLE
		return want, nil
	}
	link, err := o.kernel.LinkByName(r.Device)
	if err != nil {
		return nil, err
	}
	want.LinkIndex = link.Attrs().Index
	switch {
	case r.Gateway.IsValid():
		want.Gw = r.Gateway.AsSlice()
	case r.Prefix.Addr().Is4():
		want.Scope = netlink.SCOPE_LINK
	}
	return want, nil
}

// same reports whether the kernel's route does what is wanted. The kernel
// names the loopback device in unreachable IPv6 routes, and knows no scope in
// IPv6.
func same(have, want *netlink.Route) bool {
	return have.Type == want.Type && have.Gw.Equal(want.Gw) && have.Src.Equal(want.Src) && have.MTU == want.MTU &&
		(have.LinkIndex == want.LinkIndex || want.Type == unix.RTN_UNREACHABLE) && len(have.MultiPath) == 0 &&
		(have.Scope == want.Scope || want.Dst.IP.To4() == nil)
}

func keyOf(r *netlink.Route) routeKey {
	key := routeKey{table: r.Table, metric: uint32(r.Priority)}
	if r.Dst == nil {
		return key
	}
	address, _ := netip.AddrFromSlice(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	key.prefix = netip.PrefixFrom(address, bits)
	return key
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}
