package agent

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/statedb/reconciler"

	"myelin/bpf"
	"myelin/endpoint"
	"myelin/node"
	"myelin/route"
	"myelin/service"
	"myelin/tunnel"
)

// vni is the VXLAN network of all pods: identities are local to nodes and not
// carried in packets.
const vni = 1

func (a *Agent) tunneled() bool { return a.config.RoutingMode == "tunnel" }

func (a *Agent) tunnelIPv6() bool { return a.config.UnderlayProtocol == "ipv6" }

func (a *Agent) tracking() bool { return a.config.Myelin.FlowTracking == "always" }

// followsHost reports whether packets of the host's to pods are looked at.
func (a *Agent) followsHost() bool { return a.tracking() || a.config.PerPacket() || a.policed() }

// masquerades reports whether pods of the family reach the world from the
// node's address.
func (a *Agent) masquerades(ipv6 bool) bool {
	f := a.config.IPv4
	if ipv6 {
		f = a.config.IPv6
	}
	return f.Enabled && f.Masquerade && a.config.BPF.Masquerade
}

func (a *Agent) routeConfig() route.Config {
	c := route.Config{
		Node: a.config.Myelin.NodeName, IPv4: a.config.IPv4.Enabled, IPv6: a.config.IPv6.Enabled,
		TunnelIPv6: a.tunnelIPv6(), AutoDirectNodeRoutes: a.config.AutoDirectNodeRoutes,
		SkipUnreachable: a.config.DirectRoutingSkipUnreachable, Devices: a.config.Devices, MTU: a.config.MTU,
		OwnSource: a.config.PerPacket(),
	}
	if a.tunneled() {
		c.Tunnel = tunnel.DeviceName
	}
	return c
}

func (a *Agent) nodeConfig() node.Config {
	c := node.Config{
		Name: a.config.Myelin.NodeName, IPv4: a.config.IPv4.Enabled, IPv6: a.config.IPv6.Enabled,
		Tunnel: a.tunneled(), TunnelIPv6: a.tunnelIPv6(), Legacy: a.config.BPF.HostLegacyRouting,
		Masquerade4: a.masquerades(false), Masquerade6: a.masquerades(true),
		HostPolicy: a.policed() && a.config.Policy.Host, XDP: a.xdp(), ViaNodes: a.dispatch() != bpf.DatapathLbDispatchDISPATCH_OPTION,
		NodePortCIDRs: a.config.NodePort.Addresses,
	}
	for _, p := range []netip.Prefix{a.config.IPv4.NativeRoutingCIDR, a.config.IPv6.NativeRoutingCIDR} {
		if p.IsValid() {
			c.NativeCIDRs = append(c.NativeCIDRs, p)
		}
	}
	return c
}

// settings are what the datapath is loaded with.
func (a *Agent) settings() bpf.Settings {
	s := bpf.Settings{
		Ipv4: flag(a.config.IPv4.Enabled), Ipv6: flag(a.config.IPv6.Enabled), LegacyRouting: flag(a.config.BPF.HostLegacyRouting),
		Masquerade4: flag(a.masquerades(false)), Masquerade6: flag(a.masquerades(true)), FlowAlways: flag(a.tracking()),
		Monitor: flag(a.config.BPF.Events.Trace), EventRate: a.eventRate(), Vni: vni,
	}
	a.policySettings(&s)
	a.socketSettings(&s)
	a.portSettings(&s)
	pods := a.podConfig()
	s.Gateway4, s.Gateway6 = bpf.Addr(pods.Gateway4), bpf.Addr(pods.Gateway6)
	if !a.tunneled() {
		return s
	}
	s.Tunnel, s.TunnelIfindex, s.TunnelPort = uint8(bpf.DatapathTunnelModeTUNNEL_IPV4), uint32(a.tunnelIndex), uint16(a.config.TunnelPort)
	if a.tunnelIPv6() {
		s.Tunnel = uint8(bpf.DatapathTunnelModeTUNNEL_IPV6)
	}
	return s
}

func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// unlimited is as good as no limit: more events a second and CPU than the ring
// buffer can take.
const unlimited = 1 << 30

func (a *Agent) eventRate() uint32 {
	e := a.config.BPF.Events
	switch {
	case !e.Drop && !e.Trace:
		return 0
	case e.RateLimit == 0:
		return defaultEventRate
	default:
		return uint32(min(e.RateLimit, unlimited))
	}
}

// defaultEventRate bounds what a flood of drops costs, in events a second and
// CPU; counters stay exact.
const defaultEventRate = 10000

// tablesEach is how many rows of Maglev tables there may be for each of
// bpf.lbMapMax: 17 is a table of 10 backends. A row that is not in use costs 16
// bytes.
const tablesEach = 4

// maxUnwanted is how many addresses, and how many prefixes, may be kept out. They cost memory only where they are.
const maxUnwanted = 2 << 20

func (a *Agent) sizes() bpf.Sizes {
	s := bpf.Sizes{Flows: uint32(a.config.BPF.CtTCPMax + a.config.BPF.CtAnyMax), Paths: uint32(a.config.BPF.NeighMax)}
	if a.config.Services() {
		s.Services = uint32(a.config.BPF.LBMapMax)
	}
	if a.config.Services() && (a.config.LoadBalancer.Algorithm == string(service.Maglev) || !a.serviceConfig().FixedAlgorithm) {
		s.MaglevTables = tablesEach * s.Services
	}
	s.Translations = s.Flows
	s.Peers = uint32(a.config.Policy.PeersMax)
	s.Unwanted = maxUnwanted
	s.PeerClasses, s.Verdicts = uint32(a.config.Policy.MapMax), uint32(a.config.Policy.MapMax)
	return s
}

// podConfig is what every pod of the node has in common.
func (a *Agent) podConfig() endpoint.NodeConfig {
	c := endpoint.NodeConfig{IPv4: a.config.IPv4.Enabled, IPv6: a.config.IPv6.Enabled}
	if mtu, _, err := a.routes.MTU(); err == nil {
		// Before kernel 5.12, bpf_redirect_peer drops what is larger than the pod's
		// device; and what a wire brings from the world is not in the tunnel.
		if c.MTU = mtu.Pod + mtu.Overhead; mtu.Overhead != 0 {
			c.RouteMTU = mtu.Pod
		}
	}
	if row := a.assignment(); row != nil {
		c.Gateway4, c.Gateway6 = row.Gateway4, row.Gateway6
	}
	return c
}

// tunnelPatience is how long the device may fail before that is an obstacle: it
// is tried again sooner.
const tunnelPatience = 2 * time.Second

// waitTunnel waits until the device is as wanted.
func (a *Agent) waitTunnel(ctx context.Context) error {
	late, isLate := time.After(tunnelPatience), false
	for {
		row, _, changed, ok := a.tunnels.Table.GetWatch(a.db.ReadTxn(), tunnel.ByName(tunnel.DeviceName))
		if ok && row.Status.Kind == reconciler.StatusKindDone && row.Index != 0 {
			// A later one has the programs loaded anew.
			a.tunnelIndex = row.Index
			return nil
		}
		if ok && row.Status.Kind == reconciler.StatusKindError && isLate {
			why := row.Status.GetError()
			if a.progress.waitsFor("the tunnel's device can't be made yet: "+why, "make room for it, or change what the error names") {
				a.log.Warn("the tunnel's device can't be made yet", "error", why)
			}
		}
		select {
		case <-changed:
		case <-late:
			isLate = true
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", tunnel.DeviceName, context.Cause(ctx))
		}
	}
}
