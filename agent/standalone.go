package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"

	"myelin/cluster"
	"myelin/ipam"
	"myelin/route"
)

// standalone reports whether there is no cluster: Services come by API, and
// nobody makes pods or a Node object.
func (a *Agent) standalone() bool { return a.config.LoadBalancer.Standalone }

// startMachine is what reads the cluster where there is none: this machine,
// which is known when its devices are.
func (a *Agent) startMachine() {
	txn := a.db.WriteTxn(a.cluster.Nodes)
	a.machineKnown = a.cluster.Nodes.RegisterInitializer(txn, "machine")
	txn.Commit()
}

// findMachine makes the Node that nobody else makes, of the addresses that the
// wires have. From then on it follows them.
func (a *Agent) findMachine(ctx context.Context) error {
	var err error
	if a.ipam, err = ipam.New(); err != nil {
		return err
	}
	if err := a.assign(&ipam.Assignment{Node: a.config.Myelin.NodeName}); err != nil {
		return err
	}
	for {
		found, again := a.writeMachine()
		if found {
			break
		}
		if err := again.wait(ctx); err != nil {
			return fmt.Errorf("wait for the machine's devices: %w", err)
		}
	}
	a.group.Add(job.OneShot("machine", func(ctx context.Context, _ cell.Health) error {
		for {
			if _, again := a.writeMachine(); again.wait(ctx) != nil {
				return nil
			}
		}
	}))
	return nil
}

// writeMachine makes the Node what the machine is, and reports whether that was
// known. An address that is a frontend is the Service's and not the node's.
func (a *Agent) writeMachine() (known bool, again changes) {
	txn := a.db.WriteTxn(a.cluster.Nodes)
	defer txn.Abort()
	devices, devicesChanged := a.routes.Devices.AllWatch(txn)
	services, servicesChanged := a.serviceAPI.Services.AllWatch(txn)
	again = changes{devicesChanged, servicesChanged}
	node := &cluster.Node{Name: a.config.Myelin.NodeName, Source: "this machine"}
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
		return false, again
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
	if old, _, ok := a.cluster.Nodes.Get(txn, cluster.NodeByName(node.Name)); !ok || !old.Equal(node) {
		if _, _, err := a.cluster.Nodes.Insert(txn, node); err != nil {
			a.log.Error("the addresses of this machine are not known", "error", err)
			return false, again
		}
	}
	if a.machineKnown != nil {
		a.machineKnown(txn)
		a.machineKnown = nil
	}
	txn.Commit()
	return true, again
}
