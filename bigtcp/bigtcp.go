// Package bigtcp sets the GSO and GRO sizes of wires and pod links, so that TCP hands packets of more than 64 KiB to
// the datapath (BIG TCP).
package bigtcp

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netns"

	"myelin/endpoint"
	"myelin/internal/table"
	"myelin/route"
)

// Params are what open needs.
type Params struct {
	DB    *statedb.DB
	Log   *slog.Logger
	Group job.Group // from table.Group
	// Namespace is the network namespace to work in, nil for that of the process. It must stay open until Close.
	Namespace  *netns.NsHandle
	IPv4, IPv6 bool // wanted
	// Release is that of the kernel, as uname(2) says.
	Release   string
	RunDir    string // where the original sizes are
	Devices   statedb.Table[*route.Device]
	Endpoints statedb.Table[*endpoint.Endpoint]
}

// BigTCP owns the table of this package and makes the kernel equal to it.
type BigTCP struct {
	Devices statedb.RWTable[*Device]

	params Params
	kernel *route.Kernel
	before *originals
	plan   atomic.Pointer[plan] // the last one, nil before
}

// open makes the table and adds its reconciler and loop to p.Group.
func open(p Params) (*BigTCP, error) {
	b := &BigTCP{params: p}
	var err error
	if b.Devices, err = statedb.NewTable(p.DB, "bigtcp-devices", deviceName()); err != nil {
		return nil, fmt.Errorf("make table of BIG TCP: %w", err)
	}
	if b.before, err = openOriginals(filepath.Join(p.RunDir, File)); err != nil {
		return nil, err
	}
	if b.kernel, err = route.OpenKernel(p.Namespace); err != nil {
		return nil, err
	}
	if _, err = table.Register(p.Log, p.DB, p.Group, b.Devices, statusOf, &ops{b.kernel, b.before}); err != nil {
		b.Close()
		return nil, err
	}
	p.Group.Add(job.OneShot("bigtcp", b.run))
	return b, nil
}

// Close closes the sockets; call it after the group has stopped. Sizes stay: the datapath goes on without the agent.
func (b *BigTCP) Close() { b.kernel.Close() }

func (b *BigTCP) wanted() bool { return b.params.IPv4 || b.params.IPv6 }

// run follows devices and endpoints. Without BIG TCP it ends when no size is left to restore.
func (b *BigTCP) run(ctx context.Context, _ cell.Health) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		txn := b.params.DB.ReadTxn()
		devices, devicesChanged := b.params.Devices.AllWatch(txn)
		endpoints, endpointsChanged := b.params.Endpoints.AllWatch(txn)
		complete := w.Initialized(txn, b.params.Endpoints)
		w.Add(devicesChanged, endpointsChanged)
		in := input{
			ipv4: b.params.IPv4, ipv6: b.params.IPv6, together: comparesTogether(b.params.Release),
			devices: statedb.Collect(devices), pods: statedb.Collect(endpoints), kept: b.before.names(),
		}
		p := derive(in)
		if len(in.devices) == 0 {
			return nil // not read yet
		}
		if err := b.write(p.devices, in.devices); err != nil {
			return err
		}
		b.plan.Store(&p)
		if !b.wanted() && complete && len(p.devices) == 0 {
			cancel()
		}
		return nil
	})
}

// write makes the rows equal to what is wanted. Those of devices that another program has changed are pending again.
func (b *BigTCP) write(rows []*Device, devices []*route.Device) error {
	sizes := map[int]route.Sizes{}
	for _, d := range devices {
		sizes[d.Index] = d.Sizes
	}
	same := func(old, row *Device) bool {
		have, ok := sizes[old.Index]
		return old.Equal(row) && !(ok && old.Status.Kind == reconciler.StatusKindDone && fill(old.Want, have) != have)
	}
	txn := b.params.DB.WriteTxn(b.Devices)
	defer txn.Abort()
	changed, err := table.Replace(txn, b.Devices, b.Devices.All(txn), rows, same)
	if err != nil {
		return fmt.Errorf("write devices of BIG TCP: %w", err)
	}
	if changed > 0 {
		txn.Commit()
	}
	return nil
}

// podPatience bounds how long a new pod waits for its sizes: it works without them.
const podPatience = time.Second

// WaitPod returns when both ends of a pod link have their sizes, or can't get them. Connections keep the sizes that the
// device had when they began.
func (b *BigTCP) WaitPod(ctx context.Context, link string) {
	if !b.wanted() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, podPatience)
	defer cancel()
	_ = table.Loop(ctx, 0, func(w *table.Watch) error {
		if p := b.plan.Load(); p != nil && !p.on {
			cancel()
		}
		row, _, changed, ok := b.Devices.GetWatch(b.params.DB.ReadTxn(), deviceByName(link))
		w.Add(changed)
		if ok && row.Status.Kind != reconciler.StatusKindPending {
			cancel()
		}
		return nil
	})
}

// comparesTogether reports whether the kernel compares packets of IPv4 with the GSO size of IPv6, too, and segments
// those that are larger itself (gso_features_check; since 6.12 each family has its own).
func comparesTogether(release string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major < 6 || major == 6 && minor < 12
}
