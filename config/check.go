package config

import (
	"fmt"
	"slices"
	"strings"

	bigtcp "myelin/bigtcp/options"
	"myelin/config/key"
)

// minIPv6MTU is what every link that carries IPv6 must pass (RFC 8200
// section 5), minIPv4MTU what every host must take (RFC 1122 section 3.3.3).
const (
	minIPv6MTU = 1280
	minIPv4MTU = 576
)

// wireGuardOverhead is that of WireGuard over IPv6, in bytes: outer IP and UDP headers, its own, the authentication
// tag.
const wireGuardOverhead = 40 + 8 + 16 + 16

// TunnelOverhead is what the configured encapsulation adds to a packet, in
// bytes: 0 in native routing; for VXLAN (RFC 7348) outer IP, UDP, VXLAN and
// inner Ethernet headers.
func (c *Config) TunnelOverhead() int {
	switch {
	case c.Encryption.Enabled:
		return wireGuardOverhead
	case c.RoutingMode != "tunnel":
		return 0
	case c.UnderlayProtocol == "ipv6":
		return 40 + 8 + 8 + 14
	}
	return 20 + 8 + 8 + 14
}

// contradictions are values that are right one by one and wrong together.
func (c *Config) contradictions(file string) Problems {
	var ps Problems
	add := func(key, format string, args ...any) {
		ps = append(ps, Problem{File: file, Key: key, Reason: fmt.Sprintf(format, args...)})
	}
	if !c.IPv4.Enabled && !c.IPv6.Enabled {
		add("ipv4.enabled", "ipv4.enabled and ipv6.enabled are both false: there is nothing to do")
	}
	if c.RoutingMode == "tunnel" && c.AutoDirectNodeRoutes {
		add("autoDirectNodeRoutes", "direct routes to nodes need routingMode native, it is tunnel")
	}
	for _, f := range []struct {
		family Family
		key    string
	}{{c.IPv4, "enableIPv4Masquerade"}, {c.IPv6, "enableIPv6Masquerade"}} {
		if f.family.Enabled && f.family.Masquerade && !c.BPF.Masquerade {
			add("bpf.masquerade", "is false while %s is true: masquerading is done by BPF only, never by iptables",
				f.key)
		}
	}
	if reason := c.checkMTU(); reason != "" {
		add("MTU", "%s", reason)
	}
	if d := c.DirectRoutingDevice; d != "" && len(c.Devices) > 0 && !c.selects(d) {
		add("nodePort.directRoutingDevice", "%s is none of devices %s", d, strings.Join(c.Devices, " "))
	}
	if (c.Events.RateLimit > 0) != (c.Events.BurstLimit > 0) {
		add("bpf.events.default", "rateLimit and burstLimit must both be set, or none of them")
	}
	c.checkPools(add)
	if c.Prometheus.Enabled && c.Prometheus.Port == c.HealthPort {
		add("prometheus.port", "%d is healthPort too", c.HealthPort)
	}
	if c.PolicyEnforcementMode == "never" {
		c.refuseFlagged(key.NeedsPolicies, "is set, and policyEnforcementMode is never", add)
	}
	c.serviceContradictions(add)
	c.standalone(add)
	c.checkGateway(add)
	c.Hubble.Check(add)
	c.Encryption.Check(add)
	network := bigtcp.Network{Tunnel: c.Tunneled(), Legacy: c.BPF.HostLegacyRouting}
	if c.Direct() && !c.Tunneled() {
		network.Dispatch = c.LoadBalancer.DSRDispatch
	}
	c.BigTCP.Check(network, add)
	c.Bandwidth.Check(add)
	c.sources(add)
	return ps
}

// standalone refuses what needs a cluster.
func (c *Config) standalone(add func(key, format string, args ...any)) {
	const without = "loadBalancer.standalone is true, which is without a cluster"
	if !c.LoadBalancer.Standalone {
		return
	}
	c.refuseFlagged(key.NeedsCluster, "is set, and "+without, add)
	if c.RoutingMode == "tunnel" {
		add("routingMode", "is tunnel, and %s", without)
	}
}

// refuseFlagged refuses keys with a flag that have another value than their default.
func (c *Config) refuseFlagged(flag key.Flag, why string, add key.Add) {
	for _, s := range c.changed(flag) {
		add(s.Name, "%s", why)
	}
}

// changed are the keys with a flag that have another value than their default.
func (c *Config) changed(flag key.Flag) (list []setting) {
	base := Default()
	for _, s := range settings() {
		if s.Flags&flag != 0 && s.Get(c) != s.Get(base) {
			list = append(list, s)
		}
	}
	return list
}

func (c *Config) checkMTU() string {
	if c.MTU == 0 {
		return ""
	}
	floor, why := minIPv4MTU, "IPv4"
	if c.IPv6.Enabled {
		floor, why = minIPv6MTU, "IPv6"
	}
	if pod := c.MTU - c.TunnelOverhead(); pod < floor {
		text := fmt.Sprintf("%d leaves pods %d bytes, and %s needs %d", c.MTU, pod, why, floor)
		if o := c.TunnelOverhead(); o > 0 {
			text += fmt.Sprintf(" (the tunnel takes %d)", o)
		}
		return text
	}
	return ""
}

// selects reports whether the entry d can be of a device in Devices.
func (c *Config) selects(d string) bool {
	return slices.ContainsFunc(c.Devices, func(pattern string) bool {
		return MatchDevice(pattern, d) || MatchDevice(d, pattern)
	})
}

// MatchDevice reports whether a device name fits an entry of devices: the name
// itself, or the beginning of it and "+".
func MatchDevice(pattern, name string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "+"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}

// warnings are values that have less effect than their writer may expect.
func (c *Config) warnings(file string) Problems {
	var ps Problems
	add := func(key, format string, args ...any) {
		ps = append(ps, Problem{File: file, Key: key, Reason: fmt.Sprintf(format, args...)})
	}
	for _, f := range []struct {
		family Family
		name   string
	}{{c.IPv4, "ipv4"}, {c.IPv6, "ipv6"}} {
		key := f.name + "NativeRoutingCIDR"
		switch {
		case f.family.NativeRoutingCIDR.IsValid() && !f.family.Enabled:
			add(key, "has no effect: %s.enabled is false", f.name)
		case f.family.Enabled && c.RoutingMode == "native" && !c.AutoDirectNodeRoutes && !c.LoadBalancer.Standalone &&
			!f.family.NativeRoutingCIDR.IsValid():
			add(key, "is not set, and autoDirectNodeRoutes is false: the network must have routes to every node's "+
				"podCIDRs, and masquerading spares only the nodes and podCIDRs that are known")
		}
	}
	if c.isSet("underlayProtocol") && c.RoutingMode != "tunnel" {
		add("underlayProtocol", "has no effect: routingMode is native")
	}
	c.sourceWarnings(add)
	if p, r := c.Myelin.NATPorts, c.NodePort.Range; p.Overlaps(r) {
		add("myelin.nat.portRange", "%s overlaps %s, which Kubernetes gives to NodePorts", p, r)
	}
	c.serviceWarnings(add)
	c.gatewayWarnings(add)
	c.idleWarnings(add)
	return ps
}
