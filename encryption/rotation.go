package encryption

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"myelin/cluster"
	"myelin/internal/table"
)

const (
	// rotateLook is between two looks for a key that Rotate has made, and steerTime between those at sessions while
	// keys rotate.
	rotateLook = time.Second
	steerTime  = 100 * time.Millisecond
	// rotationKeepalive has sessions made, whether or not there are packets.
	rotationKeepalive = time.Second
	// peersTime is how long a device is given to get all its peers. Of nodes with the same key one is none.
	peersTime = 5 * time.Second
	// quietTime is how long a device must have carried no packets before its key is changed or it is removed, and
	// maxQuiet how long it is waited for: a node goes on by the device while its agent does not run.
	quietTime = time.Second
	maxQuiet  = 3 * time.Minute
	// keepalivesSize is what WireGuard's keepalives may be in steerTime, in bytes: three of 32, no packet with data.
	keepalivesSize = 96
)

// rotating reports whether a node changes its key, and returning whether it has, and is reached by RotationDevice only
// until the usual one has sessions.
func rotating(n *cluster.Node) bool  { return n.WireGuardKey != "" && n.NextWireGuardKey != "" }
func returning(n *cluster.Node) bool { return rotating(n) && n.NextWireGuardKey == n.WireGuardKey }

// keyOn is the key of a node on a device. On RotationDevice a node that does not rotate has the key that it has anyway.
func keyOn(device string, n *cluster.Node) string {
	if device == RotationDevice && rotating(n) {
		return n.NextWireGuardKey
	}
	return n.WireGuardKey
}

// rotationKeepalive has one of both nodes make the sessions: the one that does not rotate its key, which learns of the
// other one's when that can answer. If both did so at once, WireGuard might drop the session that packets use already.
func (in *peerInput) rotationKeepalive(n *cluster.Node) time.Duration {
	switch {
	case !in.keys.rotating() || rotating(n) && in.node < n.Name:
		return rotationKeepalive
	case in.device.Name == RotationDevice:
		return 0
	default:
		return in.keepalive
	}
}

// public are the keys that other nodes may learn now, given those that they know: a new one when its device can answer.
func (e *Encryption) public(known *cluster.Node) (key, next string) {
	k, _ := e.keys.get()
	key, next = k.current.public, k.next.public
	if k.rotating() && !e.answers(RotationDevice, next) {
		next = known.NextWireGuardKey
	}
	if k.returning() && !e.answers(DeviceName, key) {
		key = known.WireGuardKey
	}
	return key, next
}

// answers reports whether a device has a key and its peers.
func (e *Encryption) answers(device, key string) bool {
	txn := e.params.DB.ReadTxn()
	row, _, ok := e.Device.Get(txn, deviceByName(device))
	if !ok || row.Index == 0 || row.PublicKey != key || row.Status.Kind != reconciler.StatusKindDone {
		return false
	}
	peers := map[string]bool{}
	for p := range e.Peers.All(txn) {
		if p.On == device && p.Status.Kind != reconciler.StatusKindPending {
			peers[p.Node] = true
		}
	}
	for n := range e.params.Nodes.All(txn) {
		if n.Name != e.params.Node && n.WireGuardKey != "" && !peers[n.Name] {
			return time.Since(row.Status.UpdatedAt) > peersTime
		}
	}
	return true
}

// rotation returns this node's keys, whether it or another node rotates one, and channels that are closed when that may
// have changed.
func (e *Encryption) rotation() (k keys, rotates bool, changed []<-chan struct{}) {
	if e.keys == nil {
		return k, false, nil
	}
	nodes, nodesChanged := e.params.Nodes.AllWatch(e.params.DB.ReadTxn())
	k, keysChanged := e.keys.get()
	rotates = k.rotating()
	for n := range nodes {
		rotates = rotates || n.Name != e.params.Node && rotating(n)
	}
	return k, rotates, []<-chan struct{}{nodesChanged, keysChanged}
}

// rotor has what a rotation looks back at.
type rotor struct {
	carried map[wgtypes.Key]int64 // bytes from and to the peers of a device
	quiet   time.Time             // since when there were no packets; zero: it was not looked
	since   time.Time             // of waiting for that
	failed  string                // the last error
}

// runRotation has packets to other nodes take the device that has sessions, while one of both rotates its key, and
// leads this node through its own rotation.
func (e *Encryption) runRotation(ctx context.Context, _ cell.Health) error {
	var r rotor
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		if !w.Initialized(e.params.DB.ReadTxn(), e.params.Nodes) {
			return nil // another node may rotate its key
		}
		_, rotates, changed := e.rotation()
		w.Add(changed...)
		w.After(rotateLook)
		err := e.begin(rotates)
		if _, rotates, _ = e.rotation(); rotates && err == nil {
			w.After(steerTime)
			err = e.steer(&r)
		}
		if !rotates && err == nil {
			r = rotor{failed: r.failed}
			err = e.writeDetours(nil)
		}
		if err != nil && err.Error() != r.failed {
			r.failed = err.Error()
			e.params.Log.Error("The rotation of keys does not go on", "error", err)
		}
		return nil
	})
}

// begin starts the rotation that Rotate has asked for. It waits while another node rotates its key, so that the device
// that packets take to that node keeps its key.
func (e *Encryption) begin(rotates bool) error {
	next, ok, err := e.keys.look()
	if err != nil {
		return err
	}
	defer e.keys.found() // when it has begun
	if !ok {
		return nil
	}
	self, _, known := e.params.Nodes.Get(e.params.DB.ReadTxn(), cluster.NodeByName(e.params.Node))
	begun := known && self.NextWireGuardKey == next.public // before the agent was restarted
	if rotates && !begun {
		return nil
	}
	e.params.Log.Info("The node rotates its key", "public", next.public)
	e.keys.begin(next)
	return nil
}

// steer looks at the sessions of both devices.
func (e *Encryption) steer(r *rotor) error {
	usual, beside, err := e.sessions()
	if missing(err) {
		return nil // a device is being made, or its process is not known yet
	}
	if err != nil {
		return err
	}
	k, _ := e.keys.get()
	txn := e.params.DB.ReadTxn()
	var detours []*cluster.Detour
	var self *cluster.Node
	waits := false // for a node that is alive, and has no session on the device to change to
	for n := range e.params.Nodes.All(txn) {
		if n.Name == e.params.Node {
			self = n
			continue
		}
		if n.WireGuardKey == "" || !k.rotating() && !rotating(n) {
			continue
		}
		at, to, from := RotationDevice, beside, usual
		goesBack := !(k.rotating() && !k.returning()) && !(rotating(n) && !returning(n))
		var after time.Time
		if goesBack {
			at, to, from = DeviceName, usual, beside
			if k.returning() {
				after = k.current.since
			}
		}
		_, _, detour := e.params.Detours.Get(txn, cluster.DetourOf(n.Name))
		if goesBack && session(from[keyOn(other(at), n)], time.Time{}) {
			detour = true // the agent was restarted
		}
		if session(to[keyOn(at, n)], after) && !(goesBack && k.unset) {
			detour = !goesBack
		}
		if detour {
			detours = append(detours, &cluster.Detour{Node: n.Name, Device: RotationDevice})
		}
		waits = waits || detour == goesBack && session(from[keyOn(other(at), n)], time.Time{})
	}
	if err := e.writeDetours(detours); err != nil {
		return err
	}
	if self != nil {
		if err := e.keys.announce(e.public(self)); err != nil {
			return err
		}
	}
	if waits || !k.rotating() || self == nil || !k.known(self) {
		r.quiet, r.since = time.Time{}, time.Time{}
		return nil
	}
	if k.returning() {
		return r.whenQuiet(beside, e.keys.finish)
	}
	return r.whenQuiet(usual, e.keys.commit)
}

func other(device string) string {
	if device == DeviceName {
		return RotationDevice
	}
	return DeviceName
}

// session reports whether a peer has a session that was made after a time.
func session(p *wgtypes.Peer, after time.Time) bool {
	return p != nil && p.LastHandshakeTime.After(after) && time.Since(p.LastHandshakeTime) < rejectAfter
}

// sessions are the peers of DeviceName and of RotationDevice.
func (e *Encryption) sessions() (usual, beside map[string]*wgtypes.Peer, err error) {
	if usual, err = e.peersOn(DeviceName); err == nil {
		beside, err = e.peersOn(RotationDevice)
	}
	return usual, beside, err
}

// peersOn are the peers of a device, by key.
func (e *Encryption) peersOn(device string) (map[string]*wgtypes.Peer, error) {
	d, err := e.control.Device(device)
	if err != nil {
		return nil, fmt.Errorf("read sessions of WireGuard device %s: %w", device, err)
	}
	peers := make(map[string]*wgtypes.Peer, len(d.Peers))
	for i := range d.Peers {
		peers[d.Peers[i].PublicKey.String()] = &d.Peers[i]
	}
	return peers, nil
}

// whenQuiet does what it is given when no packets have come from peers or gone to them for a while: prefixes in the
// datapath follow detours with a delay.
func (r *rotor) whenQuiet(peers map[string]*wgtypes.Peer, do func() error) error {
	now, carried, quiet := time.Now(), map[wgtypes.Key]int64{}, true
	for _, p := range peers {
		carried[p.PublicKey] = p.ReceiveBytes + p.TransmitBytes
		if was, ok := r.carried[p.PublicKey]; ok && carried[p.PublicKey]-was > keepalivesSize {
			quiet = false
		}
	}
	if r.carried = carried; r.since.IsZero() {
		r.since = now
	}
	if !quiet || r.quiet.IsZero() {
		r.quiet = now
	}
	if now.Sub(r.quiet) < quietTime && now.Sub(r.since) < maxQuiet {
		return nil
	}
	r.quiet, r.since, r.carried = time.Time{}, time.Time{}, nil
	return do()
}

// rotates says which nodes rotate their keys, empty if none does.
func (e *Encryption) rotates(txn statedb.ReadTxn) string {
	var list []string
	if k, _ := e.keys.get(); k.rotating() {
		list = append(list, "this node rotates its key")
	}
	for n := range e.params.Nodes.All(txn) {
		if n.Name != e.params.Node && rotating(n) {
			list = append(list, "node "+n.Name+" rotates its key")
		}
	}
	return strings.Join(list, ", ")
}
