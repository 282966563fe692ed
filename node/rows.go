// Package node tells the datapath what its own node is: the host's addresses,
// the wires it may use and what hangs on them, and which prefixes are the
// cluster's.
package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/index"
	"github.com/cilium/statedb/reconciler"

	"myelin/bpf"
)

// Address is an address of the host itself.
type Address struct {
	Addr netip.Addr `json:"addr"`
	// Masquerade: pods reach the world from it, so what comes in for it may be a pod's.
	Masquerade bool `json:"masquerade"`
	// NoPorts: no node port answers on it.
	NoPorts bool              `json:"noPorts,omitempty"`
	Device  string            `json:"device"`
	Status  reconciler.Status `json:"status"`
}

// Wire is a device that leads to other nodes, or the tunnel.
type Wire struct {
	Index int    `json:"index"`
	Name  string `json:"name"`
	// Tunnel: the device of packets in VXLAN; it is no wire to masquerade to.
	Tunnel bool `json:"tunnel"`
	// Own: the device of encryption between nodes; it is no wire to masquerade to either.
	Own bool `json:"own,omitempty"`
	// L3: it has no link-layer header, as WireGuard, XFRM, IPIP and TUN devices.
	L3 bool `json:"l3,omitempty"`
	// Encrypted: what leaves by it is encrypted.
	Encrypted bool `json:"encrypted,omitempty"`
	// Type is as "ip -d link" names it.
	Type string `json:"type"`
	// Ports are the indexes of a bond's devices, sorted.
	Ports []int `json:"ports,omitempty"`
	// VLAN is nil unless it is a VLAN device.
	VLAN *VLAN `json:"vlan,omitempty"`
	// IPv4 and IPv6 are what pods are masqueraded to, and clients of Services whose backend is on another node; invalid
	// if there is none.
	IPv4 netip.Addr `json:"ipv4"`
	IPv6 netip.Addr `json:"ipv6"`
	MTU  int        `json:"mtu"`
	// Hooks are the programs on the device.
	Hooks  []bpf.Hook        `json:"hooks"`
	Status reconciler.Status `json:"status"`
}

// VLAN is a VLAN device's tag, and the device that its frames arrive on.
type VLAN struct {
	ID   uint16 `json:"id"`
	QinQ bool   `json:"qinq,omitempty"` // 802.1ad instead of 802.1Q
	// Index of the device below, its name, type and ports as in Wire. 0 if it is in another network namespace.
	Index int    `json:"index,omitempty"`
	Name  string `json:"name,omitempty"`
	Type  string `json:"type,omitempty"`
	L3    bool   `json:"l3,omitempty"`
	Ports []int  `json:"ports,omitempty"`
}

// Prefix is a part of the address space that the cluster knows.
type Prefix struct {
	Prefix netip.Prefix `json:"prefix"`
	// Via is the node that has the prefix, invalid where that need not be known.
	Via    netip.Addr `json:"via"`
	Tunnel bool       `json:"tunnel,omitempty"` // it is reached through the tunnel to there
	Node   bool       `json:"node,omitempty"`   // an address of a node
	// Encryption is the index of the device that encrypts what is sent there, 0: none.
	Encryption int `json:"encryption,omitempty"`
	// NodeEncrypts: it is an address of a node whose own traffic is encrypted.
	NodeEncrypts bool `json:"nodeEncrypts,omitempty"`
	// Strict: nothing leaves for it in plain text.
	Strict bool `json:"strict,omitempty"`
	// NoPorts: no node port answers on it.
	NoPorts bool              `json:"noPorts,omitempty"`
	Why     string            `json:"why"`
	Status  reconciler.Status `json:"status"`
}

// Equal leaves the status out, here and below.
func (a *Address) Equal(o *Address) bool {
	return a.Addr == o.Addr && a.Masquerade == o.Masquerade && a.NoPorts == o.NoPorts && a.Device == o.Device
}

// Equal compares what is wanted.
func (w *Wire) Equal(o *Wire) bool {
	return w.Index == o.Index && w.Name == o.Name && w.Tunnel == o.Tunnel && w.Own == o.Own && w.L3 == o.L3 &&
		w.Encrypted == o.Encrypted &&
		w.IPv4 == o.IPv4 && w.IPv6 == o.IPv6 && w.MTU == o.MTU &&
		w.Type == o.Type && slices.Equal(w.Ports, o.Ports) && w.VLAN.equal(o.VLAN) && slices.Equal(w.Hooks, o.Hooks)
}

func (v *VLAN) equal(o *VLAN) bool {
	if v == nil || o == nil {
		return v == o
	}
	return v.ID == o.ID && v.QinQ == o.QinQ && v.Index == o.Index && v.Name == o.Name && v.Type == o.Type &&
		v.L3 == o.L3 && slices.Equal(v.Ports, o.Ports)
}

func (w *Wire) xdp() bpf.XDPDevice {
	d := bpf.XDPDevice{Name: w.Name, Index: w.Index, Type: w.Type, Ports: w.Ports, L3: w.L3}
	if v := w.VLAN; v != nil {
		d.VLAN = bpf.VLAN{ID: v.ID, QinQ: v.QinQ}
		if v.Index != 0 {
			d.VLAN.Below = &bpf.XDPDevice{Name: v.Name, Index: v.Index, Type: v.Type, Ports: v.Ports, L3: v.L3}
		}
	}
	return d
}

// Equal compares what is wanted.
func (p *Prefix) Equal(o *Prefix) bool {
	return p.Prefix == o.Prefix && p.Via == o.Via && p.Tunnel == o.Tunnel && p.Node == o.Node &&
		p.Encryption == o.Encryption && p.Strict == o.Strict && p.NoPorts == o.NoPorts &&
		p.NodeEncrypts == o.NodeEncrypts && p.Why == o.Why
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return "-"
	}
	return a.String()
}

// TableHeader implements statedb.TableWritable.
func (*Address) TableHeader() []string { return []string{"Address", "Device", "Masquerade", "Status"} }

// TableRow implements statedb.TableWritable.
func (a *Address) TableRow() []string {
	return []string{a.Addr.String(), a.Device, fmt.Sprint(a.Masquerade), a.Status.Kind.String()}
}

// TableHeader implements statedb.TableWritable.
func (*Wire) TableHeader() []string {
	return []string{"Device", "Index", "MTU", "IPv4", "IPv6", "Hooks", "Status"}
}

// TableRow implements statedb.TableWritable.
func (w *Wire) TableRow() []string {
	hooks := make([]string, len(w.Hooks))
	for i, h := range w.Hooks {
		hooks[i] = string(h)
	}
	return []string{
		w.Name, fmt.Sprint(w.Index), fmt.Sprint(w.MTU), text(w.IPv4), text(w.IPv6), strings.Join(hooks, ","),
		w.Status.Kind.String(),
	}
}

// TableHeader implements statedb.TableWritable.
func (*Prefix) TableHeader() []string {
	return []string{"Prefix", "Tunnel", "Why", "Encrypted", "Status"}
}

// TableRow implements statedb.TableWritable.
func (p *Prefix) TableRow() []string {
	encrypted := "-"
	if p.Encryption != 0 {
		encrypted = "yes"
	}
	return []string{p.Prefix.String(), text(p.Via), p.Why, encrypted, p.Status.Kind.String()}
}

// Tables are the rows of this package.
type Tables struct {
	Addresses statedb.RWTable[*Address]
	Wires     statedb.RWTable[*Wire]
	Prefixes  statedb.RWTable[*Prefix]
}

// newTables makes them.
func newTables(db *statedb.DB) (t Tables, err error) {
	if t.Addresses, err = statedb.NewTable(db, "node-addresses", statedb.Index[*Address, netip.Addr]{
		Name:       "address",
		FromObject: func(a *Address) index.KeySet { return index.NewKeySet(index.NetIPAddr(a.Addr)) },
		FromKey:    index.NetIPAddr, Unique: true,
	}); err != nil {
		return t, fmt.Errorf("make table of host addresses: %w", err)
	}
	if t.Wires, err = statedb.NewTable(db, "wires", statedb.Index[*Wire, int]{
		Name:       "index",
		FromObject: func(w *Wire) index.KeySet { return index.NewKeySet(index.Int(w.Index)) },
		FromKey:    index.Int, Unique: true,
	}); err != nil {
		return t, fmt.Errorf("make table of wires: %w", err)
	}
	if t.Prefixes, err = statedb.NewTable(db, "prefixes", statedb.Index[*Prefix, netip.Prefix]{
		Name:       "prefix",
		FromObject: func(p *Prefix) index.KeySet { return index.NewKeySet(index.NetIPPrefix(p.Prefix)) },
		FromKey:    index.NetIPPrefix, Unique: true,
	}); err != nil {
		return t, fmt.Errorf("make table of prefixes: %w", err)
	}
	return t, nil
}
