package config

import "myelin/config/key"

// PerPacket reports whether packets are translated for Services: what comes from
// outside, and what pods send past a socket hook. Else that is kube-proxy's.
func (c *Config) PerPacket() bool { return c.NodePort.Enabled }

// Services reports whether the agent has anything to do with Services.
func (c *Config) Services() bool { return c.SocketLB.Enabled || c.PerPacket() }

// MasqueradePorts are those that pods have on a node's address for the world: all of myelin.nat.portRange, or its lower
// half where the upper one is for ClientPorts.
func (c *Config) MasqueradePorts() key.PortRange {
	r := c.Myelin.NATPorts
	if c.PerPacket() {
		r.Last = r.First + (r.Last-r.First)/2
	}
	return r
}

// ClientPorts are those that clients of Services have on a node's address for
// backends on other nodes; the zero PortRange without Services for packets.
func (c *Config) ClientPorts() key.PortRange {
	if !c.PerPacket() {
		return key.PortRange{}
	}
	return key.PortRange{First: c.MasqueradePorts().Last + 1, Last: c.Myelin.NATPorts.Last}
}

// implied is a switch of Services that another one turns on.
type implied struct {
	key string
	at  *bool
	by  string // empty: none does
}

func (c *Config) implied() []implied {
	all, parts := "", ""
	if c.NodePort.Enabled {
		parts = "nodePort.enabled"
	}
	if c.KubeProxyReplacement {
		all, parts = "kubeProxyReplacement", "kubeProxyReplacement"
	}
	if c.LoadBalancer.Standalone {
		all, parts = "loadBalancer.standalone", "loadBalancer.standalone"
	}
	return []implied{
		{"socketLB.enabled", &c.SocketLB.Enabled, all},
		{"nodePort.enabled", &c.NodePort.Enabled, all},
		{"hostPort.enabled", &c.HostPort, parts},
		{"externalIPs.enabled", &c.ExternalIPs, parts},
	}
}

// deriveServices turns on what other switches imply, whatever the file says of
// it, as in Cilium.
func (c *Config) deriveServices(name string) {
	for _, s := range c.implied() {
		if s.by == "" || *s.at {
			continue
		}
		if c.isSet(s.key) {
			c.Warnings = append(c.Warnings, Problem{File: name, Key: s.key,
				Reason: "false has no effect: " + s.by + " is true"})
			delete(c.set, s.key)
		}
		*s.at = true
	}
}

// serviceContradictions are those about Services.
func (c *Config) serviceContradictions(add func(key, format string, args ...any)) {
	for _, s := range []struct {
		key string
		on  bool
	}{{"hostPort.enabled", c.HostPort}, {"externalIPs.enabled", c.ExternalIPs}} {
		if s.on && !c.PerPacket() {
			add(s.key, "needs kubeProxyReplacement or nodePort.enabled: Services from outside are one switch")
		}
	}
	if p := c.LoadBalancer.RSSIPv4; p.IsValid() && (p.Bits() < 8 || p.Bits() > 31) {
		add("myelin.rssIPv4SrcCIDR", "%s must be as long as 8 to 31", p)
	}
	if p := c.LoadBalancer.RSSIPv6; p.IsValid() && (p.Bits() < 64 || p.Bits() > 96) {
		add("myelin.rssIPv6SrcCIDR", "%s must be as long as 64 to 96", p)
	}
	if p, r := c.ClientPorts(), c.NodePort.Range; c.PerPacket() && p.Overlaps(r) {
		add("myelin.nat.portRange", "its upper half %s, which clients of Services have, meets nodePort.range %s", p, r)
	}
}

// serviceWarnings are those about Services.
func (c *Config) serviceWarnings(add func(key, format string, args ...any)) {
	for _, s := range []struct {
		key string
		on  bool
	}{
		{"socketLB.hostNamespaceOnly", c.SocketLB.HostNamespaceOnly},
		{"socketLB.terminatePodConnections", c.SocketLB.TerminatePodConnections},
		{"nodePort.bindProtection", c.NodePort.BindProtection},
	} {
		if s.on && c.isSet(s.key) && !c.SocketLB.Enabled {
			add(s.key, "has no effect: socketLB.enabled is false")
		}
	}
	if c.NodePort.EnableHealthCheck && c.isSet("nodePort.enableHealthCheck") && !c.Services() {
		add("nodePort.enableHealthCheck", "has no effect: socketLB.enabled and nodePort.enabled are false")
	}
	if !c.LoadBalancer.ServiceTopology && c.Services() {
		add("loadBalancer.serviceTopology",
			"false has no effect: hints of EndpointSlices are followed, as by kube-proxy; a Service without "+
				"them has none")
	}
	if c.PerPacket() && !c.SocketLB.Enabled {
		add("nodePort.enabled", "serves clients outside and pods; the node's own programs get no ClusterIPs before "+
			"socketLB.enabled is true")
	}
	if c.LoadBalancer.DSRDispatch != "opt" && !c.Direct() {
		add("loadBalancer.dsrDispatch", "has no effect: no answer is direct; see loadBalancer.mode")
	}
	for _, s := range []struct {
		key string
		on  bool
	}{
		{"bpf.lbExternalClusterIP", c.LoadBalancer.ExternalClusterIP},
		{"bpf.lbSourceRangeAllTypes", c.LoadBalancer.SourceRangeAllTypes},
		{"loadBalancer.mode", c.LoadBalancer.Mode != "snat"},
		{"loadBalancer.acceleration", c.LoadBalancer.Acceleration != "disabled" && len(c.changed(key.UsesXDP)) == 0},
		{"nat46x64Gateway.enabled", c.NAT46x64Gateway}, {"myelin.quicConnectionIDs", c.LoadBalancer.QUICConnectionIDs},
		{"serviceNoBackendResponse", c.NoBackendResponse != "reject"},
		{"nodePort.addresses", len(c.NodePort.Addresses) > 0 && !c.SocketLB.Enabled}, // sockets ask for node ports, too
	} {
		if s.on && !c.PerPacket() {
			add(s.key, "has no effect: traffic from outside is left to kube-proxy, as kubeProxyReplacement and "+
				"nodePort.enabled are false")
		}
	}
}

// Direct reports whether answers to clients outside may come from the backend's
// node: of all Services, or of those that say so, as those by API may.
func (c *Config) Direct() bool {
	lb := &c.LoadBalancer
	return c.PerPacket() && (lb.Mode != "snat" || lb.ModeAnnotation || lb.Standalone)
}

// QUIC reports whether Services can have their backends selected by QUIC connection IDs.
func (c *Config) QUIC() bool {
	return c.PerPacket() && (c.LoadBalancer.QUICConnectionIDs || c.LoadBalancer.Standalone)
}
