package route

import (
	"bytes"
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb/reconciler"
	"golang.org/x/sys/unix"
)

// lastMetric is the least preferred metric there is.
const lastMetric = 1<<32 - 1

// userMetric is the metric that the kernel gives an IPv6 route that is added
// without one (IP6_RT_PRIO_USER).
const userMetric = 1024

// maxNextHops bounds the neighbours that are kept resolved: the kernel's own
// table holds 1024 per family by default before it begins to forget.
const maxNextHops = 4096

// Config is what the configuration file says about routes.
type Config struct {
	Node       string // name of this node
	IPv4, IPv6 bool   // families of pods
	// Tunnel is the name of the tunnel device in routing mode tunnel, and empty
	// in routing mode native. TunnelIPv6 says that the underlay is IPv6.
	Tunnel     string
	TunnelIPv6 bool
	// Encryption is the name of the device that encrypts, which leads to pods of nodes that do so by EncryptionType;
	// empty: there is none.
	Encryption     string
	EncryptionType string
	// Rotation is the name of the device that is there beside it while a node rotates its key of WireGuard.
	Rotation string
	// Strict are prefixes that nothing leaves for in plain text.
	Strict []netip.Prefix
	// AutoDirectNodeRoutes installs a route to each node's pods in native mode;
	// SkipUnreachable (directRoutingSkipUnreachable) makes it leave out nodes
	// that are not on a common link, instead of reporting an error.
	AutoDirectNodeRoutes bool
	SkipUnreachable      bool
	Devices              []string // names, "eth+", "!eth9"; empty: detect
	MTU                  int      // of the wires, bytes; 0: theirs
	// OwnSource: the stack gets packets from pods that have the node's own address
	// as their source.
	OwnSource bool
}

// peerNode is what routes need to know of a node.
type peerNode struct {
	Name      string
	Addresses []netip.Addr   // InternalIPs; the first of a family counts
	PodCIDRs  []netip.Prefix // of another node also each address that a pod has outside of them
	Encrypted bool           // it has published what encryption needs
	Detour    string         // name of the WireGuard device that leads to it, if not the usual one
}

func (n peerNode) address(like netip.Addr) netip.Addr {
	for _, a := range n.Addresses {
		if a.Is4() == like.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

// localPod is what routes need to know of a pod's interface.
type localPod struct {
	Link      string // name of the host side
	MAC       net.HardwareAddr
	Addresses []netip.Addr
}

func (e localPod) equal(o localPod) bool {
	return e.Link == o.Link && bytes.Equal(e.MAC, o.MAC) && slices.Equal(e.Addresses, o.Addresses)
}

// input is all that desired rows are derived from.
type input struct {
	Config    Config
	Nodes     []peerNode
	Endpoints []localPod
	Devices   []*Device
	// Gateways are what this node's pods have as their gateway, where that is
	// not, or no more, the first address of a podCIDR.
	Gateways []netip.Addr
}

// derived is what the kernel must be made to have.
type derived struct {
	Routes     []*Route
	Neighbours []*Neighbour
	Addresses  []*Address
	Sysctls    []*Sysctl
	NextHops   []*NextHop
}

// gateway is the address that pods of a podCIDR have as their gateway: the
// first after the network's own.
func gateway(podCIDR netip.Prefix) netip.Addr { return podCIDR.Masked().Addr().Next() }

// derive computes the desired rows. It is a pure function: equal states give
// equal rows in equal order, but for the time in their status.
func derive(s input) derived {
	d := &derivation{input: s, taken: map[routeKey]string{}}
	d.mtu, _ = findMTU(s.Config, s.Devices)
	for _, n := range s.Nodes {
		if n.Name == s.Config.Node {
			d.self = n
		}
	}
	d.forSelf()
	for _, e := range s.Endpoints {
		d.forEndpoint(e)
	}
	nodes := slices.Clone(s.Nodes)
	slices.SortFunc(nodes, func(a, b peerNode) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range nodes {
		if n.Name != s.Config.Node {
			d.forNode(n)
		}
	}
	d.forStrict()
	d.forGateways()
	d.forSysctls()
	return d.out
}

// difference leaves of two states of the same nodes and gateways the pods that
// are not in both. What derive makes of the one and not of the other is then
// the same as for the whole states, as long as no two rows want one place in the
// kernel. Not ok where more than pods has changed, for all routes may depend on it.
func difference(last, next input) (gone, come input, ok bool) {
	gone, come = next, next
	self := slices.IndexFunc(next.Nodes, func(n peerNode) bool { return n.Name == next.Config.Node })
	if gone.Nodes = nil; self >= 0 {
		gone.Nodes = next.Nodes[self : self+1]
	}
	come.Nodes = gone.Nodes
	var links, devices bool
	gone.Endpoints, come.Endpoints, links = differ(last.Endpoints, next.Endpoints, func(e localPod) string {
		return e.Link
	}, localPod.equal)
	gone.Devices, come.Devices, devices = differ(last.Devices, next.Devices, func(v *Device) string { return v.Name },
		// of a pod's link only the name counts
		func(a, b *Device) bool { return a == b || a.Kind == Pod && b.Kind == Pod })
	if other := func(v *Device) bool { return v.Kind != Pod }; !links || !devices ||
		slices.ContainsFunc(gone.Devices, other) || slices.ContainsFunc(come.Devices, other) {
		return input{}, input{}, false
	}
	for _, v := range next.Devices {
		if v.Kind != Pod {
			gone.Devices, come.Devices = append(gone.Devices, v), append(come.Devices, v)
		}
	}
	return gone, come, true
}

// differ finds what is in last and not in next, and the other way round. Not
// ok if two of one state have one key, or if what stays is in another order:
// of two that want the same the order decides which one has it.
func differ[T any](last, next []T, key func(T) string, same func(a, b T) bool) (gone, come []T, ok bool) {
	const taken = -1
	at := make(map[string]int, len(last))
	for i, v := range last {
		at[key(v)] = i
	}
	ok = len(at) == len(last)
	kept, latest := make([]bool, len(last)), -1
	for _, v := range next {
		k := key(v)
		i, found := at[k]
		at[k] = taken
		switch {
		case found && i == taken:
			ok = false
		case found && same(last[i], v):
			ok = ok && i > latest
			kept[i], latest = true, i
		default:
			come = append(come, v)
		}
	}
	for i, v := range last {
		if !kept[i] {
			gone = append(gone, v)
		}
	}
	return gone, come, ok
}

type derivation struct {
	input
	self  peerNode
	mtu   MTU
	taken map[routeKey]string // the first source of a route
	out   derived
}

func (d *derivation) enabled(a netip.Addr) bool {
	return a.Is4() && d.Config.IPv4 || a.Is6() && d.Config.IPv6
}

// source is the address that the host speaks to pods from: the node's own, or
// the gateway's where the node has none of the family or does not hold it.
func (d *derivation) source(like netip.Addr) netip.Addr {
	if a := d.self.address(like); a.IsValid() && slices.ContainsFunc(d.Devices, func(v *Device) bool {
		return v.holds(a)
	}) {
		return a
	}
	for _, g := range d.gateways() {
		if g.Is4() == like.Is4() && slices.ContainsFunc(d.Devices, func(v *Device) bool { return v.holds(g) }) {
			return g
		}
	}
	return netip.Addr{}
}

// gateways are those that pods have, then those of podCIDRs, of families that are on.
func (d *derivation) gateways() (list []netip.Addr) {
	add := func(g netip.Addr) {
		if d.enabled(g) && !slices.Contains(list, g) {
			list = append(list, g)
		}
	}
	for _, g := range d.Gateways {
		add(g)
	}
	for _, p := range d.self.PodCIDRs {
		add(gateway(p))
	}
	return list
}

// route adds a row. Of two that want the same place in the kernel the second
// one is kept as an error, for two would take turns.
func (d *derivation) route(r *Route) {
	r.Table = unix.RT_TABLE_MAIN
	if r.Metric == 0 && r.Prefix.Addr().Is6() {
		r.Metric = userMetric
	}
	if first, ok := d.taken[r.key()]; ok && r.Problem == "" {
		r.Problem = fmt.Sprintf("%s has %s, which %s has already", r.Owner, r.Prefix, first)
	} else if r.Problem == "" {
		d.taken[r.key()] = r.Owner
	}
	r.Status = reconciler.StatusPending()
	d.out.Routes = append(d.out.Routes, r)
}

// forSelf holds the gateway addresses, and keeps packets to addresses of no
// pod from leaving by the default route and coming back.
func (d *derivation) forSelf() {
	for _, g := range d.gateways() {
		d.out.Addresses = append(d.out.Addresses, &Address{
			Prefix: netip.PrefixFrom(g, g.BitLen()), Owner: "self", Status: reconciler.StatusPending(),
		})
	}
	for _, p := range d.self.PodCIDRs {
		if !d.enabled(p.Addr()) {
			continue
		}
		d.route(&Route{Prefix: p.Masked(), Unreachable: true, Metric: lastMetric, Owner: "self"})
	}
}

func (d *derivation) forEndpoint(e localPod) {
	owner := "pod " + e.Link
	for _, a := range e.Addresses {
		d.route(&Route{Prefix: netip.PrefixFrom(a, a.BitLen()), Device: e.Link, Source: d.source(a), Owner: owner})
		d.out.Neighbours = append(d.out.Neighbours, &Neighbour{
			Device: e.Link, Address: a, MAC: e.MAC, Owner: owner, Status: reconciler.StatusPending(),
		})
	}
}

// wire returns the wire that address is on the link of, or nil.
func (d *derivation) wire(address netip.Addr) *Device {
	for _, v := range d.Devices {
		if v.Kind == Wire && address.IsValid() && v.onLink(address) {
			return v
		}
	}
	return nil
}

func (d *derivation) forNode(n peerNode) {
	owner := "node " + n.Name
	for _, p := range n.PodCIDRs {
		switch {
		case !d.enabled(p.Addr()):
		case d.Config.Encryption != "" && n.Encrypted:
			d.route(&Route{
				Prefix: p.Masked(), Device: cmp.Or(n.Detour, d.Config.Encryption), Source: d.source(p.Addr()),
				MTU: d.mtu.Pod, Owner: owner,
			})
		case d.strict(p):
			d.route(&Route{Prefix: p.Masked(), Unreachable: true, Owner: owner})
		case d.Config.Tunnel != "":
			// The tunnel device resolves no neighbours (NOARP): the datapath puts
			// the other node's address on the packet.
			d.route(&Route{
				Prefix: p.Masked(), Device: d.Config.Tunnel, Source: d.source(p.Addr()), MTU: d.mtu.Pod, Owner: owner,
			})
		case d.Config.AutoDirectNodeRoutes:
			d.direct(n, p, owner)
		}
	}
	for _, a := range n.Addresses {
		if d.Config.Tunnel != "" && a.Is6() != d.Config.TunnelIPv6 {
			continue
		}
		if w := d.wire(a); w != nil {
			d.nextHop(w, a, owner)
		}
	}
}

func (d *derivation) direct(n peerNode, p netip.Prefix, owner string) {
	r := &Route{Prefix: p.Masked(), Owner: owner}
	family := "IPv4"
	if p.Addr().Is6() {
		family = "IPv6"
	}
	for _, a := range n.Addresses {
		if w := d.wire(a); w != nil && a.Is4() == p.Addr().Is4() {
			r.Gateway, r.Device, r.Source = a, w.Name, d.source(a)
			d.route(r)
			return
		}
	}
	var wires []string
	for _, v := range d.Devices {
		if v.Kind == Wire {
			wires = append(wires, v.Name)
		}
	}
	a := n.address(p.Addr())
	switch {
	case a.IsValid() && d.Config.SkipUnreachable:
		return
	case !a.IsValid():
		r.Problem = fmt.Sprintf("node %s has no %s address: no way to its podCIDR %s", n.Name, family, p)
	case len(wires) == 0:
		r.Problem = fmt.Sprintf("node %s %s cannot be reached: there is no wire", n.Name, a)
	default:
		r.Problem = fmt.Sprintf("node %s %s is not on-link on %s: autoDirectNodeRoutes needs one L2 segment",
			n.Name, a, strings.Join(wires, ", "))
	}
	d.route(r)
}

func (d *derivation) forGateways() {
	for _, v := range d.Devices {
		for _, g := range v.Gateways {
			if v.Kind == Wire && !v.holds(g) {
				d.nextHop(v, g, "default gateway")
			}
		}
	}
}

func (d *derivation) nextHop(v *Device, a netip.Addr, why string) {
	if len(d.out.NextHops) < maxNextHops {
		d.out.NextHops = append(d.out.NextHops, &NextHop{
			Device: v.Name, Address: a, For: why, State: "none", Status: reconciler.StatusPending(),
		})
	}
}
