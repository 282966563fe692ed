package config

// Tunneled reports whether packets to other nodes go through a tunnel.
func (c *Config) Tunneled() bool { return c.RoutingMode == "tunnel" }

// TunnelIPv6 reports whether the outer packets of the tunnel are IPv6.
func (c *Config) TunnelIPv6() bool { return c.UnderlayProtocol == "ipv6" }

// TracksAllFlows reports whether every flow has a conntrack entry.
func (c *Config) TracksAllFlows() bool { return c.Myelin.FlowTracking == "always" }

// EnforcesPolicies reports whether network policies are enforced.
func (c *Config) EnforcesPolicies() bool {
	return c.PolicyEnforcementMode != "never" && !c.LoadBalancer.Standalone
}

// InspectsHost reports whether packets from the host to pods are inspected, or limited.
func (c *Config) InspectsHost() bool {
	return c.Bandwidth.Enabled || c.TracksAllFlows() || c.PerPacket() || c.EnforcesPolicies()
}

// Masquerades reports whether packets of the family from pods to destinations
// outside the cluster get the node's address.
func (c *Config) Masquerades(ipv6 bool) bool {
	f := c.IPv4
	if ipv6 {
		f = c.IPv6
	}
	return f.Enabled && f.Masquerade && c.BPF.Masquerade
}

// PodCIDRsFromPool reports whether podCIDRs of nodes come from CiliumNodes.
func (c *Config) PodCIDRsFromPool() bool { return c.IPAMMode == "cluster-pool" && c.Kubernetes() }
