// Package ipsec encrypts packets between nodes by IPsec: ESP in tunnel mode by the kernel's XFRM, with an XFRM
// interface that everything between pods and hosts of different nodes goes through.
package ipsec

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netns"

	"myelin/cluster"
	"myelin/encryption/options"
	"myelin/internal/table"
	"myelin/route"
)

// Params are what open needs.
type Params struct {
	DB    *statedb.DB
	Log   *slog.Logger
	Group job.Group // from table.Group
	// Namespace is the network namespace to work in, nil for that of the process. It must stay open until Close.
	Namespace *netns.NsHandle
	Node      string // name of this node
	Options   options.Options
	IPv6      bool   // nodes send encrypted packets to each other's IPv6 addresses
	RunDir    string // where the epoch and the keys in use are kept
	BootID    string // file, normally bootIDFile
	Nodes     statedb.Table[*cluster.Node]
	// Outside are pods in no podCIDR of their Node; nil: there are none.
	Outside statedb.Table[*cluster.Outside]
	// Attached reports whether programs are attached to the device with an index: only then states are made.
	Attached func(index int) (bool, <-chan struct{})
	// Devices is followed, so that a device that another program removes or changes is put back.
	Devices statedb.Table[*route.Device]
	// MTU gives the MTU of pods now, and a channel that is closed when it or a device may have changed.
	MTU func() (route.MTU, <-chan struct{}, error)
	Now func() time.Time
}

// IPsec owns the tables of this package and makes the kernel equal to them.
type IPsec struct {
	Device statedb.RWTable[*Device]
	Peers  statedb.RWTable[*Peer]

	params Params
	kernel *route.Kernel
	epochs *epochs
	peers  *peerOps
	ready  func(statedb.WriteTxn) // called once, when the peers are derived from initialized sources

	mu      sync.Mutex
	ring    *ring         // changed by runKeys only
	keyErr  error         // of the last reading of the key
	changed chan struct{} // closed when ring, keyErr or the epoch have changed
}

// dir is where an agent with this run directory keeps what IPsec needs.
func dir(runDir string) string { return filepath.Join(runDir, "ipsec") }

// open makes the tables and adds their reconcilers and loops to p.Group.
func open(p Params) (*IPsec, error) {
	e := &IPsec{params: p, changed: make(chan struct{})}
	var err error
	if e.Device, err = statedb.NewTable(p.DB, "ipsec-device", deviceName()); err != nil {
		return nil, fmt.Errorf("make table of the IPsec device: %w", err)
	}
	if e.Peers, err = statedb.NewTable(p.DB, "ipsec-peers", peerName()); err != nil {
		return nil, fmt.Errorf("make table of IPsec peers: %w", err)
	}
	if e.ring, err = openRing(filepath.Join(dir(p.RunDir), "keys"), p.Options.KeyRotation); err != nil {
		return nil, err
	}
	if e.epochs, err = openEpochs(dir(p.RunDir), p.BootID); err != nil {
		return nil, err
	}
	if e.kernel, err = route.OpenKernel(p.Namespace); err != nil {
		return nil, err
	}
	e.peers = &peerOps{kernel: e.kernel, epochs: e.epochs, renewed: e.notify, now: p.Now, retired: newRetired(),
		made: map[string]objects{}}
	if err := e.register(); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *IPsec) register() error {
	p := e.params
	txn := p.DB.WriteTxn(e.Peers)
	e.ready = e.Peers.RegisterInitializer(txn, "derive")
	txn.Commit()
	_, err := table.Register(p.Log, p.DB, p.Group, e.Device, func(d *Device) *reconciler.Status {
		return &d.Status
	}, &deviceOps{e.kernel})
	if err != nil {
		return err
	}
	if _, err := table.Register(p.Log, p.DB, p.Group, e.Peers, func(p *Peer) *reconciler.Status {
		return &p.Status
	}, e.peers); err != nil {
		return err
	}
	p.Group.Add(job.OneShot("ipsec-keys", e.runKeys), job.OneShot("ipsec-device", e.runDevice),
		job.OneShot("ipsec-peers", e.runPeers), job.OneShot("ipsec-states", e.runStates),
		job.OneShot("ipsec-retired", e.runRetired))
	return nil
}

// Close closes the sockets; call it after the group has stopped. Device, states and policies stay, for the datapath
// goes on without the agent.
func (e *IPsec) Close() {
	e.kernel.Close()
	e.epochs.close()
}

// notify has those woken that follow secrets and the epoch.
func (e *IPsec) notify() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.changed)
	e.changed = make(chan struct{})
}

// secrets are the keys in use, and a channel that is closed when these or the epoch may have changed.
func (e *IPsec) secrets() ([]held, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ring.list(), e.changed
}

func (e *IPsec) runDevice(ctx context.Context, _ cell.Health) error {
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		changed, done, err := e.deriveDevice()
		w.Add(changed, done)
		return err
	})
}

// deriveDevice writes the row of the device. The channels are closed when it is worth another look.
func (e *IPsec) deriveDevice() (changed, done <-chan struct{}, err error) {
	mtu, changed, problem := e.params.MTU()
	want := &Device{Name: DeviceName, MTU: mtu.Pod, Status: reconciler.StatusPending()}
	if problem != nil {
		want.Problem = problem.Error()
	}
	done, err = table.Keep(e.params.DB, e.Device, deviceByName(DeviceName), want, table.Single[Device]{
		Same: (*Device).Equal, Fits: e.fits, Status: (*Device).status, Found: (*Device).found,
	})
	return changed, done, err
}

// fits reports whether the device is as the row says, as far as the device table shows it.
func (e *IPsec) fits(txn statedb.ReadTxn, row *Device) bool {
	d, _, ok := e.params.Devices.Get(txn, route.DeviceByName(row.Name))
	return ok && d.Index == row.Index && d.Up && d.MTU == row.MTU
}

// runPeers follows nodes, pods outside of podCIDRs, the device and the keys. Peers have no states before programs are
// attached to the device: what is decrypted before would reach the kernel's network stack, which forwards it and
// answers with errors in plain text.
func (e *IPsec) runPeers(ctx context.Context, _ cell.Health) error {
	had := 0 // the device to which programs were attached: states stay if they are attached anew
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		secrets, secretsChanged := e.secrets()
		txn := e.params.DB.ReadTxn()
		nodes, nodesChanged := e.params.Nodes.AllWatch(txn)
		device, _, deviceChanged, _ := e.Device.GetWatch(txn, deviceByName(DeviceName))
		outside := cluster.ReadOutsides(txn, e.params.Outside)
		complete := w.Initialized(txn, e.params.Nodes) && outside.Unknown == nil
		w.Add(nodesChanged, deviceChanged, outside.Changed, outside.Unknown, secretsChanged)
		in := peerInput{node: e.params.Node, epoch: e.epochs.current(), ipv6: e.params.IPv6, secrets: secrets,
			nodes: statedb.Collect(nodes), outside: outside.ByNode}
		if device != nil && device.Index != 0 {
			attached, changed := e.params.Attached(device.Index)
			w.Add(changed)
			if attached {
				had = device.Index
			}
			if had == device.Index {
				in.device = had
			}
		}
		return e.writePeers(derivePeers(in), complete && in.device != 0 && len(secrets) > 0)
	})
}

func (e *IPsec) writePeers(peers []*Peer, complete bool) error {
	txn := e.params.DB.WriteTxn(e.Peers)
	defer txn.Abort()
	if _, err := table.Replace(txn, e.Peers, e.Peers.All(txn), peers, (*Peer).Equal); err != nil {
		return fmt.Errorf("write peers: %w", err)
	}
	if complete && e.ready != nil {
		e.ready(txn)
		e.ready = nil
	}
	txn.Commit()
	return nil
}

// verifyEvery is how often the kernel's states are compared with those that were made.
const verifyEvery = 30 * time.Second

// runStates has the rows of nodes worked on again whose states another program has removed.
func (e *IPsec) runStates(ctx context.Context, _ cell.Health) error {
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		w.After(verifyEvery)
		have, err := listStates(e.kernel)
		if err != nil {
			e.params.Log.Warn("states of IPsec are not verified", "error", err)
			return nil
		}
		return e.again(e.peers.lost(have))
	})
}

// again has nodes' rows worked on once more.
func (e *IPsec) again(nodes []string) error {
	if len(nodes) == 0 {
		return nil
	}
	txn := e.params.DB.WriteTxn(e.Peers)
	defer txn.Abort()
	for _, node := range nodes {
		row, _, ok := e.Peers.Get(txn, peerOf(node))
		if !ok {
			continue
		}
		again := *row
		again.Status = reconciler.StatusPending()
		if _, _, err := e.Peers.Insert(txn, &again); err != nil {
			return fmt.Errorf("write peer: %w", err)
		}
	}
	txn.Commit()
	return nil
}
