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
)

// Peer is another node as the WireGuard device knows it. Its primary key is the public key: a node with another key is
// another peer.
type Peer struct {
	PublicKey string         `json:"publicKey"`
	Node      string         `json:"node"`
	Endpoint  netip.AddrPort `json:"endpoint"`
	// AllowedIPs are the prefixes that packets to the peer have as destination, and those from it as source.
	AllowedIPs []netip.Prefix `json:"allowedIPs"`
	Keepalive  time.Duration  `json:"keepalive,omitempty"`
	// Device is the index of the device that has the peer: another device starts without peers.
	Device int `json:"device"`
	// Instance is the process that is the device.
	Instance string            `json:"instance,omitempty"`
	Problem  string            `json:"problem,omitempty"`
	Status   reconciler.Status `json:"status"`
}

// Equal reports whether two rows want the same.
func (p *Peer) Equal(o *Peer) bool {
	return p.PublicKey == o.PublicKey && p.Node == o.Node && p.Endpoint == o.Endpoint &&
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
		FromObject: func(p *Peer) index.KeySet { return index.NewKeySet(index.String(p.PublicKey)) },
		FromKey:    index.String, FromString: index.FromString, Unique: true,
	}
}

func peerByKey(key string) statedb.Query[*Peer] {
	i := peerKey()
	return i.Query(key)
}

// peerInput is all that peers are derived from.
type peerInput struct {
	node      string // name of this node
	key       string // public key of this node
	device    int    // index of the device; 0: there is none
	instance  string // of the device
	ipv6      bool   // nodes send to each other's IPv6 addresses
	keepalive time.Duration
	nodes     []*cluster.Node
	outside   map[string][]netip.Prefix // pods in no podCIDR of their Node, by node
}

// derivePeers is a pure function: one peer for each other node that has published a key.
func derivePeers(in peerInput) (peers []*Peer) {
	if in.device == 0 {
		return nil
	}
	first := map[string]string{in.key: in.node}
	for _, n := range in.nodes {
		if n.Name == in.node || n.WireGuardKey == "" {
			continue
		}
		if other, ok := first[n.WireGuardKey]; ok {
			sameKey(peers, n, other)
			continue
		}
		first[n.WireGuardKey] = n.Name
		p := &Peer{
			PublicKey: n.WireGuardKey, Node: n.Name, Keepalive: in.keepalive, Device: in.device,
			Instance: in.instance, Status: reconciler.StatusPending(),
		}
		if at := endpointOf(n, in.ipv6); at.IsValid() {
			p.Endpoint = netip.AddrPortFrom(at, port)
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
func sameKey(peers []*Peer, n *cluster.Node, other string) {
	for _, p := range peers {
		if p.PublicKey == n.WireGuardKey {
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

// peerOps makes the device's peers equal to the rows.
type peerOps struct {
	control control
	allowed allowed
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
		err = o.allowed.refresh(o.control, p)
	}
	if err == nil {
		o.allowed.reduce(&c)
		err = o.control.ConfigureDevice(DeviceName, wgtypes.Config{Peers: []wgtypes.PeerConfig{c}})
	}
	if err != nil {
		o.allowed.forget()
		return fmt.Errorf("set peer %s: %w", p.Node, err)
	}
	o.allowed.set(c.PublicKey, c.AllowedIPs)
	return nil
}

// Delete removes the peer with its sessions.
func (o *peerOps) Delete(_ context.Context, _ statedb.ReadTxn, _ statedb.Revision, p *Peer) error {
	key, err := wgtypes.ParseKey(p.PublicKey)
	if err != nil {
		return nil // it was never added
	}
	return o.remove(key)
}

func (o *peerOps) remove(keys ...wgtypes.Key) error {
	var c wgtypes.Config
	for _, k := range keys {
		c.Peers = append(c.Peers, wgtypes.PeerConfig{PublicKey: k, Remove: true, UpdateOnly: true})
	}
	if len(c.Peers) == 0 {
		return nil
	}
	o.allowed.forget()
	if err := o.control.ConfigureDevice(DeviceName, c); err != nil && !missing(err) {
		return fmt.Errorf("remove peers: %w", err)
	}
	return nil
}

// Prune removes the peers of nodes that left while no agent ran.
func (o *peerOps) Prune(_ context.Context, _ statedb.ReadTxn, rows iter.Seq2[*Peer, statedb.Revision]) error {
	wanted := map[string]bool{}
	for p := range rows {
		wanted[p.PublicKey] = true
	}
	d, err := o.control.Device(DeviceName)
	if missing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read peers: %w", err)
	}
	var stale []wgtypes.Key
	for _, p := range d.Peers {
		if !wanted[p.PublicKey.String()] {
			stale = append(stale, p.PublicKey)
		}
	}
	return o.remove(stale...)
}
