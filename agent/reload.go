package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/cilium/statedb/reconciler"

	"myelin/bpf"
	"myelin/internal/table"
	"myelin/route/tunnel"
)

// restarts counts how often the features were started again in the process.
type restarts struct {
	count int
	why   string         // of the last one
	at    time.Time      // of the last one
	need  map[string]int // rows that maps must have room for
}

// reloadPause is the least time from an agent's being ready to its reload, so
// that what changes all the time does not keep it from anything else.
const reloadPause = 2 * time.Second

// watchReload asks for another life of the agent when what the programs were
// loaded with is no more so: those values are constants of theirs. The next
// life loads programs beside and replaces them, as an upgrade does; there is
// one for each change, as it loads them with what is so then.
func (a *agent) watchReload(ctx context.Context) error {
	for {
		txn := a.DB.ReadTxn()
		_, tunnels := a.network.tunnels.Table.AllWatch(txn)
		_, podCIDRs := a.own.podCIDRs.AllWatch(txn)
		var w table.Watch
		w.Add(tunnels, podCIDRs)
		why, ifNoPods := a.stale()
		if ifNoPods {
			_, pods := a.endpoints.table.AllWatch(txn)
			w.Add(pods)
		}
		if why == "" {
			if err := w.Wait(ctx); err != nil {
				return nil
			}
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Until(a.began.Add(a.readyAfter() + reloadPause))):
		}
		// It may be over by now.
		if why, _ = a.stale(); why != "" {
			a.reload <- why
			return nil
		}
	}
}

// stale says what of the programs' constants is no more so, empty if all is.
// ifNoPods: something would be, if there were no pods.
func (a *agent) stale() (why string, ifNoPods bool) {
	txn := a.DB.ReadTxn()
	row, _, ok := a.network.tunnels.Table.Get(txn, tunnel.ByName(tunnel.DeviceName))
	if a.Config.Tunneled() && ok && row.Status.Kind == reconciler.StatusKindDone && row.Index != 0 &&
		uint32(row.Index) != a.Loaded.TunnelIfindex {
		return fmt.Sprintf("the tunnel's device %s is another one: index %d became %d",
			row.Name, a.Loaded.TunnelIfindex, row.Index), false
	}
	v4, v6 := a.own.assignment().Fresh()
	if bpf.Addr(v4) == a.Loaded.Gateway4 && bpf.Addr(v6) == a.Loaded.Gateway6 {
		return "", false
	}
	if a.endpoints.table.NumObjects(txn) > 0 {
		return "", true
	}
	return fmt.Sprintf("the last pod with the gateways of former podCIDRs has gone: they become %s and %s",
		v4, v6), true
}
