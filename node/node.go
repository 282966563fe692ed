package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.org/x/time/rate"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/internal/table"
	"myelin/ipam"
	"myelin/route"
)

// Params are what New needs.
type Params struct {
	DB      *statedb.DB
	Log     *slog.Logger
	Group   job.Group // from table.Group, not yet started
	Config  Config
	Nodes   statedb.Table[*cluster.Node]
	Devices statedb.Table[*route.Device]
	// PodCIDRs says which podCIDRs of this node are in force; nil: those of the
	// Node object.
	PodCIDRs statedb.Table[*ipam.Assignment]
	// Outside are pods in no podCIDR of their Node; nil: there are none.
	Outside statedb.Table[*cluster.Outside]
	// Detours are other nodes that are reached by another WireGuard device; nil: there are none.
	Detours statedb.Table[*cluster.Detour]
	// Attached is kept; it may be nil.
	Attached *Attached
	// HostServes is on while the host itself is a backend of Services: what it
	// answers clients outside is then looked at where it leaves.
	HostServes *Switch
	// HostProbes is on while the host checks the health of backends by DSR.
	HostProbes *Switch
	Datapath   *bpf.Datapath
	Epochs     *bpf.Epochs
}

// reattach is how soon a program is put back that another program took off a wire:
// nothing tells of it.
const reattach = 30 * time.Second

// Node owns the tables of this package and makes the datapath equal to them.
type Node struct {
	Tables
	params Params
	// ready is called once, when the rows are derived from initialized sources.
	ready func(statedb.WriteTxn)
}

// New makes the tables and adds their reconcilers and loop to p.Group.
func New(p Params) (*Node, error) {
	t, err := newTables(p.DB)
	if err != nil {
		return nil, err
	}
	n := &Node{Tables: t, params: p}
	txn := p.DB.WriteTxn(t.Addresses, t.Wires, t.Prefixes)
	ready := []func(statedb.WriteTxn){
		t.Addresses.RegisterInitializer(txn, "derive"), t.Wires.RegisterInitializer(txn, "derive"),
		t.Prefixes.RegisterInitializer(txn, "derive"),
	}
	txn.Commit()
	n.ready = func(txn statedb.WriteTxn) {
		for _, done := range ready {
			done(txn)
		}
	}
	_, a := table.Register(p.Log, p.DB, p.Group, t.Addresses, func(r *Address) *reconciler.Status {
		return &r.Status
	}, &addressOps{p.Datapath, p.Epochs})
	_, w := table.Register(p.Log, p.DB, p.Group, t.Wires, func(r *Wire) *reconciler.Status {
		return &r.Status
	}, &wireOps{p.Datapath, p.Epochs, t.Wires, p.Config.XDP, p.Attached},
		reconciler.WithRefreshing(reattach, rate.NewLimiter(100, 1)))
	_, x := table.Register(p.Log, p.DB, p.Group, t.Prefixes, func(r *Prefix) *reconciler.Status {
		return &r.Status
	}, &prefixOps{p.Datapath, p.Epochs})
	if err := errors.Join(a, w, x); err != nil {
		return nil, err
	}
	p.Group.Add(job.OneShot("node", n.run))
	return n, nil
}

func (n *Node) run(ctx context.Context, _ cell.Health) error {
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		txn := n.params.DB.ReadTxn()
		nodes, nodesChanged := n.params.Nodes.AllWatch(txn)
		devices, devicesChanged := n.params.Devices.AllWatch(txn)
		known := w.Initialized(txn, n.params.Nodes)
		own, ownKnown, ownChanged := n.own(txn)
		outside := cluster.ReadOutsides(txn, n.params.Outside)
		detours := cluster.ReadDetours(txn, n.params.Detours)
		serves, servesChanged := n.params.HostServes.state()
		probes, probesChanged := n.params.HostProbes.state()
		s := state{
			Config: n.params.Config, nodes: statedb.Collect(nodes), devices: statedb.Collect(devices), own: own,
			outside: outside.ByNode, detours: detours.ByNode, serves: serves, probes: probes,
		}
		// Before to_wire is attached for more than probes.
		if err := n.params.Datapath.ProbesOnly.Set(s.probesOnly()); err != nil {
			return fmt.Errorf("set probes_only: %w", err)
		}
		// No kernel is without devices: none means that they were not read yet.
		complete := known && ownKnown && outside.Unknown == nil && len(s.devices) > 0
		d := derive(s)
		w.Add(nodesChanged, devicesChanged, ownChanged, outside.Changed, outside.Unknown, detours.Changed,
			servesChanged, probesChanged)
		return n.write(d, complete)
	})
}

// own is the row of this node's podCIDRs in force, nil if they are not assigned.
func (n *Node) own(txn statedb.ReadTxn) (row *ipam.Assignment, known bool, changed <-chan struct{}) {
	if n.params.PodCIDRs == nil {
		return nil, true, nil
	}
	row, _, changed, ok := n.params.PodCIDRs.GetWatch(txn, ipam.ByNode(n.params.Config.Name))
	if !ok {
		row = &ipam.Assignment{}
	}
	known, _ = n.params.PodCIDRs.Initialized(txn)
	return row, known, changed
}

// write makes the tables equal to d. Nothing is deleted before the sources are complete.
func (n *Node) write(d desired, complete bool) error {
	txn := n.params.DB.WriteTxn(n.Addresses, n.Wires, n.Prefixes)
	defer txn.Abort()
	_, a := table.Replace(txn, n.Addresses, n.Addresses.All(txn), d.addresses, (*Address).Equal)
	_, w := table.Replace(txn, n.Wires, n.Wires.All(txn), d.wires, (*Wire).Equal)
	_, p := table.Replace(txn, n.Prefixes, n.Prefixes.All(txn), d.prefixes, (*Prefix).Equal)
	if err := errors.Join(a, w, p); err != nil {
		return fmt.Errorf("write what the node is: %w", err)
	}
	if complete && n.ready != nil {
		n.ready(txn)
		n.ready = nil
	}
	txn.Commit()
	return nil
}
