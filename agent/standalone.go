package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"myelin/cluster"
	"myelin/internal/table"
	"myelin/ipam"
	"myelin/route"
)

// startMachine is what reads the cluster where there is none: this machine,
// which is known when its devices are.
func (o *ownNode) startMachine() {
	txn := o.DB.WriteTxn(o.Cluster.Nodes)
	o.machineKnown = o.Cluster.Nodes.RegisterInitializer(txn, "machine")
	txn.Commit()
}

// findMachine makes the Node, which has no other source in standalone mode, of the addresses that the wires have. From
// then on it follows them.
func (o *ownNode) findMachine(ctx context.Context) error {
	var err error
	if o.ipam, err = ipam.New(); err != nil {
		return err
	}
	if err := o.assign(&ipam.Assignment{Node: o.Config.Myelin.NodeName}); err != nil {
		return err
	}
	for {
		var w table.Watch
		if o.writeMachine(&w) {
			break
		}
		if err := w.Wait(ctx); err != nil {
			return fmt.Errorf("wait for the machine's devices: %w", err)
		}
	}
	o.Go("machine", func(ctx context.Context) error {
		return table.Loop(ctx, 0, func(w *table.Watch) error {
			o.writeMachine(w)
			return nil
		})
	})
	return nil
}

// writeMachine makes the Node what the machine is, and reports whether that was
// known. An address that is a frontend is the Service's and not the node's.
func (o *ownNode) writeMachine(w *table.Watch) (known bool) {
	txn := o.DB.WriteTxn(o.Cluster.Nodes)
	defer txn.Abort()
	devices, devicesChanged := o.network.routes.Devices.AllWatch(txn)
	services, servicesChanged := o.services.api.Services.AllWatch(txn)
	w.Add(devicesChanged, servicesChanged)
	node := &cluster.Node{Name: o.Config.Myelin.NodeName, Source: "this machine"}
	for d := range devices {
		known = true // no kernel is without devices
		if d.Kind != route.Wire {
			continue
		}
		for _, p := range d.Addresses {
			node.Addresses = append(node.Addresses, p.Addr())
		}
	}
	if !known {
		return false
	}
	frontends := map[netip.Addr]bool{}
	for s := range services {
		for _, f := range s.Frontends {
			frontends[f.Addr()] = true
		}
	}
	node.Addresses = slices.DeleteFunc(node.Addresses, func(addr netip.Addr) bool {
		return cluster.Unusable(addr) != "" || addr.IsLinkLocalUnicast() || frontends[addr]
	})
	if old, _, ok := o.Cluster.Nodes.Get(txn, cluster.NodeByName(node.Name)); !ok || !old.Equal(node) {
		if _, _, err := o.Cluster.Nodes.Insert(txn, node); err != nil {
			o.Log.Error("the addresses of this machine are not known", "error", err)
			return false
		}
	}
	if o.machineKnown != nil {
		o.machineKnown(txn)
		o.machineKnown = nil
	}
	txn.Commit()
	return true
}
