// Package route keeps the part of the network that the node's kernel itself
// must know equal to tables: devices and what they are for, routes and
// neighbours to pods and other nodes, gateway addresses, kernel parameters,
// and next hops that stay resolved. It speaks netlink only.
package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netns"

	"myelin/cluster"
	"myelin/endpoint"
	"myelin/internal/table"
	"myelin/ipam"
)

// Params are what New needs.
type Params struct {
	DB    *statedb.DB
	Log   *slog.Logger
	Group job.Group // from table.Group, not yet started
	// Namespace is the network namespace to work in, nil for that of the
	// process. It must stay open until Close.
	Namespace *netns.NsHandle
	// ProcSys is the directory of kernel parameters, "/proc/sys" if empty.
	ProcSys string
	// Originals is the file that keeps what parameters were before, for
	// RestoreSysctls; empty: they are not restored.
	Originals string
	Config    Config
	Nodes     statedb.Table[*cluster.Node]
	Endpoints statedb.Table[*endpoint.Endpoint]
	// PodCIDRs says which podCIDRs of this node are in force, and the gateways
	// of its pods; nil: those of the Node object.
	PodCIDRs statedb.Table[*ipam.Assignment]
	// Outside are pods in no podCIDR of their Node; nil: there are none.
	Outside statedb.Table[*cluster.Outside]
	// Detours are other nodes that are reached by another WireGuard device; nil: there are none.
	Detours statedb.Table[*cluster.Detour]
}

// Routes owns the tables of this package and makes the kernel equal to them.
type Routes struct {
	DB         *statedb.DB
	Devices    statedb.RWTable[*Device]
	Routes     statedb.RWTable[*Route]
	Neighbours statedb.RWTable[*Neighbour]
	Addresses  statedb.RWTable[*Address]
	Sysctls    statedb.RWTable[*Sysctl]
	NextHops   statedb.RWTable[*NextHop]

	log       *slog.Logger
	config    Config
	kernel    *Kernel
	monitor   *monitor
	devices   *devices
	nodes     statedb.Table[*cluster.Node]
	endpoints statedb.Table[*endpoint.Endpoint]
	podCIDRs  statedb.Table[*ipam.Assignment]
	outside   statedb.Table[*cluster.Outside]
	detours   statedb.Table[*cluster.Detour]
	// ready is called once, when the first rows are derived from initialized
	// sources: only then may anything be pruned.
	ready func(statedb.WriteTxn)
	last  *seen // nil: derive everything
}

// New makes the tables and adds their reconcilers and loops to p.Group. The
// kernel is read and written from the start of the group on, and pruned once
// the tables of nodes, endpoints and podCIDRs are initialized.
func New(p Params) (*Routes, error) {
	kernel, err := OpenKernel(p.Namespace)
	if err != nil {
		return nil, err
	}
	r := &Routes{
		DB: p.DB, log: p.Log, config: p.Config, kernel: kernel, monitor: newMonitor(p.Log, p.Namespace),
		nodes: p.Nodes, endpoints: p.Endpoints, podCIDRs: p.PodCIDRs, outside: p.Outside,
		detours: p.Detours,
	}
	if p.ProcSys == "" {
		p.ProcSys = "/proc/sys"
	}
	err = r.makeTables()
	if err == nil {
		err = r.register(p)
	}
	if err != nil {
		kernel.Close()
		return nil, err
	}
	p.Group.Add(
		job.OneShot("netlink-monitor", func(ctx context.Context, _ cell.Health) error {
			r.monitor.run(ctx)
			return nil
		}),
		job.OneShot("routes", r.run),
	)
	return r, nil
}

// Close closes the sockets; call it after the group has stopped. What is in
// the kernel stays, for the datapath goes on without the agent.
func (r *Routes) Close() { r.kernel.Close() }

func (r *Routes) makeTables() error {
	errs := make([]error, 6)
	r.Devices, errs[0] = newDeviceTable(r.DB)
	r.Routes, errs[1] = newRouteTable(r.DB)
	r.Neighbours, errs[2] = newNeighbourTable(r.DB)
	r.Addresses, errs[3] = newAddressTable(r.DB)
	r.Sysctls, errs[4] = newSysctlTable(r.DB)
	r.NextHops, errs[5] = newNextHopTable(r.DB)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("make tables of routes: %w", err)
	}
	r.devices = &devices{kernel: r.kernel, db: r.DB, table: r.Devices}
	wtxn := r.DB.WriteTxn(r.Routes, r.Neighbours, r.Addresses, r.NextHops, r.Devices)
	ready := []func(statedb.WriteTxn){
		r.Routes.RegisterInitializer(wtxn, "derive"), r.Neighbours.RegisterInitializer(wtxn, "derive"),
		r.Addresses.RegisterInitializer(wtxn, "derive"), r.NextHops.RegisterInitializer(wtxn, "derive"),
	}
	wtxn.Commit()
	r.ready = func(txn statedb.WriteTxn) {
		for _, done := range ready {
			done(txn)
		}
	}
	return nil
}

func (r *Routes) register(p Params) error {
	before, err := openOriginals(p.Originals)
	if err != nil {
		return err
	}
	errs := make([]error, 5)
	_, errs[0] = table.Register(p.Log, r.DB, p.Group, r.Addresses, addressStatus, &addressOps{r.kernel})
	_, errs[1] = table.Register(p.Log, r.DB, p.Group, r.Sysctls, sysctlStatus, &sysctlOps{r.kernel, p.ProcSys, before})
	_, errs[2] = table.Register(p.Log, r.DB, p.Group, r.Routes, routeStatus, &routeOps{r.kernel, r.Routes})
	_, errs[3] = table.Register(p.Log, r.DB, p.Group, r.Neighbours, neighbourStatus, &neighbourOps{r.kernel})
	_, errs[4] = table.Register(p.Log, r.DB, p.Group, r.NextHops, nextHopStatus, &nextHopOps{r.kernel})
	return errors.Join(errs...)
}

func (r *Routes) selection() selection {
	s := selection{
		patterns: r.config.Devices, tunnel: r.config.Tunnel, encryption: r.config.Encryption,
		rotation: r.config.Rotation,
		ipv4:     r.config.IPv4 || r.config.Tunnel != "" && !r.config.TunnelIPv6,
		ipv6:     r.config.IPv6 || r.config.Tunnel != "" && r.config.TunnelIPv6,
	}
	if self, _, ok := r.nodes.Get(r.DB.ReadTxn(), cluster.NodeByName(r.config.Node)); ok {
		s.addresses = self.Addresses
	}
	return s
}

// WaitPod waits until the routes and neighbours of the pod behind a link are
// in the kernel. Its endpoint must be in the table of endpoints, or ctx decides.
func (r *Routes) WaitPod(ctx context.Context, link string, addresses ...netip.Addr) error {
	for {
		txn := r.DB.ReadTxn()
		routes, routesChanged := r.Routes.ListWatch(txn, routeByOwner("pod "+link))
		neighbours, neighboursChanged := r.Neighbours.ListWatch(txn, neighbourByOwner("pod "+link))
		missing, problem := map[netip.Addr]int{}, ""
		for _, a := range addresses {
			missing[a] = 2
		}
		count := func(a netip.Addr, s reconciler.Status) {
			if s.Kind == reconciler.StatusKindDone || s.Kind == reconciler.StatusKindRefreshing {
				missing[a]--
			} else if text := s.GetError(); text != "" {
				problem = ": " + text
			}
		}
		for row := range routes {
			count(row.Prefix.Addr(), row.Status)
		}
		for row := range neighbours {
			count(row.Address, row.Status)
		}
		left := 0
		for _, a := range addresses {
			left += max(0, missing[a])
		}
		if left == 0 {
			return nil
		}
		select {
		case <-routesChanged:
		case <-neighboursChanged:
		case <-ctx.Done():
			return fmt.Errorf("wait for routes of pod link %s%s: %w", link, problem, context.Cause(ctx))
		}
	}
}

// MTU returns the MTU of pods as it is now, and a channel that is closed when
// it may have changed.
func (r *Routes) MTU() (MTU, <-chan struct{}, error) {
	rows, changed := r.Devices.AllWatch(r.DB.ReadTxn())
	m, err := findMTU(r.config, statedb.Collect(rows))
	return m, changed, err
}
