package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Subnets of the fabric: node addresses with these many leading bits in common reach each other directly, others by
// the world, which forwards.
const (
	subnetBits4 = 24
	subnetBits6 = 64
)

// worldIndex stands for the world where nodes have their index.
const worldIndex = 0xffff

// quiet are the settings of all namespaces the lab makes but the pods': the kernel's defaults, whatever the machine
// has (new namespaces inherit its IPv4 settings), and addresses that work at once.
func quiet() map[string]string {
	return map[string]string{
		"ipv4/ip_forward":                 "0",
		"ipv4/conf/all/rp_filter":         "0",
		"ipv4/conf/default/rp_filter":     "0",
		"ipv6/conf/all/disable_ipv6":      "0",
		"ipv6/conf/default/disable_ipv6":  "0",
		"ipv6/conf/all/accept_dad":        "0",
		"ipv6/conf/default/accept_dad":    "0",
		"ipv6/conf/default/accept_ra":     "0",
		"bridge/bridge-nf-call-iptables":  "0",
		"bridge/bridge-nf-call-ip6tables": "0",
	}
}

// port is one end of the fabric.
type port struct {
	netns     string
	name      string // on the fabric's side
	index     int    // ends the MAC
	addresses []netip.Prefix
	gateways  []netip.Addr
}

// mac is the port's address on the fabric: the same in each lab of the same nodes.
func (p port) mac() net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x6d, 0x79, 0, byte(p.index >> 8), byte(p.index)}
}

// createFabric makes the namespaces of nodes, world and fabric, and joins them.
func (l *Lab) createFabric() error {
	names := []string{}
	for _, n := range l.state.Nodes {
		names = append(names, l.nodeNetns(n.Name))
	}
	if l.opts.Fabric == FabricBridge {
		names = append(names, l.worldNetns(), l.fabricNetns())
	}
	for _, name := range names {
		if err := createNetns(name); err != nil {
			return err
		}
		if err := setSysctls(name, quiet()); err != nil {
			return err
		}
	}
	if l.opts.Fabric == FabricWire {
		return l.createWire()
	}
	return l.createBridge()
}

func (l *Lab) createBridge() error {
	h, ns, err := handle(l.fabricNetns())
	if err != nil {
		return err
	}
	defer ns.Close()
	defer h.Close()
	// Without a querier, snooping is of no use, and it delays neighbour discovery.
	snooping := false
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs(), MulticastSnooping: &snooping}
	bridge.Name = "fabric"
	bridge.MTU = l.opts.MTU
	if err := h.LinkAdd(bridge); err != nil {
		return fmt.Errorf("create bridge in %s: %w", l.fabricNetns(), err)
	}
	off := map[string]string{"ipv6/conf/fabric/disable_ipv6": "1", "ipv6/conf/default/disable_ipv6": "1"}
	if err := setSysctls(l.fabricNetns(), off); err != nil {
		return err
	}
	if err := h.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("set bridge of %s up: %w", l.fabricNetns(), err)
	}
	for _, n := range l.state.Nodes {
		if err := l.plug(h, bridge, l.nodePort(n)); err != nil {
			return err
		}
	}
	world := port{netns: l.worldNetns(), name: "world", index: worldIndex, addresses: l.state.World.Addresses}
	if err := l.plug(h, bridge, world); err != nil {
		return err
	}
	return l.setUpWorld()
}

// setUpWorld gives the world its addresses off the fabric, and lets it forward between the nodes' subnets.
func (l *Lab) setUpWorld() error {
	h, ns, err := handle(l.worldNetns())
	if err != nil {
		return err
	}
	defer ns.Close()
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo of the world: %w", err)
	}
	for _, a := range l.state.World.Outside {
		if err := addAddress(h, lo, netip.PrefixFrom(a, a.BitLen())); err != nil {
			return err
		}
	}
	return setSysctls(l.worldNetns(), map[string]string{"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1"})
}

func (l *Lab) nodePort(n NodeState) port {
	p := port{netns: l.nodeNetns(n.Name), name: fmt.Sprintf("node%d", n.Index), index: n.Index}
	for _, a := range n.Addresses {
		p.addresses = append(p.addresses, subnetOf(a))
		for _, w := range l.state.World.Addresses {
			if w.Contains(a) {
				p.gateways = append(p.gateways, w.Addr())
			}
		}
	}
	return p
}

// subnetOf is an address with the length of its subnet on the fabric.
func subnetOf(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(a, subnetBits4)
	}
	return netip.PrefixFrom(a, subnetBits6)
}

// plug makes a veth pair with one end on the bridge and the other, eth0, in the port's namespace; both are created
// there.
func (l *Lab) plug(h *netlink.Handle, bridge netlink.Link, p port) error {
	peer, err := netns.GetFromPath(netnsPath(p.netns))
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", p.netns, err)
	}
	defer peer.Close()
	veth := netlink.NewVeth(netlink.NewLinkAttrs())
	veth.Name, veth.PeerName, veth.PeerNamespace = p.name, "eth0", netlink.NsFd(peer)
	veth.MTU, veth.PeerMTU, veth.PeerHardwareAddr = l.opts.MTU, uint32(l.opts.MTU), p.mac()
	veth.MasterIndex = bridge.Attrs().Index
	if err := h.LinkAdd(veth); err != nil {
		return fmt.Errorf("create link to %s: %w", p.netns, err)
	}
	if err := h.LinkSetUp(veth); err != nil {
		return fmt.Errorf("set link to %s up: %w", p.netns, err)
	}
	return p.configure()
}

// createWire joins two nodes by one veth pair, created with an end in each.
func (l *Lab) createWire() error {
	a, b := l.nodePort(l.state.Nodes[0]), l.nodePort(l.state.Nodes[1])
	h, ns, err := handle(a.netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	defer h.Close()
	peer, err := netns.GetFromPath(netnsPath(b.netns))
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", b.netns, err)
	}
	defer peer.Close()
	veth := netlink.NewVeth(netlink.NewLinkAttrs())
	veth.Name, veth.PeerName, veth.PeerNamespace = "eth0", "eth0", netlink.NsFd(peer)
	veth.MTU, veth.PeerMTU = l.opts.MTU, uint32(l.opts.MTU)
	veth.HardwareAddr, veth.PeerHardwareAddr = a.mac(), b.mac()
	if err := h.LinkAdd(veth); err != nil {
		return fmt.Errorf("create wire from %s to %s: %w", a.netns, b.netns, err)
	}
	return errors.Join(a.configure(), b.configure())
}

// configure gives eth0 of the port's namespace its addresses and default routes.
func (p port) configure() error {
	h, ns, err := handle(p.netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	defer h.Close()
	eth0, err := h.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find eth0 of %s: %w", p.netns, err)
	}
	if err := h.LinkSetUp(eth0); err != nil {
		return fmt.Errorf("set eth0 of %s up: %w", p.netns, err)
	}
	for _, a := range p.addresses {
		if err := addAddress(h, eth0, a); err != nil {
			return fmt.Errorf("%s: %w", p.netns, err)
		}
	}
	for _, gw := range p.gateways {
		err := h.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: gw.AsSlice()})
		if err != nil {
			return fmt.Errorf("add default route by %s in %s: %w", gw, p.netns, err)
		}
	}
	return nil
}

func addAddress(h *netlink.Handle, link netlink.Link, p netip.Prefix) error {
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if p.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := h.AddrAdd(link, addr); err != nil {
		return fmt.Errorf("add %s to %s: %w", p, link.Attrs().Name, err)
	}
	return nil
}

// planWorld chooses the world's address in each subnet that nodes are in: the last one of an IPv4 subnet, ::fffe of
// an IPv6 subnet.
func planWorld(nodes []NodeState, outside []netip.Addr) (WorldState, error) {
	w := WorldState{Outside: outside}
	for _, n := range nodes {
		for _, a := range n.Addresses {
			net := subnetOf(a).Masked()
			raw := net.Addr().AsSlice()
			raw[len(raw)-1] = 0xfe
			if a.Is6() {
				raw[len(raw)-2] = 0xff
			}
			own, _ := netip.AddrFromSlice(raw) // of 4 or 16 bytes, always
			if own == a {
				return w, fmt.Errorf("node %s has %s, which is the world's address", n.Name, a)
			}
			if p := netip.PrefixFrom(own, net.Bits()); !slices.Contains(w.Addresses, p) {
				w.Addresses = append(w.Addresses, p)
			}
		}
	}
	return w, nil
}
