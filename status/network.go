package status

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/statedb/reconciler"

	"myelin/agent/feature"
	"myelin/cluster"
	"myelin/config"
	"myelin/node"
	"myelin/route"
)

func (f *Facts) ipv4() Feature { return f.family("IPv4", f.Config.IPv4, netip.Addr.Is4) }

func (f *Facts) ipv6() Feature { return f.family("IPv6", f.Config.IPv6, netip.Addr.Is6) }

func (f *Facts) family(name string, c config.Family, is func(netip.Addr) bool) Feature {
	x := Feature{Name: name, State: Off, Chosen: "off", Wanted: onOff(strings.ToLower(name)+".enabled", c.Enabled)}
	if !c.Enabled {
		x.Why = "packets of the family are dropped"
		return x
	}
	x.State = OK
	if f.Config.LoadBalancer.Standalone {
		x.Chosen = "no pods"
		return x
	}
	var cidrs []string
	for _, u := range f.Pools {
		if is(u.Prefix.Addr()) {
			cidrs = append(cidrs, u.Prefix.String())
		}
	}
	x.Chosen = "podCIDR " + strings.Join(cidrs, ", ")
	if len(cidrs) == 0 {
		x.Chosen = "no podCIDR"
		x.Break("the Node object has no " + name + " podCIDR: pods get no address of the family")
	}
	return x
}

// routing is how packets travel between nodes, and through this one.
func (f *Facts) routing() Feature {
	c := f.Config
	x := Feature{
		Name: "Routing", State: OK, Chosen: "Network: Native",
		Wanted: "routingMode: " + c.RoutingMode + ", " + onOff("bpf.hostLegacyRouting", c.BPF.HostLegacyRouting),
	}
	var costs []string
	if c.RoutingMode == "tunnel" {
		x.Chosen = fmt.Sprintf("Network: Tunnel [%s port %d over %s]", c.TunnelProtocol, c.TunnelPort,
			c.UnderlayProtocol)
		costs = append(costs, fmt.Sprintf("the tunnel takes %d bytes of each packet and the time to encapsulate it",
			f.MTU.Overhead))
		if t := f.Tunnel; t != nil && t.Status.Kind == reconciler.StatusKindError {
			x.Break("tunnel device " + t.Name + ": " + t.Status.GetError())
		}
	}
	if f.Settings.LegacyRouting != 0 {
		x.Chosen += "   Host: Legacy"
		costs = append(costs, "packets go through the host's stack and its netfilter rules: a tenth of the request "+
			"rate and throughput")
		if !c.BPF.HostLegacyRouting {
			x.FallBack("the kernel can't do eBPF host routing")
		}
	} else {
		x.Chosen += "   Host: BPF"
	}
	x.Cost = strings.Join(costs, "; ")
	return x
}

// directRoutes tells of autoDirectNodeRoutes by node.
func (f *Facts) directRoutes() Feature {
	x := Feature{Name: "Direct Node Routes", State: Off, Chosen: "off",
		Wanted: onOff("autoDirectNodeRoutes", f.Config.AutoDirectNodeRoutes)}
	if !f.Config.AutoDirectNodeRoutes {
		x.Why = "the network routes podCIDRs to their nodes"
		if f.Config.RoutingMode == "tunnel" {
			x.Why = "the tunnel leads to other nodes"
		}
		return x
	}
	x.State = OK
	reached, others := 0, 0
	for _, n := range f.Nodes {
		if n.Name == f.Config.Myelin.NodeName || len(n.PodCIDRs) == 0 {
			continue
		}
		others++
		problem := f.reaches(n)
		if problem == "" {
			reached++
		} else if f.Config.DirectRoutingSkipUnreachable {
			x.FallBack(problem)
		} else {
			x.Break(problem)
		}
	}
	x.Chosen = fmt.Sprintf("to %d of %s", reached, feature.Plural(others, "other node"))
	return x
}

// reaches says why there is no route to a node's pods; empty if there is.
func (f *Facts) reaches(n *cluster.Node) string {
	rows := slices.DeleteFunc(slices.Clone(f.Routes), func(r *route.Route) bool { return r.Owner != "node "+n.Name })
	if len(rows) == 0 {
		return "no direct route to the pods of " + n.Name
	}
	for _, r := range rows {
		if text := r.Status.GetError(); r.Status.Kind == reconciler.StatusKindError {
			return n.Name + ": " + text
		}
	}
	return ""
}

func (f *Facts) mtu() Feature {
	x := Feature{Name: "MTU", State: OK, Wanted: "MTU: from the devices"}
	if f.Config.MTU != 0 {
		x.Wanted = fmt.Sprintf("MTU: %d", f.Config.MTU)
	}
	x.Chosen = fmt.Sprintf("%d for pods", f.MTU.Pod)
	x.Why = fmt.Sprintf("%d of the wires (%s)", f.MTU.Wire, f.MTU.Why)
	if f.MTU.Overhead != 0 {
		x.Why += fmt.Sprintf(", less %d of the tunnel", f.MTU.Overhead)
	}
	if f.MTUProblem != nil {
		x.Break(f.MTUProblem.Error())
	}
	for _, d := range f.Devices {
		if d.Kind == string(route.Wire) && f.Config.MTU == 0 && d.MTU > f.MTU.Wire {
			x.FallBack(fmt.Sprintf("%s could carry %d, and the smallest wire decides", d.Name, d.MTU))
		}
	}
	return x
}

func (f *Facts) masquerading() Feature {
	x := Feature{
		Name: "Masquerading", State: Off, Chosen: "Disabled",
		Wanted: onOff("enableIPv4Masquerade", f.Config.IPv4.Masquerade) + ", " +
			onOff("enableIPv6Masquerade", f.Config.IPv6.Masquerade),
	}
	var families, cidrs []string
	if f.Settings.Masquerade4 != 0 {
		families = append(families, "IPv4")
		cidrs = appendValid(cidrs, f.Config.IPv4.NativeRoutingCIDR)
	}
	if f.Settings.Masquerade6 != 0 {
		families = append(families, "IPv6")
		cidrs = appendValid(cidrs, f.Config.IPv6.NativeRoutingCIDR)
	}
	if len(families) == 0 {
		x.Why = "pods reach the world with their own addresses, if the network routes them"
		return x
	}
	x.State = OK
	var wires []string
	for _, w := range f.Wires {
		if w.Tunnel {
			continue
		}
		wires = append(wires, f.masqueradesBy(&x, w))
	}
	x.Chosen = fmt.Sprintf("BPF [%s] %s, ports %s", strings.Join(wires, ", "), strings.Join(families, " and "),
		f.Config.MasqueradePorts())
	x.Why = "not to nodes and pods of the cluster"
	if len(cidrs) > 0 {
		x.Why += ", nor to " + strings.Join(cidrs, ", ")
	}
	if x.State == OK {
		x.Cost = "a row for each flow to the world"
	}
	return x
}

func appendValid(list []string, p netip.Prefix) []string {
	if p.IsValid() {
		list = append(list, p.String())
	}
	return list
}

// masqueradesBy is a wire with the addresses that pods get on it.
func (f *Facts) masqueradesBy(x *Feature, w *node.Wire) string {
	return behind(x, w, f.Settings.Masquerade4 != 0, f.Settings.Masquerade6 != 0, "to masquerade to",
		"what pods send to the world by it is dropped")
}

// behind is a wire with its addresses of some families, and what it means that it has none.
func behind(x *Feature, w *node.Wire, ipv4, ipv6 bool, purpose, cost string) string {
	text := w.Name
	for _, v := range []struct {
		name string
		on   bool
		addr netip.Addr
	}{{"IPv4", ipv4, w.IPv4}, {"IPv6", ipv6, w.IPv6}} {
		switch {
		case !v.on:
		case v.addr.IsValid():
			text += " " + v.addr.String()
		default:
			x.FallBack(fmt.Sprintf("%s has no %s address %s", w.Name, v.name, purpose))
			x.Cost = cost
		}
	}
	return text
}

// neighbours is how the link-layer addresses of next hops stay known.
func (f *Facts) neighbours() Feature {
	x := Feature{Name: "Neighbours", State: OK, Chosen: "no next hop", Why: "bpf_fib_lookup resolves none itself"}
	poked, unseen := 0, 0
	for _, n := range f.NextHops {
		switch {
		case n.State == "" || n.State == "none": // the agent looks every 15 seconds
			unseen++
		case !n.Managed && n.State != "permanent" && n.State != "noarp":
			poked++
		}
		if n.Status.Kind == reconciler.StatusKindError {
			x.Break(n.Status.GetError())
		} else if n.State == "failed" {
			x.Break(fmt.Sprintf("%s (%s) doesn't answer on %s", n.Address, n.For, n.Device))
		}
	}
	if len(f.NextHops) == 0 {
		return x
	}
	x.Chosen = feature.Plural(len(f.NextHops), "next hop") + ", kept resolved by the kernel"
	if unseen > 0 {
		x.Chosen = fmt.Sprintf("%s, %d being resolved", feature.Plural(len(f.NextHops), "next hop"), unseen)
	}
	if poked > 0 {
		x.Chosen = fmt.Sprintf("%s, %d kept resolved by the agent", feature.Plural(len(f.NextHops), "next hop"), poked)
		x.FallBack("managed neighbours need kernel 5.16")
		x.Cost = "without an agent an entry can go stale, and the next packets wait until it is resolved"
	}
	return x
}
