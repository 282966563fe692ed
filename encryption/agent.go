// Package encryption keeps the WireGuard device that everything between pods and hosts of different nodes goes through:
// the node's key, the device, and the other nodes as its peers.
package encryption

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/cilium/hive/cell"
	"github.com/cilium/hive/job"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/vishvananda/netns"
	"golang.zx2c4.com/wireguard/wgctrl"

	"myelin/cluster"
	"myelin/encryption/options"
	"myelin/internal/durable"
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
	RunDir    string // where the key is
	LogFormat string // of processes that are started
	Nodes     statedb.Table[*cluster.Node]
	// Outside are pods in no podCIDR of their Node; nil: there are none.
	Outside statedb.Table[*cluster.Outside]
	// Attached reports whether programs are attached to the device with an index: only then it may get packets.
	Attached func(index int) (bool, <-chan struct{})
	// Detours is written: which nodes are reached by RotationDevice.
	Detours statedb.RWTable[*cluster.Detour]
	// Devices is followed, so that a device that another program removes or changes is put back.
	Devices statedb.Table[*route.Device]
	// MTU gives the MTU of pods now, and a channel that is closed when it or a device may have changed.
	MTU func() (route.MTU, <-chan struct{}, error)
}

// Encryption owns the tables of this package and makes the kernel equal to them.
type Encryption struct {
	Device statedb.RWTable[*Device]
	Peers  statedb.RWTable[*Peer]

	params  Params
	kernel  *route.Kernel
	control *either
	keys    *keyring               // nil without encryption
	detours *durable.Map[string]   // devices of params.Detours by node; nil without encryption
	ready   func(statedb.WriteTxn) // called once, when the peers are derived from initialized sources
}

// missing reports whether err says that there is no WireGuard device of that name.
func missing(err error) bool { return errors.Is(err, os.ErrNotExist) }

// open makes the tables and adds their reconcilers and loops to p.Group. The key is made if there is none, but only
// with encryption enabled.
func open(p Params) (*Encryption, error) {
	e := &Encryption{params: p}
	var err error
	if e.Device, err = statedb.NewTable(p.DB, "encryption-device", deviceName()); err != nil {
		return nil, fmt.Errorf("make table of the WireGuard device: %w", err)
	}
	if e.Peers, err = statedb.NewTable(p.DB, "encryption-peers", peerKey()); err != nil {
		return nil, fmt.Errorf("make table of WireGuard peers: %w", err)
	}
	if p.Options.Enabled {
		if e.keys, err = openKeyring(p.RunDir); err != nil {
			return nil, err
		}
		if err := e.openDetours(); err != nil {
			return nil, err
		}
	}
	if e.kernel, err = route.OpenKernel(p.Namespace); err != nil {
		return nil, err
	}
	e.control = &either{processes: newProcesses(p)}
	err = e.kernel.Do(func() (err error) {
		e.control.kernel, err = wgctrl.New()
		return err
	})
	if err != nil {
		e.kernel.Close()
		return nil, fmt.Errorf("open WireGuard's netlink: %w", err)
	}
	if err := e.register(); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

func (e *Encryption) register() error {
	p := e.params
	txn := p.DB.WriteTxn(e.Peers)
	e.ready = e.Peers.RegisterInitializer(txn, "derive")
	txn.Commit()
	_, err := table.Register(p.Log, p.DB, p.Group, e.Device, (*Device).status,
		&deviceOps{e.kernel, e.control, e.control.processes, e.keys})
	if err != nil {
		return err
	}
	p.Group.Add(job.OneShot("encryption-device", e.runDevice))
	if !p.Options.Enabled {
		return nil
	}
	if _, err := table.Register(p.Log, p.DB, p.Group, e.Peers, func(p *Peer) *reconciler.Status {
		return &p.Status
	}, &peerOps{e.control, map[string]*allowed{DeviceName: {}, RotationDevice: {}}}); err != nil {
		return err
	}
	p.Group.Add(job.OneShot("encryption-peers", e.runPeers))
	p.Group.Add(job.OneShot("encryption-rotation", e.runRotation))
	return nil
}

// Close closes the sockets; call it after the group has stopped. The device stays, for the datapath goes on without the
// agent.
func (e *Encryption) Close() {
	e.kernel.Close()
	_ = e.control.Close()
}

func (e *Encryption) runDevice(ctx context.Context, _ cell.Health) error {
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		k, rotates, changed := e.rotation()
		_, ended := e.control.processes.instance(DeviceName)
		w.Add(ended)
		w.Add(changed...)
		known := !e.params.Options.Enabled ||
			w.Initialized(e.params.DB.ReadTxn(), e.params.Nodes) && e.keys.looked()
		for _, name := range DeviceNames() {
			if name == RotationDevice && !known {
				continue // a rotation that the agent was restarted in goes on
			}
			want := &Device{
				Name: name, Wanted: e.params.Options.Enabled, Port: portOf(name), PublicKey: k.current.public,
				Status: reconciler.StatusPending(),
			}
			if name == RotationDevice {
				want.Wanted, want.PublicKey = rotates, cmp.Or(k.next.public, k.current.public)
			}
			changed, done, err := e.deriveDevice(want)
			if err != nil {
				return err
			}
			w.Add(changed, done)
		}
		return nil
	})
}

// deriveDevice writes the row of a device. The channels are closed when it is worth another look.
func (e *Encryption) deriveDevice(want *Device) (changed, done <-chan struct{}, err error) {
	mtu, changed, problem := e.params.MTU()
	want.MTU = mtu.Pod
	if problem != nil && want.Wanted {
		want.Problem = problem.Error()
	}
	done, err = table.Keep(e.params.DB, e.Device, deviceByName(want.Name), want, table.Single[Device]{
		Same: (*Device).Equal, Fits: e.fits, Status: (*Device).status, Found: (*Device).found,
	})
	return changed, done, err
}

// fits reports whether the device is as the row says, as far as the device table shows it.
func (e *Encryption) fits(txn statedb.ReadTxn, row *Device) bool {
	d, _, ok := e.params.Devices.Get(txn, route.DeviceByName(row.Name))
	if !row.Wanted {
		return !ok || !slices.Contains(deviceTypes(), d.Type)
	}
	instance, _ := e.control.processes.instance(row.Name)
	return ok && instance == row.Instance && d.Index == row.Index && d.Up && d.MTU == row.MTU
}

// runPeers follows nodes, pods outside of podCIDRs, and the device.
func (e *Encryption) runPeers(ctx context.Context, _ cell.Health) error {
	had := map[int]bool{} // programs, by index of the device: sessions stay if they are attached anew
	greeted := ""         // the device whose first peers are known
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		txn := e.params.DB.ReadTxn()
		nodes, nodesChanged := e.params.Nodes.AllWatch(txn)
		devices, devicesChanged := e.Device.AllWatch(txn)
		outside := cluster.ReadOutsides(txn, e.params.Outside)
		complete := w.Initialized(txn, e.params.Nodes) && outside.Unknown == nil
		k, keysChanged := e.keys.get()
		w.Add(nodesChanged, devicesChanged, keysChanged, outside.Changed, outside.Unknown)
		in := peerInput{
			node: e.params.Node, keys: k, ipv6: e.params.IPv6, keepalive: e.params.Options.Keepalive,
			nodes: statedb.Collect(nodes), outside: outside.ByNode,
		}
		with, all := usable(devices, func(index int) bool {
			attached, changed := e.params.Attached(index)
			w.Add(changed)
			had[index] = had[index] || attached
			return had[index]
		})
		var peers []*Peer
		for _, device := range with {
			in.device, in.greet = device, false
			if of := device.of(); device.lostSessions(k.current) && greeted != of {
				in.greet = true
				if complete {
					greeted = of
				}
			}
			peers = append(peers, derivePeers(in)...)
		}
		return e.writePeers(peers, complete && all)
	})
}

func (e *Encryption) writePeers(peers []*Peer, complete bool) error {
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
