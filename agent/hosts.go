package agent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"

	"myelin/internal/table"
	servicemaps "myelin/service/maps"
)

// hostPause bounds how often backends are compared with the node's addresses.
const hostPause = time.Second

// followHost tells what the node's own addresses mean to Services: whether their
// ports have to be looked up, and whether the host is itself a backend. Then
// what it sends by its wires is looked at, as its answers to clients outside go
// in the Service's name.
func (sv *services) followHost(ctx context.Context, kernel *servicemaps.Kernel) error {
	var told map[netip.Addr]bool
	return table.Loop(ctx, hostPause, func(w *table.Watch) error {
		txn := sv.DB.ReadTxn()
		backends, backendsChanged := sv.services.Desired.Backends.AllWatch(txn)
		addresses, addressesChanged := sv.network.node.Addresses.AllWatch(txn)
		own := map[netip.Addr]bool{}
		for x := range addresses {
			own[x.Addr] = true
		}
		if len(own) > 0 && !maps.Equal(own, told) {
			if err := kernel.SetOwn(slices.Collect(maps.Keys(own))); err != nil {
				sv.Log.Error("packets to the node's own ports cost a look-up more", "error", err)
			} else {
				told = own
			}
		}
		serves := false
		for b := range backends {
			if serves = own[b.Address.Addr()]; serves {
				break
			}
		}
		sv.network.hostServes.Set(serves)
		w.Add(backendsChanged, addressesChanged)
		return nil
	})
}
