package agent

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/cluster"
	"myelin/encryption"
	"myelin/node"
	"myelin/route"
	"myelin/route/tunnel"
)

// network is the features routes, tunnel and node: what the kernel's network
// stack and the datapath know of this node and of others.
type network struct {
	*feature.Node
	progress  *progress
	own       *ownNode
	endpoints *endpoints
	xdp       func() bpf.XDPMode

	routes  *route.Routes
	tunnels *tunnel.Tunnels
	node    *node.Node
	// tunnelIndex is the index of the tunnel device when the programs were loaded.
	tunnelIndex int
	// hostServes is on while the host itself is a backend of Services.
	hostServes node.Switch
	// attached are the wires that programs are attached to.
	attached node.Attached
	// hostProbes is on while health checks travel by DSR.
	hostProbes node.Switch
}

func (n *network) routesFeature() *feature.Feature {
	return &feature.Feature{
		Name: "routes", Start: n.startRoutes, Stop: n.stopRoutes, Counts: n.routeCounts, Commands: n.commands(),
	}
}

func (n *network) tunnelFeature() *feature.Feature {
	return &feature.Feature{
		Name: "tunnel", Start: n.startTunnel, Stop: n.stopTunnel, Settings: n.tunnelSettings, Counts: n.tunnelCounts,
		Checks: tunnel.Checks(),
	}
}

func (n *network) nodeFeature() *feature.Feature {
	return &feature.Feature{Name: "node", Start: n.startNode, Counts: n.nodeCounts, Checks: node.Checks()}
}

func (n *network) startRoutes(context.Context) error {
	outside, err := cluster.NewOffCIDRPods(n.DB, n.Cluster)
	if err != nil {
		return err
	}
	n.Outside = outside.Rows
	n.Go("pods-outside", outside.Run)
	if n.Detours, err = cluster.NewDetourTable(n.DB); err != nil {
		return err
	}
	n.routes, err = route.New(route.Params{
		DB: n.DB, Log: n.Log, Group: n.Group, Nodes: n.Cluster.Nodes, Endpoints: n.endpoints.table,
		PodCIDRs: n.own.podCIDRs, Outside: n.Outside, Detours: n.Detours, Config: n.routeConfig(),
		ProcSys: n.Config.Myelin.SysctlRoot, Originals: filepath.Join(n.Config.Myelin.RunDir, route.OriginalsFile),
	})
	return err
}

func (n *network) stopRoutes() error {
	if n.routes != nil {
		n.routes.Close()
	}
	return nil
}

// startTunnel makes the device before the programs are loaded, which know it
// by its index.
func (n *network) startTunnel(ctx context.Context) error {
	var err error
	n.tunnels, err = tunnel.New(tunnel.Params{
		DB: n.DB, Log: n.Log, Group: n.Group, Node: n.Config.Myelin.NodeName, Wanted: n.Config.Tunneled(),
		Port: int(n.Config.TunnelPort), Devices: n.routes.Devices, MTU: n.routes.MTU,
	})
	if err != nil || !n.Config.Tunneled() {
		return err
	}
	return n.waitTunnel(ctx)
}

// stopTunnel leaves the device in place: the datapath continues without the
// agent.
func (n *network) stopTunnel() error {
	if n.tunnels != nil {
		n.tunnels.Close()
	}
	return nil
}

// vni is the VXLAN network of all pods: identities are local to nodes and not
// carried in packets.
const vni = 1

func (n *network) tunnelSettings(s *bpf.Settings) {
	s.Vni = vni
	if !n.Config.Tunneled() {
		return
	}
	s.Tunnel, s.TunnelIfindex = uint8(bpf.DatapathTunnelModeTUNNEL_IPV4), uint32(n.tunnelIndex)
	s.TunnelPort = uint16(n.Config.TunnelPort)
	if n.Config.TunnelIPv6() {
		s.Tunnel = uint8(bpf.DatapathTunnelModeTUNNEL_IPV6)
	}
}

// waitTunnel waits until the device is as wanted.
func (n *network) waitTunnel(ctx context.Context) (err error) {
	look := func() (*reconciler.Status, int, <-chan struct{}) {
		row, _, changed, ok := n.tunnels.Table.GetWatch(n.DB.ReadTxn(), tunnel.ByName(tunnel.DeviceName))
		if !ok {
			return nil, 0, changed
		}
		return &row.Status, row.Index, changed
	}
	// A later one has the programs loaded anew.
	n.tunnelIndex, err = route.AwaitDevice(ctx, look, func(why string) {
		if n.progress.waitsFor("the tunnel's device can't be made yet: "+why,
			"make room for it, or change what the error names") {
			n.Log.Warn("the tunnel's device can't be made yet", "error", why)
		}
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w", tunnel.DeviceName, err)
	}
	return nil
}

func (n *network) startNode(context.Context) error {
	var err error
	n.node, err = node.New(node.Params{
		DB: n.DB, Log: n.Log, Group: n.Group, Config: n.nodeConfig(), Nodes: n.Cluster.Nodes, Devices: n.routes.Devices,
		PodCIDRs: n.own.podCIDRs, Outside: n.Outside, Detours: n.Detours, Attached: &n.attached,
		HostServes: &n.hostServes, HostProbes: &n.hostProbes, Datapath: n.Datapath, Epochs: n.Epochs,
	})
	return err
}

func (n *network) routeConfig() route.Config {
	c := route.Config{
		Node: n.Config.Myelin.NodeName, IPv4: n.Config.IPv4.Enabled, IPv6: n.Config.IPv6.Enabled,
		TunnelIPv6: n.Config.TunnelIPv6(), AutoDirectNodeRoutes: n.Config.AutoDirectNodeRoutes,
		SkipUnreachable: n.Config.DirectRoutingSkipUnreachable, Devices: n.Config.Devices, MTU: n.Config.MTU,
		OwnSource: n.Config.PerPacket(),
	}
	if n.Config.Tunneled() {
		c.Tunnel = tunnel.DeviceName
	}
	if n.Config.Encryption.Enabled {
		c.EncryptionType, c.Strict = n.Config.Encryption.Type, n.Config.Encryption.Strict()
		c.Encryption = encryption.DeviceOf(c.EncryptionType)
		if c.EncryptionType == cluster.WireGuardType {
			c.Rotation = encryption.RotationDevice
		}
	}
	return c
}

func (n *network) nodeConfig() node.Config {
	c := node.Config{
		Name: n.Config.Myelin.NodeName, IPv4: n.Config.IPv4.Enabled, IPv6: n.Config.IPv6.Enabled,
		Tunnel: n.Config.Tunneled(), TunnelIPv6: n.Config.TunnelIPv6(), Legacy: n.Config.BPF.HostLegacyRouting,
		Masquerade4: n.Config.Masquerades(false), Masquerade6: n.Config.Masquerades(true),
		HostPolicy: n.Config.EnforcesPolicies() && n.Config.Policy.Host, XDP: n.xdp(),
		ViaNodes:      dispatch(n.Config) != bpf.DatapathLbDispatchDISPATCH_OPTION,
		NodePortCIDRs: n.Config.NodePort.Addresses,
	}
	c.StrictCIDRs, c.StrictNodes = n.Config.Encryption.Strict(), n.Config.Encryption.StrictNodes
	if n.Config.Encryption.Enabled {
		c.EncryptionType = n.Config.Encryption.Type
		c.Encryption = encryption.DeviceOf(c.EncryptionType)
		c.ViaNodes = c.ViaNodes || n.Config.Direct() // in plain text, to the backend's node
	}
	if n.Config.Encryption.EncryptsNodes() {
		c.OptsOut = n.Config.Encryption.OptsOut()
	}
	for _, p := range []netip.Prefix{n.Config.IPv4.NativeRoutingCIDR, n.Config.IPv6.NativeRoutingCIDR} {
		if p.IsValid() {
			c.NativeCIDRs = append(c.NativeCIDRs, p)
		}
	}
	return c
}

func (n *network) routeCounts(txn statedb.ReadTxn) []feature.TableCount {
	return []feature.TableCount{
		feature.Count(txn, n.routes.Addresses, func(r *route.Address) *reconciler.Status { return &r.Status }),
		feature.Count(txn, n.routes.Routes, func(r *route.Route) *reconciler.Status { return &r.Status }),
		feature.Count(txn, n.routes.Neighbours, func(r *route.Neighbour) *reconciler.Status { return &r.Status }),
		feature.Count(txn, n.routes.NextHops, func(r *route.NextHop) *reconciler.Status { return &r.Status }),
		feature.Count(txn, n.routes.Sysctls, func(r *route.Sysctl) *reconciler.Status { return &r.Status }),
	}
}

func (n *network) tunnelCounts(txn statedb.ReadTxn) []feature.TableCount {
	return []feature.TableCount{
		feature.Count(txn, n.tunnels.Table, func(r *tunnel.Tunnel) *reconciler.Status { return &r.Status }),
	}
}

func (n *network) nodeCounts(txn statedb.ReadTxn) []feature.TableCount {
	return []feature.TableCount{
		feature.Count(txn, n.node.Addresses, func(r *node.Address) *reconciler.Status { return &r.Status }),
		feature.Count(txn, n.node.Wires, func(r *node.Wire) *reconciler.Status { return &r.Status }),
		feature.Count(txn, n.node.Prefixes, func(r *node.Prefix) *reconciler.Status { return &r.Status }),
	}
}

// xdpStates is the mode of XDP by name of the wire.
func (n *network) xdpStates() map[string]bpf.XDPState {
	states := map[string]bpf.XDPState{}
	for w := range n.node.Wires.All(n.DB.ReadTxn()) {
		if !w.Tunnel {
			states[w.Name] = n.Datapath.Attacher.XDP(w.Name)
		}
	}
	return states
}

// commands are those that show what the kernel has of routes and devices.
func (*network) commands() []feature.Command {
	return []feature.Command{
		{Name: "route", Short: "Inspect routes and neighbours", Views: []feature.View{
			{Name: "list", Short: "List the routes that the kernel must have", Table: "routes"},
			{Name: "neighbours", Short: "List the neighbours that the kernel must have", Table: "neighbours"},
			{Name: "nexthops", Short: "List the gateways and nodes that are kept resolved", Table: "nexthops"},
			{Name: "prefixes", Short: "List the prefixes of the cluster", Table: "prefixes"},
			{Name: "paths", Short: "List the entries of the forwarding cache", Table: "paths"},
			{Name: "wires", Short: "List the devices that lead to other nodes", Table: "wires"},
			{Name: "devices", Short: "List the devices of the node", Table: "devices"},
			{Name: "addresses", Short: "List the addresses that the kernel must have", Table: "addresses"},
		}},
	}
}
