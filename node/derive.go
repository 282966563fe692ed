package node

import (
	"net/netip"
	"slices"

	"github.com/cilium/statedb/reconciler"
	"k8s.io/apimachinery/pkg/labels"

	"myelin/bpf"
	"myelin/cluster"
	"myelin/ipam"
	"myelin/route"
)

// Config is what the configuration file says about the node.
type Config struct {
	Name       string
	IPv4, IPv6 bool // families of pods
	// Tunnel: routing mode tunnel; TunnelIPv6: with an IPv6 underlay.
	Tunnel, TunnelIPv6 bool
	// Legacy: bpf.hostLegacyRouting.
	Legacy bool
	// Masquerade4 and Masquerade6: pods reach the world from the node's address.
	Masquerade4, Masquerade6 bool
	// HostPolicy: what the node itself sends by its wires is looked at.
	HostPolicy bool
	// XDP is how Services are to be translated before tc, on devices whose driver can.
	XDP bpf.XDPMode
	// ViaNodes: also without a tunnel, prefixes say which node has them.
	ViaNodes bool
	// NodePortCIDRs are the addresses of nodes on which node ports answer; none: all.
	NodePortCIDRs []netip.Prefix
	// NativeCIDRs are not masqueraded to.
	NativeCIDRs []netip.Prefix
	// Encryption is the name of the WireGuard device that leads to nodes with a key, without a detour.
	Encryption string
	// StrictCIDRs are what nothing leaves for in plain text, with StrictNodes except to addresses of nodes.
	StrictCIDRs []netip.Prefix
	StrictNodes bool
	// EncryptionType is encryption.type; empty: off.
	EncryptionType string
	// OptsOut selects the nodes whose own traffic is not encrypted; nil: that of all nodes is not.
	OptsOut labels.Selector
}

// state is all that the rows are derived from.
type state struct {
	Config
	nodes   []*cluster.Node
	devices []*route.Device
	own     *ipam.Assignment          // nil: podCIDRs of the Node object
	outside map[string][]netip.Prefix // pods in no podCIDR of their Node, by node
	detours map[string]string         // names of WireGuard devices, where not the usual one leads to a node
	serves  bool                      // Params.HostServes
	probes  bool                      // Params.HostProbes
}

// sends reports whether to_wire has work on native wires, and on the device that encrypts, besides probes.
func (s state) sends() bool {
	return s.serves || s.HostPolicy || (s.Legacy && (s.Masquerade4 || s.Masquerade6))
}

// probesOnly is the datapath's variable probes_only.
func (s state) probesOnly() uint32 {
	if s.probes && !s.sends() && s.OptsOut == nil {
		return 1
	}
	return 0
}

// desired is the rows.
type desired struct {
	addresses []*Address
	wires     []*Wire
	prefixes  []*Prefix
}

// derive is a pure function.
func derive(s state) (d desired) {
	masqueraded := map[netip.Addr]bool{}
	for _, v := range s.devices {
		if !v.Up || !slices.Contains([]route.Kind{route.Wire, route.Tunnel, route.Encryption}, v.Kind) {
			continue
		}
		w := s.wire(v)
		d.wires = append(d.wires, w)
		if !w.Tunnel && !w.Own {
			masqueraded[w.IPv4] = s.Masquerade4
			masqueraded[w.IPv6] = s.Masquerade6
		}
	}
	for _, v := range s.devices {
		for _, p := range v.Addresses {
			a := p.Addr()
			if a.IsLoopback() || a.IsLinkLocalUnicast() {
				continue
			}
			d.addresses = append(d.addresses, &Address{
				Addr: a, Device: v.Name, Masquerade: masqueraded[a], NoPorts: s.noPorts(a),
				Status: reconciler.StatusPending(),
			})
		}
	}
	d.prefixes = s.prefixes()
	return d
}

// wire says what a device is to the datapath.
func (s state) wire(v *route.Device) *Wire {
	w := &Wire{
		Index: v.Index, Name: v.Name, Tunnel: v.Kind == route.Tunnel, L3: v.L3, Encrypted: v.Encrypted(), Type: v.Type,
		Own: v.Kind == route.Encryption, MTU: v.MTU, Status: reconciler.StatusPending(),
	}
	receive, send := bpf.FromWire, bpf.ToWire
	if w.L3 {
		receive, send = bpf.FromWireL3, bpf.ToWireL3
	}
	if w.Own && s.EncryptionType == cluster.IPsecType {
		receive = bpf.FromIPsec
	}
	w.Hooks = []bpf.Hook{receive}
	w.Ports = s.portsOf(v)
	if v.VLAN != nil {
		w.VLAN = s.vlan(v.VLAN)
	}
	if w.Tunnel {
		w.Hooks = append(w.Hooks, send)
		return w
	}
	if self := s.self(); w.Own && self != nil {
		// Clients of Services that are SNATed: its peers take packets from these addresses.
		w.IPv4, w.IPv6 = self.IPv4(), self.IPv6()
	}
	if s.sends() || s.probes || s.OptsOut != nil && !w.Own {
		w.Hooks = append(w.Hooks, send)
	}
	if !w.Own {
		w.IPv4 = s.sourceOn(v, netip.Addr.Is4)
		w.IPv6 = s.sourceOn(v, netip.Addr.Is6)
	}
	return w
}

// portsOf returns the indexes of a bond's devices.
func (s state) portsOf(bond *route.Device) (ports []int) {
	if bond.Type != "bond" {
		return nil
	}
	for _, v := range s.devices {
		if v.Master == bond.Index {
			ports = append(ports, v.Index)
		}
	}
	slices.Sort(ports)
	return ports
}

// vlan returns the tag of a VLAN device and the device below it.
func (s state) vlan(v *route.VLAN) *VLAN {
	row := &VLAN{ID: v.ID, QinQ: v.QinQ}
	for _, d := range s.devices {
		if d.Index == v.Below {
			row.Index, row.Name, row.Type, row.L3, row.Ports = d.Index, d.Name, d.Type, d.L3, s.portsOf(d)
		}
	}
	return row
}

// sourceOn picks what those are behind whose packets leave by v and must come back: pods that are masqueraded, and
// clients of Services. It is the node's own address where v has it, else v's first global one.
func (s state) sourceOn(v *route.Device, family func(netip.Addr) bool) netip.Addr {
	var first netip.Addr
	for _, p := range v.Addresses {
		a := p.Addr()
		if !family(a) || a.IsLoopback() || a.IsLinkLocalUnicast() {
			continue
		}
		if self := s.self(); self != nil && slices.Contains(self.Addresses, a) {
			return a
		}
		if !first.IsValid() {
			first = a
		}
	}
	return first
}

// noPorts reports whether no node port answers on the address of a node.
func (c Config) noPorts(a netip.Addr) bool {
	return len(c.NodePortCIDRs) > 0 && !slices.ContainsFunc(c.NodePortCIDRs, func(p netip.Prefix) bool {
		return p.Contains(a)
	})
}

func (s state) self() *cluster.Node {
	for _, n := range s.nodes {
		if n.Name == s.Name {
			return n
		}
	}
	return nil
}

// prefixes are the pods and addresses of all nodes, and what the configuration says is native. The first that names a
// prefix counts.
func (s state) prefixes() (rows []*Prefix) {
	seen := map[netip.Prefix]bool{}
	device := 0    // that leads to the node
	own := false   // the prefix is this node's
	plain := false // its own traffic is not encrypted
	self := s.self()
	add := func(p netip.Prefix, via netip.Addr, node, encrypted bool, why string) {
		if p = p.Masked(); seen[p] {
			return
		}
		seen[p] = true
		row := &Prefix{Prefix: p, Via: via, Tunnel: s.Tunnel && via.IsValid(), Node: node,
			NoPorts: node && s.noPorts(p.Addr()), Why: why, Status: reconciler.StatusPending()}
		if encrypted {
			row.Encryption = device
		}
		row.NodeEncrypts = node && !plain
		row.Strict = s.strict(p) && !own && !(node && s.StrictNodes)
		rows = append(rows, row)
	}
	for _, n := range s.nodes {
		own = n.Name == s.Name
		encrypted := !own && n.Encrypts(s.EncryptionType)
		device = s.encryption(n.Name)
		plain = self == nil || s.plain(self) || s.plain(n)
		via := s.viaPeer(n)
		if s.Tunnel && n.Name != s.Name {
			via = n.IPv4()
			if s.TunnelIPv6 {
				via = n.IPv6()
			}
		}
		podCIDRs := n.PodCIDRs
		if s.own != nil && n.Name == s.Name {
			podCIDRs = s.own.InForce
		}
		for _, p := range slices.Concat(podCIDRs, s.outside[n.Name]) {
			if s.ViaNodes && !s.Tunnel && n.Name != s.Name {
				if via = n.IPv4(); p.Addr().Is6() {
					via = n.IPv6()
				}
			}
			add(p, via, false, encrypted, "pods of "+n.Name)
		}
		for _, a := range n.Addresses {
			if !s.Tunnel {
				via = s.viaPeer(n) // no address: it is the node
			}
			add(netip.PrefixFrom(a, a.BitLen()), via, true, encrypted, "node "+n.Name)
		}
	}
	own = false
	for _, p := range s.StrictCIDRs {
		add(p, netip.Addr{}, false, false, "strict encryption")
	}
	for _, p := range s.NativeCIDRs {
		add(p, netip.Addr{}, false, false, "native routing CIDR")
	}
	return rows
}

// plain reports whether a node's own traffic is not encrypted.
func (c Config) plain(n *cluster.Node) bool {
	return c.OptsOut == nil || c.OptsOut.Matches(labels.Set(n.Labels))
}

// strict reports whether all of a prefix is in one of StrictCIDRs.
func (c Config) strict(p netip.Prefix) bool {
	return slices.ContainsFunc(c.StrictCIDRs, func(strict netip.Prefix) bool {
		return strict.Bits() <= p.Bits() && strict.Contains(p.Addr())
	})
}

// viaPeer identifies another node by the address that its IPsec packets come from, which the datapath compares.
func (s state) viaPeer(n *cluster.Node) netip.Addr {
	if s.EncryptionType != cluster.IPsecType || n.Name == s.Name {
		return netip.Addr{}
	}
	return n.IPsecAddress(s.TunnelIPv6)
}

// encryption is the index of the device that encrypts what is sent to a node, that of its detour if it is there; 0 if
// there is none or it is down.
func (s state) encryption(node string) int {
	for _, name := range []string{s.detours[node], s.Encryption} {
		for _, v := range s.devices {
			if v.Kind == route.Encryption && v.Up && v.Name == name {
				return v.Index
			}
		}
	}
	return 0
}
