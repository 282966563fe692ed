package route

import (
	"context"
	"errors"
	"iter"

	"github.com/cilium/statedb"
)

// Clear removes from the kernel all routes, neighbours and addresses that an agent has put there: those with our
// protocol number. It is for a node that Myelin leaves; no agent may run.
func Clear(ctx context.Context, k *Kernel) error {
	routes, neighbours, hops, addresses := &routeOps{kernel: k}, &neighbourOps{k}, &nextHopOps{k}, &addressOps{k}
	return errors.Join(
		routes.Prune(ctx, nil, none[*Route]()), neighbours.Prune(ctx, nil, none[*Neighbour]()),
		hops.Prune(ctx, nil, none[*NextHop]()), addresses.Prune(ctx, nil, none[*Address]()),
	)
}

// none are no rows.
func none[Row any]() iter.Seq2[Row, statedb.Revision] {
	return func(func(Row, statedb.Revision) bool) {}
}
