package route

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"myelin/cluster"
	"myelin/endpoint"
	"myelin/internal/table"
)

// node is a network namespace without a name, which vanishes with its last
// user however the test ends.
type node struct {
	t         *testing.T
	namespace netns.NsHandle
	kernel    *Kernel
}

func newNode(t *testing.T) *node {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	made := make(chan netns.NsHandle)
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		handle, err := netns.New()
		if err != nil {
			failed <- err
			return
		}
		made <- handle
	}()
	n := &node{t: t}
	select {
	case n.namespace = <-made:
	case err := <-failed:
		t.Fatal(err)
	}
	t.Cleanup(func() { n.namespace.Close() })
	kernel, err := OpenKernel(&n.namespace)
	must(t, err)
	n.kernel = kernel
	t.Cleanup(kernel.Close)
	n.up("lo")
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wire makes a veth between two nodes, both ends up.
func wire(a *node, nameA string, b *node, nameB string) {
	a.t.Helper()
	must(a.t, a.kernel.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: nameA}, PeerName: nameB, PeerNamespace: netlink.NsFd(b.namespace),
	}))
	a.up(nameA)
	b.up(nameB)
}

func (n *node) link(name string) netlink.Link {
	n.t.Helper()
	link, err := n.kernel.LinkByName(name)
	must(n.t, err)
	return link
}

func (n *node) up(name string)   { n.t.Helper(); must(n.t, n.kernel.LinkSetUp(n.link(name))) }
func (n *node) down(name string) { n.t.Helper(); must(n.t, n.kernel.LinkSetDown(n.link(name))) }

func (n *node) address(name, prefix string) {
	n.t.Helper()
	p := netip.MustParsePrefix(prefix)
	flags := 0
	if p.Addr().Is6() {
		flags = unix.IFA_F_NODAD
	}
	must(n.t, n.kernel.AddrAdd(n.link(name), &netlink.Addr{IPNet: ipNet(p), Flags: flags}))
}

// defaultVia adds a default route.
func (n *node) defaultVia(device, gateway string) {
	n.t.Helper()
	must(n.t, n.kernel.RouteAdd(&netlink.Route{LinkIndex: n.link(device).Attrs().Index, Gw: net.ParseIP(gateway)}))
}

// pod makes a pod link: a veth whose other end is in a namespace of its own.
func (n *node) pod(name string, addresses ...string) *endpoint.Endpoint {
	n.t.Helper()
	inside := newNode(n.t)
	wire(n, name, inside, "eth0")
	e := &endpoint.Endpoint{
		ID: uint16(n.link(name).Attrs().Index), ContainerID: name, IfName: "eth0", LinkName: name,
		LinkIndex: n.link(name).Attrs().Index, PodMAC: inside.link("eth0").Attrs().HardwareAddr,
		State: endpoint.StateReady,
	}
	for _, a := range addresses {
		if address := netip.MustParseAddr(a); address.Is4() {
			e.IPv4 = address
		} else {
			e.IPv6 = address
		}
	}
	return e
}

// routes lists the node's routes of main table that we or another program made,
// as text.
func (n *node) routes(prefix string) (list []netlink.Route) {
	n.t.Helper()
	p := netip.MustParsePrefix(prefix)
	all, err := n.kernel.RouteList(nil, familyOf(p.Addr()))
	must(n.t, err)
	for _, r := range all {
		if keyOf(&r).prefix == p {
			list = append(list, r)
		}
	}
	return list
}

// agent is what runs on a node.
type agent struct {
	*Routes
	t         *testing.T
	cluster   cluster.Tables
	endpoints statedb.RWTable[*endpoint.Endpoint]
	stop      func()
}

// start runs an agent with the given rows; stop ends it like a kill does, for
// nothing is undone in the kernel at either.
func (n *node) start(c Config, nodes []*cluster.Node, endpoints ...*endpoint.Endpoint) *agent {
	n.t.Helper()
	db := statedb.New()
	tables, err := cluster.NewTables(db)
	must(n.t, err)
	eps, err := endpoint.NewTable(db)
	must(n.t, err)
	must(n.t, db.Start())
	log := slog.New(slog.NewTextHandler(n.t.Output(), nil))
	group, start, stop := table.Group(log)
	routes, err := New(Params{
		DB: db, Log: log, Group: group, Namespace: &n.namespace, Config: c, Nodes: tables.Nodes, Endpoints: eps,
	})
	must(n.t, err)
	a := &agent{Routes: routes, t: n.t, cluster: tables, endpoints: eps}
	a.put(nodes, endpoints...)
	must(n.t, start(n.t.Context()))
	stopped := false
	a.stop = func() {
		if !stopped {
			stopped = true
			if err := stop(context.Background()); err != nil {
				n.t.Error(err)
			}
			routes.Close()
			db.Stop()
		}
	}
	n.t.Cleanup(a.stop)
	return a
}

func (a *agent) put(nodes []*cluster.Node, endpoints ...*endpoint.Endpoint) {
	a.t.Helper()
	txn := a.DB.WriteTxn(a.cluster.Nodes, a.endpoints)
	for _, row := range nodes {
		_, _, err := a.cluster.Nodes.Insert(txn, row)
		must(a.t, err)
	}
	for _, row := range endpoints {
		_, _, err := a.endpoints.Insert(txn, row)
		must(a.t, err)
	}
	txn.Commit()
}

// eventually waits for a condition that the agent brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// errorOf returns the error of the route to prefix once it has one.
func (a *agent) errorOf(prefix string) (problem string) {
	a.t.Helper()
	eventually(a.t, "an error for "+prefix, func() bool {
		for row := range a.Routes.Routes.List(a.DB.ReadTxn(), routeByPrefix(netip.MustParsePrefix(prefix))) {
			if row.Status.Kind == reconciler.StatusKindError {
				problem = row.Status.GetError()
			}
		}
		return problem != ""
	})
	return problem
}

// want waits for a route in the kernel, given as "PREFIX via GW dev NAME src A
// mtu M", where all but PREFIX are optional.
func (n *node) want(text string) {
	n.t.Helper()
	var have []string
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		var prefix string
		fmt.Sscan(text, &prefix)
		have = nil
		for _, r := range n.routes(prefix) {
			have = append(have, n.describe(&r))
			if n.describe(&r) == text {
				return
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	n.t.Fatalf("no route %q within 10 s, but %q", text, have)
}

func (n *node) describe(r *netlink.Route) string {
	text := keyOf(r).prefix.String()
	if r.Type == unix.RTN_UNREACHABLE {
		return text + " unreachable"
	}
	if r.Gw != nil {
		text += " via " + r.Gw.String()
	}
	if link, err := n.kernel.LinkByIndex(r.LinkIndex); err == nil {
		text += " dev " + link.Attrs().Name
	}
	if r.Src != nil {
		text += " src " + r.Src.String()
	}
	if r.MTU != 0 {
		text += fmt.Sprint(" mtu ", r.MTU)
	}
	return text
}

// wantNone waits until no route to prefix is in the kernel.
func (n *node) wantNone(prefix string) {
	n.t.Helper()
	eventually(n.t, "no route to "+prefix, func() bool { return len(n.routes(prefix)) == 0 })
}

func clusterNode(name string, addresses, podCIDRs []string) *cluster.Node {
	row := &cluster.Node{Name: name}
	for _, a := range addresses {
		row.Addresses = append(row.Addresses, netip.MustParseAddr(a))
	}
	for _, p := range podCIDRs {
		row.PodCIDRs = append(row.PodCIDRs, netip.MustParsePrefix(p))
	}
	return row
}
