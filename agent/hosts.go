package agent

import (
	"context"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
)

// hostPause bounds how often backends are compared with the node's addresses.
const hostPause = time.Second

// followHost has what the host sends by its wires looked at while the host is
// itself a backend of a Service: its answers to clients outside go in the
// Service's name.
func (a *Agent) followHost(ctx context.Context, _ cell.Health) error {
	for {
		txn := a.db.ReadTxn()
		backends, backendsChanged := a.services.Desired.Backends.AllWatch(txn)
		addresses, addressesChanged := a.node.Addresses.AllWatch(txn)
		own := map[netip.Addr]bool{}
		for x := range addresses {
			own[x.Addr] = true
		}
		serves := false
		for b := range backends {
			if serves = own[b.Address.Addr()]; serves {
				break
			}
		}
		a.hostServes.Set(serves)
		select {
		case <-backendsChanged:
		case <-addressesChanged:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-time.After(hostPause):
		case <-ctx.Done():
			return nil
		}
	}
}
