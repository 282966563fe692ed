package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/statedb/reconciler"

	"myelin/bpf"
	"myelin/endpoint"
	"myelin/ipam"
	"myelin/node"
	"myelin/route"
	"myelin/table"
	"myelin/tunnel"
)

// vni is the VXLAN network of all pods: identities are local to nodes and not
// carried in packets.
const vni = 1

func (a *Agent) tunneled() bool { return a.config.RoutingMode == "tunnel" }

func (a *Agent) tunnelIPv6() bool { return a.config.UnderlayProtocol == "ipv6" }

func (a *Agent) tracking() bool { return a.config.Myelin.FlowTracking == "always" }

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
	}
	for _, p := range []netip.Prefix{a.config.IPv4.NativeRoutingCIDR, a.config.IPv6.NativeRoutingCIDR} {
		if p.IsValid() {
			c.NativeCIDRs = append(c.NativeCIDRs, p)
		}
	}
	return c
}

// settings are what the datapath is loaded with.
func (a *Agent) settings() (bpf.Settings, error) {
	s := bpf.Settings{
		Ipv4: flag(a.config.IPv4.Enabled), Ipv6: flag(a.config.IPv6.Enabled), LegacyRouting: flag(a.config.BPF.HostLegacyRouting),
		Masquerade4: flag(a.masquerades(false)), Masquerade6: flag(a.masquerades(true)), FlowAlways: flag(a.tracking()),
		Monitor: flag(a.config.BPF.Events.Trace), EventRate: a.eventRate(), Vni: vni,
		NatPortMin: a.config.Myelin.NATPorts.First, NatPortMax: a.config.Myelin.NATPorts.Last,
	}
	pods := a.podConfig()
	s.Gateway4, s.Gateway6 = bpf.Addr(pods.Gateway4), bpf.Addr(pods.Gateway6)
	if !a.tunneled() {
		return s, nil
	}
	row, _, ok := a.tunnels.Table.Get(a.db.ReadTxn(), tunnel.ByName(tunnel.DeviceName))
	if !ok || row.Index == 0 {
		return s, errors.New("the tunnel's device is not there")
	}
	s.Tunnel, s.TunnelIfindex = uint8(bpf.DatapathTunnelModeTUNNEL_IPV4), uint32(row.Index)
	if a.tunnelIPv6() {
		s.Tunnel = uint8(bpf.DatapathTunnelModeTUNNEL_IPV6)
	}
	return s, nil
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

func (a *Agent) sizes() bpf.Sizes {
	return bpf.Sizes{Flows: uint32(a.config.BPF.CtTCPMax + a.config.BPF.CtAnyMax), Paths: uint32(a.config.BPF.NeighMax)}
}

// podCIDRs are those of the node whose family is on.
func (a *Agent) podCIDRs() (list []netip.Prefix) {
	for _, p := range a.self.PodCIDRs {
		if p.Addr().Is4() && a.config.IPv4.Enabled || p.Addr().Is6() && a.config.IPv6.Enabled {
			list = append(list, p)
		}
	}
	return list
}

// podConfig is what every pod of the node has in common.
func (a *Agent) podConfig() endpoint.NodeConfig {
	c := endpoint.NodeConfig{IPv4: a.config.IPv4.Enabled, IPv6: a.config.IPv6.Enabled}
	if mtu, _, err := a.routes.MTU(); err == nil {
		c.MTU = mtu.Pod
	}
	for _, p := range a.podCIDRs() {
		switch {
		case p.Addr().Is4() && !c.Gateway4.IsValid():
			c.Gateway4 = ipam.Gateway(p)
		case p.Addr().Is6() && !c.Gateway6.IsValid():
			c.Gateway6 = ipam.Gateway(p)
		}
	}
	return c
}

// waitTunnel waits until the device is as wanted.
func (a *Agent) waitTunnel(ctx context.Context) error {
	for {
		row, _, changed, ok := a.tunnels.Table.GetWatch(a.db.ReadTxn(), tunnel.ByName(tunnel.DeviceName))
		if ok && row.Status.Kind == reconciler.StatusKindDone && row.Index != 0 {
			return nil
		}
		if ok && row.Status.Kind == reconciler.StatusKindError {
			a.log.Warn("the tunnel's device can't be made yet", "error", row.Status.GetError())
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", tunnel.DeviceName, context.Cause(ctx))
		}
	}
}

// waitEndpoints waits until all restored endpoints are in the kernel or have
// failed; a pod that can't be served doesn't keep the others from starting.
func (a *Agent) waitEndpoints(ctx context.Context) error {
	err := table.WaitAll(ctx, a.db, a.endpoints, endpoint.StatusOf)
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		a.log.Error("some endpoints could not be restored", "error", err)
	}
	return nil
}
