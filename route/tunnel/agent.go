package tunnel

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netns"

	"myelin/internal/table"
	"myelin/route"
)

// Params are what New needs.
type Params struct {
	DB    *statedb.DB
	Log   *slog.Logger
	Group job.Group // from table.Group, not yet started
	// Namespace is the network namespace to work in, nil for that of the
	// process. It must stay open until Close.
	Namespace *netns.NsHandle
	Node      string // name of this node
	Wanted    bool   // routing mode is tunnel
	Port      int    // UDP, 1..65535; 0: 8472
	// Devices is followed, so that a device that another program removes or changes is
	// put back.
	Devices statedb.Table[*route.Device]
	// MTU gives the MTU of pods now, and a channel that is closed when it or a
	// device may have changed; (*route.Routes).MTU does.
	MTU func() (route.MTU, <-chan struct{}, error)
}

// Tunnels owns the table of this package and makes the kernel equal to it.
type Tunnels struct {
	Table statedb.RWTable[*Tunnel]

	params Params
	kernel *route.Kernel
}

// New makes the table and adds its reconciler and loop to p.Group.
func New(p Params) (*Tunnels, error) {
	if p.Port == 0 {
		p.Port = defaultPort
	}
	if p.Port < 1 || p.Port > 65535 {
		return nil, fmt.Errorf("tunnel port %d is not within 1..65535", p.Port)
	}
	t, err := newTable(p.DB)
	if err != nil {
		return nil, fmt.Errorf("make table of tunnels: %w", err)
	}
	kernel, err := route.OpenKernel(p.Namespace)
	if err != nil {
		return nil, err
	}
	if _, err := table.Register(p.Log, p.DB, p.Group, t, statusOf, &ops{kernel}); err != nil {
		kernel.Close()
		return nil, err
	}
	tunnels := &Tunnels{Table: t, params: p, kernel: kernel}
	p.Group.Add(job.OneShot("tunnel", tunnels.run))
	return tunnels, nil
}

// Close closes the sockets; call it after the group has stopped. The device
// stays, for the datapath goes on without the agent.
func (t *Tunnels) Close() { t.kernel.Close() }

func (t *Tunnels) run(ctx context.Context, _ cell.Health) error {
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		changed, done, err := t.derive()
		w.Add(changed, done)
		return err
	})
}

// derive writes the row. The channels are closed when it is worth another look.
func (t *Tunnels) derive() (changed, done <-chan struct{}, err error) {
	mtu, changed, problem := t.params.MTU()
	want := &Tunnel{
		Name: DeviceName, Wanted: t.params.Wanted, Port: t.params.Port, MTU: mtu.Pod, MAC: macOf(t.params.Node),
		Status: reconciler.StatusPending(),
	}
	if problem != nil && want.Wanted {
		want.Problem = problem.Error()
	}
	done, err = table.Keep(t.params.DB, t.Table, ByName(DeviceName), want, table.Single[Tunnel]{
		Same: (*Tunnel).Equal, Fits: t.fits, Status: (*Tunnel).status, Found: (*Tunnel).found,
	})
	return changed, done, err
}

// fits reports whether the device is as the row says, as far as the device
// table shows it.
func (t *Tunnels) fits(txn statedb.ReadTxn, row *Tunnel) bool {
	d, _, ok := t.params.Devices.Get(txn, route.DeviceByName(row.Name))
	if !row.Wanted {
		return !ok || d.Type != "vxlan"
	}
	return ok && d.Index == row.Index && d.Up && d.MTU == row.MTU && d.MAC.String() == row.MAC.String()
}
