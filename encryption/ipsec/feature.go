package ipsec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/cluster"
	"myelin/internal/durable"
	"myelin/internal/table"
	"myelin/route"
)

// Feature is IPsec as a feature of the agent, in the place of WireGuard.
type Feature struct {
	*feature.Node
	// Routes are the node's; called when the feature starts.
	Routes func() *route.Routes
	// Attached reports whether the datapath's programs are attached to the device with an index, and returns a channel
	// that is closed when that may have changed.
	Attached func(index int) (bool, <-chan struct{})
	// Publish writes what other nodes derive keys from where they read it; called when the feature starts. nil: others
	// do, from the file.
	Publish func() func(ctx context.Context, node, value string) error
	// Obstacle notes what the start waits for, and reports whether it is new.
	Obstacle func(reason, help string) bool
	// Settings sets the constants that all types of encryption have.
	Settings func(*bpf.Settings)
	// Before is called first: it removes what other types of encryption have left.
	Before func() error

	ipsec     *IPsec
	published atomic.Pointer[error] // of the last try
}

// Feature returns the parts.
func (f *Feature) Feature() *feature.Feature {
	return &feature.Feature{
		Name: "encryption", Start: f.start, Stop: f.stop, Settings: f.settings, Counts: f.counts, Lists: f.lists,
		Status: func() []feature.Status { return []feature.Status{f.status()} }, Metrics: f.metrics,
	}
}

func (f *Feature) start(ctx context.Context) error {
	err := f.Before()
	if err != nil {
		return err
	}
	f.ipsec, err = open(Params{
		DB: f.DB, Log: f.Log, Group: f.Group, Node: f.Config.Myelin.NodeName, Options: f.Config.Encryption,
		IPv6: f.Config.TunnelIPv6(), RunDir: f.Config.Myelin.RunDir, BootID: bootIDFile, Nodes: f.Cluster.Nodes,
		Outside: f.Outside, Attached: f.Attached, Devices: f.Routes().Devices, MTU: f.Routes().MTU, Now: time.Now,
	})
	if err != nil {
		return err
	}
	publish := f.Publish()
	f.Go("publish epoch", func(ctx context.Context) error { return f.publish(ctx, publish) })
	return f.wait(ctx)
}

// stop leaves the device, states and policies: the datapath continues without the agent.
func (f *Feature) stop() error {
	if f.ipsec != nil {
		f.ipsec.Close()
	}
	return nil
}

func (f *Feature) settings(s *bpf.Settings) {
	s.Ipsec = 1
	f.Settings(s)
}

func (f *Feature) counts(txn statedb.ReadTxn) []feature.TableCount {
	return []feature.TableCount{
		feature.Count(txn, f.ipsec.Device, func(d *Device) *reconciler.Status { return &d.Status }),
		feature.Count(txn, f.ipsec.Peers, func(p *Peer) *reconciler.Status { return &p.Status }),
	}
}

// PublishedFile is where an agent with this run directory writes the annotation that other nodes are to see, for those
// who write the manifests.
func PublishedFile(runDir string) string { return filepath.Join(dir(runDir), "published") }

// publishAgain is how long to wait after an epoch could not be published.
const publishAgain = 2 * time.Second

// publish has this node's own row show its epoch and its newest key, which is how other nodes see them.
func (f *Feature) publish(ctx context.Context, write func(ctx context.Context, node, value string) error) error {
	name, failed := f.Config.Myelin.NodeName, ""
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		row, _, changed, ok := f.Cluster.Nodes.GetWatch(f.DB.ReadTxn(), cluster.NodeByName(name))
		value, valueChanged := f.ipsec.value()
		w.Add(changed, valueChanged[0], valueChanged[1])
		if value == (cluster.IPsec{}) {
			return nil
		}
		err := writeFile(PublishedFile(f.Config.Myelin.RunDir), value.String()+"\n")
		if write != nil && ok && row.IPsec != value {
			w.After(publishAgain) // as the watch may bring nothing
			err = errors.Join(err, write(ctx, name, value.String()))
		}
		f.published.Store(&err)
		if err != nil && err.Error() != failed && ctx.Err() == nil {
			failed = err.Error()
			f.Log.Warn("the epoch is not published: other nodes do not encrypt", "error", err)
		}
		return nil
	})
}

// writeFile writes the file if it says something else.
func writeFile(path, text string) error {
	if have, err := os.ReadFile(path); err == nil && string(have) == text {
		return nil
	}
	return durable.Write(path, []byte(text))
}

// value is what the node publishes: nothing before the states for it are made, as others encrypt at once.
func (e *IPsec) value() (cluster.IPsec, [2]<-chan struct{}) {
	secrets, changed := e.secrets()
	txn := e.params.DB.ReadTxn()
	peers, peersChanged := e.Peers.AllWatch(txn)
	watch := [2]<-chan struct{}{changed, peersChanged}
	if ready, initialized := e.Peers.Initialized(txn); !ready || len(secrets) == 0 {
		watch[1] = initialized
		return cluster.IPsec{}, watch
	}
	value := cluster.IPsec{Epoch: e.epochs.current(), Key: secrets[0].ID}
	for p := range peers {
		if p.Way.FromEpoch != value.Epoch || p.Keys[0] != value.Key || p.Status.Kind == reconciler.StatusKindPending {
			return cluster.IPsec{}, watch
		}
	}
	return value, watch
}

// wait returns when the device is there and a key is known, so that the agent never forwards in plain text what is to
// be encrypted.
func (f *Feature) wait(ctx context.Context) error {
	device := func() (*reconciler.Status, int, <-chan struct{}) {
		row, _, changed, ok := f.ipsec.Device.GetWatch(f.DB.ReadTxn(), deviceByName(DeviceName))
		if !ok {
			return nil, 0, changed
		}
		return &row.Status, row.Index, changed
	}
	key := func() (*reconciler.Status, int, <-chan struct{}) {
		secrets, changed := f.ipsec.secrets()
		status := reconciler.StatusDone()
		if len(secrets) == 0 {
			status = reconciler.StatusPending()
			if err := f.ipsec.keyError(); err != nil {
				status = reconciler.StatusError(err)
			}
		}
		return &status, len(secrets), changed
	}
	for _, of := range []struct {
		look       func() (*reconciler.Status, int, <-chan struct{})
		what, help string
	}{
		{key, "there is no key of IPsec", "create the Secret cilium-ipsec-keys, or set encryption.ipsec.mountPath"},
		{device, "the IPsec device can't be made yet", "load the kernel module xfrm_interface"},
	} {
		_, err := route.AwaitDevice(ctx, of.look, func(why string) {
			if f.Obstacle(of.what+": "+why, of.help) {
				f.Log.Warn(of.what, "error", why)
			}
		})
		if err != nil {
			return fmt.Errorf("wait for %s: %w", DeviceName, err)
		}
	}
	return nil
}
