package encryption

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"myelin/cluster"
	"myelin/encryption/options"
)

// Peer is another node as a WireGuard device knows it. Its primary key is the device and the public key: a node with
// another key is another peer.
type Peer struct {
	On        string         `json:"on"` // name of the device
	PublicKey string         `json:"publicKey"`
	Node      string         `json:"node"`
	Endpoint  netip.AddrPort `json:"endpoint"`
	// AllowedIPs are the prefixes that packets to the peer have as destination, and those from it as source.
	AllowedIPs []netip.Prefix `json:"allowedIPs"`
	Keepalive  time.Duration  `json:"keepalive,omitempty"`
	// Device is the index of the device that has the peer: another device starts without peers.
	Device int `json:"device"`
	// Instance is the process that is the device.
	Instance string `json:"instance,omitempty"`
	// Greet has it get a packet at once when it is added to the device.
	Greet   bool              `json:"greet,omitempty"`
	Problem string            `json:"problem,omitempty"`
	Status  reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same. Greet is for the first of them.
func (p *Peer) Equal(o *Peer) bool {
	return p.On == o.On && p.PublicKey == o.PublicKey && p.Node == o.Node && p.Endpoint == o.Endpoint &&
		slices.Equal(p.AllowedIPs, o.AllowedIPs) && p.Keepalive == o.Keepalive && p.Device == o.Device &&
		p.Instance == o.Instance && p.Problem == o.Problem
}

// TableHeader names the columns of TableRow.
func (*Peer) TableHeader() []string {
	return []string{"Node", "Public key", "Endpoint", "Allowed IPs", "Status"}
}

// TableRow is the row as text.
func (p *Peer) TableRow() []string {
	return []string{p.Node, p.PublicKey, p.Endpoint.String(), joinPrefixes(p.AllowedIPs), p.Status.String()}
}

func joinPrefixes(list []netip.Prefix) string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.String()
	}
	return strings.Join(texts, ",")
}

func peerKey() statedb.Index[*Peer, string] {
	return statedb.Index[*Peer, string]{
		Name:       "key",
		FromObject: func(p *Peer) index.KeySet { return index.NewKeySet(index.String(p.On + " " + p.PublicKey)) },
		FromKey:    index.String, FromString: index.FromString, Unique: true,
	}
}

func peerByKey(device, key string) statedb.Query[*Peer] {
	i := peerKey()
	return i.Query(device + " " + key)
}

// peerInput is all that peers are derived from.
type peerInput struct {
	node      string // name of this node
	keys      keys   // of this node
	device    *Device
	ipv6      bool // nodes send to each other's IPv6 addresses
	keepalive time.Duration
	greet     bool // peers, as they may have sessions with a device that was there before
	nodes     []*cluster.Node
	outside   map[string][]netip.Prefix // pods in no podCIDR of their Node, by node
}

// usable are the devices that are given peers, and whether these are all that are to be there: while one is not known,
// its peers would be taken for those of nodes that left. A device gets peers when programs are attached to it: without
// peers it has no sessions, and what it decrypts before would reach the kernel's network stack, which forwards it and
// answers with errors in plain text.
func usable(devices iter.Seq2[*Device, statedb.Revision], attached func(index int) bool) (with []*Device, all bool) {
	known := 0
	for d := range devices {
		switch {
		case !d.Wanted:
			known++
		case d.Index != 0 && attached(d.Index):
			known++
			with = append(with, d)
		}
	}
	return with, known == len(DeviceNames())
}

// derivePeers is a pure function: one peer of the device for each other node that has published a key. The second
// device has those that it is there for, as one of both nodes rotates its key.
func derivePeers(in peerInput) (peers []*Peer) {
	if in.device.Index == 0 {
		return nil
	}
	first := map[string]string{in.device.PublicKey: in.node}
	for _, n := range in.nodes {
		key := keyOn(in.device.Name, n)
		rotates := in.keys.rotating() || rotating(n)
		if n.Name == in.node || key == "" || in.device.Name == RotationDevice && !rotates {
			continue
		}
		if other, ok := first[key]; ok {
			sameKey(peers, n, other, key)
			continue
		}
		first[key] = n.Name
		p := &Peer{
			On: in.device.Name, PublicKey: key, Node: n.Name, Keepalive: in.keepalive, Device: in.device.Index,
			Instance: in.device.Instance, Greet: in.greet, Status: reconciler.StatusPending(),
		}
		if rotates {
			p.Keepalive = in.rotationKeepalive(n)
		}
		if at := endpointOf(n, in.ipv6); at.IsValid() {
			p.Endpoint = netip.AddrPortFrom(at, uint16(in.device.Port))
		} else {
			p.Problem = fmt.Sprintf("node %s has no address to send to", n.Name)
		}
		for _, list := range [][]netip.Prefix{n.PodCIDRs, in.outside[n.Name]} {
			for _, prefix := range list {
				p.AllowedIPs = append(p.AllowedIPs, prefix.Masked())
			}
		}
		for _, a := range n.Addresses {
			p.AllowedIPs = append(p.AllowedIPs, netip.PrefixFrom(a, a.BitLen()))
		}
		peers = append(peers, p)
	}
	return peers
}

// sameKey reports on the peer that has the key that another node has a copy of: which of them packets come from can't
// be known.
func sameKey(peers []*Peer, n *cluster.Node, other, key string) {
	for _, p := range peers {
		if p.PublicKey == key {
			p.Problem = fmt.Sprintf("nodes %s and %s have the same key: rotate it on one of them", other, n.Name)
		}
	}
}

// endpointOf is the address that a node's encrypted packets are sent to: of the underlay's family, or of the other one
// if the node has none.
func endpointOf(n *cluster.Node, ipv6 bool) netip.Addr {
	first, second := n.IPv4(), n.IPv6()
	if ipv6 {
		first, second = second, first
	}
	if first.IsValid() {
		return first
	}
	return second
}

// lostSessions reports whether other nodes may have sessions with this one that its device does not have: after a
// reboot, or when a process has ended, if the key is older than the device. Nodes notice that only 15 seconds after
// they have sent something that is not answered.
func (d *Device) lostSessions(k nodeKey) bool {
	const learned = time.Second // the least that it takes until others know a key
	return d.Name == DeviceName && d.PublicKey == k.public && d.Made.Sub(k.since) > learned
}

// peerOps makes the device's peers equal to the rows.
type peerOps struct {
	control control
	allowed map[string]*allowed // by device
}

func (p *Peer) config() (wgtypes.PeerConfig, error) {
	key, err := wgtypes.ParseKey(p.PublicKey)
	if err != nil {
		return wgtypes.PeerConfig{}, fmt.Errorf("key of node %s: %w", p.Node, err)
	}
	c := wgtypes.PeerConfig{
		PublicKey: key, Endpoint: net.UDPAddrFromAddrPort(p.Endpoint), PersistentKeepaliveInterval: &p.Keepalive,
	}
	for _, prefix := range p.AllowedIPs {
		c.AllowedIPs = append(c.AllowedIPs, net.IPNet{
			IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
		})
	}
	return c, nil
}

// Update adds the peer, or changes it; its sessions go on.
func (o *peerOps) Update(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, p *Peer) error {
	if p.Problem != "" {
		return errors.New(p.Problem)
	}
	c, err := p.config()
	if err == nil {
		err = o.allowed[p.On].refresh(o.control, p)
	}
	if err == nil {
		greets := p.Greet && p.Keepalive == 0 && !o.allowed[p.On].has(c.PublicKey)
		o.allowed[p.On].reduce(&c)
		err = o.add(p.On, c, greets)
	}
	if err != nil {
		o.allowed[p.On].forget()
		return fmt.Errorf("set peer %s: %w", p.Node, err)
	}
	o.allowed[p.On].set(c.PublicKey, c.AllowedIPs)
	return nil
}

// add adds or changes a peer. WireGuard sends a packet, and so begins a handshake, when a peer that had no keepalive
// gets one: greets has it do so once.
func (o *peerOps) add(device string, c wgtypes.PeerConfig, greets bool) error {
	changes := []wgtypes.PeerConfig{c}
	if greets {
		some, none := options.MaxKeepalive, time.Duration(0)
		changes[0].PersistentKeepaliveInterval = &some
		changes = append(changes, wgtypes.PeerConfig{PublicKey: c.PublicKey, UpdateOnly: true,
			PersistentKeepaliveInterval: &none})
	}
	for _, change := range changes {
		err := o.control.ConfigureDevice(device, wgtypes.Config{Peers: []wgtypes.PeerConfig{change}})
		if err != nil {
			return err
		}
	}
	return nil
}

// Delete removes the peer with its sessions.
func (o *peerOps) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, p *Peer) error {
	key, err := wgtypes.ParseKey(p.PublicKey)
	if err != nil {
		return nil // it was never added
	}
	return o.remove(p.On, key)
}

func (o *peerOps) remove(device string, keys ...wgtypes.Key) error {
	var c wgtypes.Config
	for _, k := range keys {
		c.Peers = append(c.Peers, wgtypes.PeerConfig{PublicKey: k, Remove: true, UpdateOnly: true})
	}
	if len(c.Peers) == 0 {
		return nil
	}
	if err := o.control.ConfigureDevice(device, c); err != nil {
		o.allowed[device].forget()
		if !missing(err) {
			return fmt.Errorf("remove peers: %w", err)
		}
	}
	for _, k := range keys {
		o.allowed[device].remove(k)
	}
	return nil
}

// Prune removes the peers of nodes that left while no agent ran.
func (o *peerOps) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*Peer, statedb.Revision]) error {
	wanted := map[string]bool{}
	for p := range rows {
		wanted[p.On+" "+p.PublicKey] = true
	}
	var errs []error
	for _, name := range DeviceNames() {
		d, err := o.control.Device(name)
		if missing(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read peers: %w", err)
		}
		var stale []wgtypes.Key
		for _, p := range d.Peers {
			if !wanted[name+" "+p.PublicKey.String()] {
				stale = append(stale, p.PublicKey)
			}
		}
		errs = append(errs, o.remove(name, stale...))
	}
	return errors.Join(errs...)
}
