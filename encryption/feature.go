package encryption

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/cluster"
	"myelin/internal/table"
	"myelin/route"
)

// Feature is encryption as a feature of the agent. It starts after routes and before the datapath, so that packets are
// encrypted from the first one on.
type Feature struct {
	*feature.Node
	Version string // of the agent
	// Routes are the node's; called when the feature starts.
	Routes func() *route.Routes
	// Attached reports whether the datapath's programs are attached to the device with an index, and returns a channel
	// that is closed when that may have changed.
	Attached func(index int) (bool, <-chan struct{})
	// Publish writes the node's public key where other nodes read it; called when the feature starts. nil: others do,
	// from the file.
	Publish func() func(ctx context.Context, node, key, next string) error
	// PublishIPsec does so with what other nodes derive the keys of IPsec from.
	PublishIPsec func() func(ctx context.Context, node, value string) error
	// Obstacle notes what the start waits for, and reports whether it is new.
	Obstacle func(reason, help string) bool

	encryption *Encryption
	published  atomic.Pointer[error] // of the last try
}

// Feature returns the parts.
func (f *Feature) Feature() *feature.Feature {
	if f.Config.Encryption.UsesIPsec() {
		return f.byIPsec()
	}
	return &feature.Feature{
		Name: "encryption", Start: f.start, Stop: f.stop, Settings: f.settings, Counts: f.counts, Lists: f.lists,
		Metrics: f.metrics, Checks: checks(),
		Commands: commands(), Status: func() []feature.Status { return []feature.Status{f.status()} },
		Rights: rights(),
	}
}

func (f *Feature) start(ctx context.Context) error {
	err := removeIPsec()
	if err != nil {
		return err
	}
	f.encryption, err = open(Params{
		DB: f.DB, Log: f.Log, Group: f.Group, Node: f.Config.Myelin.NodeName, Options: f.Config.Encryption,
		IPv6: f.Config.TunnelIPv6(), RunDir: f.Config.Myelin.RunDir, LogFormat: f.Config.Myelin.LogFormat,
		Nodes: f.Cluster.Nodes, Outside: f.Outside, Detours: f.Detours, Devices: f.Routes().Devices,
		MTU: f.Routes().MTU, Attached: f.Attached,
	})
	if err != nil || !f.Config.Encryption.Enabled {
		return err
	}
	if publish := f.Publish(); publish != nil {
		f.Go("publish key", func(ctx context.Context) error { return f.publish(ctx, publish) })
	}
	return f.wait(ctx)
}

// publishAgain is how long to wait after a key could not be published.
const publishAgain = 2 * time.Second

// publish has this node's own row show its key, which is how other nodes see it.
func (f *Feature) publish(ctx context.Context, write func(ctx context.Context, node, key, next string) error) error {
	name, failed := f.Config.Myelin.NodeName, ""
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		row, _, changed, ok := f.Cluster.Nodes.GetWatch(f.DB.ReadTxn(), cluster.NodeByName(name))
		_, deviceChanged := f.encryption.Device.AllWatch(f.DB.ReadTxn())
		k, keysChanged := f.encryption.keys.get()
		w.Add(changed, deviceChanged, keysChanged)
		if k.rotating() { // peers count, too
			w.After(steerTime)
		}
		if !ok {
			return nil
		}
		key, next := f.encryption.public(row)
		if row.WireGuardKey == key && row.NextWireGuardKey == next {
			return nil
		}
		w.After(publishAgain) // as the watch may bring nothing
		err := write(ctx, name, key, next)
		f.published.Store(&err)
		if err != nil && err.Error() != failed && ctx.Err() == nil {
			failed = err.Error()
			f.Log.Warn("the key is not published: other nodes do not encrypt", "error", err)
		}
		return nil
	})
}

// stop leaves the device and its peers: the datapath continues without the agent.
func (f *Feature) stop() error {
	if f.encryption != nil {
		f.encryption.Close()
	}
	return nil
}

func (f *Feature) settings(s *bpf.Settings) {
	setDatapath(f.Config, s)
}

func (f *Feature) counts(txn statedb.ReadTxn) []feature.TableCount {
	return []feature.TableCount{
		feature.Count(txn, f.encryption.Device, func(d *Device) *reconciler.Status { return &d.Status }),
		feature.Count(txn, f.encryption.Peers, func(p *Peer) *reconciler.Status { return &p.Status }),
	}
}

// wait returns when the device is there, so that the agent never forwards in plain text what is to be encrypted.
func (f *Feature) wait(ctx context.Context) error {
	look := func() (*reconciler.Status, int, <-chan struct{}) {
		row, _, changed, ok := f.encryption.Device.GetWatch(f.DB.ReadTxn(), deviceByName(DeviceName))
		if !ok {
			return nil, 0, changed
		}
		return &row.Status, row.Index, changed
	}
	_, err := route.AwaitDevice(ctx, look, func(why string) {
		if f.Obstacle("the WireGuard device can't be made yet: "+why,
			"load the kernel module wireguard, or change what the error names") {
			f.Log.Warn("the WireGuard device can't be made yet", "error", why)
		}
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w", DeviceName, err)
	}
	return nil
}
