package config

import (
	"net/netip"
	"slices"

	bandwidth "myelin/bandwidth/options"
	bigtcp "myelin/bigtcp/options"
	"myelin/config/key"
	encryption "myelin/encryption/options"
	event "myelin/event/options"
	hubble "myelin/hubble/options"
	dns "myelin/l7/dns/options"
	l7 "myelin/l7/options"
	prefilter "myelin/policy/prefilter/options"
	gateway "myelin/service/gateway/options"
	service "myelin/service/options"
)

// setting is a key and its place in Config.
type setting = key.Key[Config]

// settings are the keys that the agent acts on, in the order of the
// documentation. The list is the one place that knows them.
func settings() []setting {
	return slices.Concat(routingSettings(), bpfSettings(), agentSettings(), operatorSettings(),
		key.Within(func(c *Config) *service.Options { return &c.ServiceOptions }, service.Keys()),
		key.Within(func(c *Config) *gateway.Options { return &c.Myelin.Gateway }, gateway.Keys()),
		key.Within(func(c *Config) *event.Options { return &c.Events }, event.Keys()),
		key.Within(func(c *Config) *bandwidth.Options { return &c.Bandwidth }, bandwidth.Keys()),
		key.Within(func(c *Config) *encryption.Options { return &c.Encryption }, encryption.Keys()),
		key.Within(func(c *Config) *bigtcp.Options { return &c.BigTCP }, bigtcp.Keys()),
		key.Within(func(c *Config) *prefilter.Options { return &c.Prefilter }, prefilter.Keys()),
		key.Within(func(c *Config) *l7.Options { return &c.L7 }, l7.Keys()),
		key.Within(func(c *Config) *dns.Options { return &c.DNS }, dns.Keys()),
		key.Within(func(c *Config) *hubble.Options { return &c.Hubble }, hubble.Keys()),
	)
}

func routingSettings() []setting {
	return []setting{
		key.OneOf("routingMode", func(c *Config) *string { return &c.RoutingMode }, []string{"native", "tunnel"}),
		key.OneOf("tunnelProtocol", func(c *Config) *string { return &c.TunnelProtocol }, []string{"vxlan"}, "geneve"),
		key.Port("tunnelPort", func(c *Config) *uint16 { return &c.TunnelPort }, 1),
		key.OneOf("underlayProtocol", func(c *Config) *string { return &c.UnderlayProtocol }, []string{"ipv4", "ipv6"}),
		key.Boolean("autoDirectNodeRoutes", func(c *Config) *bool { return &c.AutoDirectNodeRoutes }),
		key.Boolean("directRoutingSkipUnreachable", func(c *Config) *bool { return &c.DirectRoutingSkipUnreachable }),
		key.Boolean("ipv4.enabled", func(c *Config) *bool { return &c.IPv4.Enabled }),
		key.Boolean("ipv6.enabled", func(c *Config) *bool { return &c.IPv6.Enabled }),
		key.CIDR("ipv4NativeRoutingCIDR", func(c *Config) *netip.Prefix {
			return &c.IPv4.NativeRoutingCIDR
		}, "IPv4", netip.Addr.Is4),
		key.CIDR("ipv6NativeRoutingCIDR", func(c *Config) *netip.Prefix {
			return &c.IPv6.NativeRoutingCIDR
		}, "IPv6", netip.Addr.Is6),
		key.Boolean("enableIPv4Masquerade", func(c *Config) *bool { return &c.IPv4.Masquerade }),
		key.Boolean("enableIPv6Masquerade", func(c *Config) *bool { return &c.IPv6.Masquerade }),
		key.Devices("devices", func(c *Config) *[]string { return &c.Devices }),
		key.Device("nodePort.directRoutingDevice", func(c *Config) *string { return &c.DirectRoutingDevice }),
		key.Integer("MTU", func(c *Config) *int { return &c.MTU }, 0, 65535),
	}
}

func bpfSettings() []setting {
	return []setting{
		key.Boolean("bpf.masquerade", func(c *Config) *bool { return &c.BPF.Masquerade }),
		key.Boolean("bpf.hostLegacyRouting", func(c *Config) *bool { return &c.BPF.HostLegacyRouting }),
		key.OneOf("bpf.datapathMode", func(c *Config) *string {
			return &c.BPF.DatapathMode
		}, []string{"veth", "netkit", "netkit-l2", "auto"}),
		key.Boolean("bpf.enableTCX", func(c *Config) *bool { return &c.BPF.EnableTCX }),
		key.Boolean("bpf.preallocateMaps", func(c *Config) *bool { return &c.BPF.PreallocateMaps }),
		key.Boolean("bpf.distributedLRU.enabled", func(c *Config) *bool { return &c.BPF.DistributedLRU }),
		key.Ratio("bpf.mapDynamicSizeRatio", func(c *Config) *float64 { return &c.BPF.MapDynamicSizeRatio }),
		key.MapSize("bpf.ctTcpMax", func(c *Config) *int { return &c.BPF.CtTCPMax }),
		key.MapSize("bpf.ctAnyMax", func(c *Config) *int { return &c.BPF.CtAnyMax }),
		key.MapSize("bpf.natMax", func(c *Config) *int { return &c.BPF.NatMax }),
		key.MapSize("bpf.neighMax", func(c *Config) *int { return &c.BPF.NeighMax }),
		key.VLANs("bpf.vlanBypass", func(c *Config) *[]uint16 { return &c.BPF.VLANBypass }),
	}
}

func agentSettings() []setting {
	return []setting{
		key.Path("cni.confPath", func(c *Config) *string { return &c.CNI.ConfPath }),
		key.Path("cni.binPath", func(c *Config) *string { return &c.CNI.BinPath }),
		key.Boolean("cni.exclusive", func(c *Config) *bool { return &c.CNI.Exclusive }),
		key.OneOf("ipam.mode", func(c *Config) *string { return &c.IPAMMode }, []string{"kubernetes", "cluster-pool"},
			"multi-pool", "crd", "eni", "azure", "alibabacloud", "delegated-plugin"),
		key.Checked("kubeConfigPath", func(c *Config) *string { return &c.KubeConfigPath }, checkKubeConfigPath,
			key.Pattern("^(/.*)?$", "an absolute path")),
		key.Checked("k8sServiceHost", func(c *Config) *string { return &c.K8sServiceHost }, checkServiceHost,
			ServiceHost(false)).With(key.NeedsCluster),
		key.Port("k8sServicePort", func(c *Config) *uint16 { return &c.K8sServicePort }, 0),
		key.Boolean("prometheus.enabled", func(c *Config) *bool { return &c.Prometheus.Enabled }),
		key.Port("prometheus.port", func(c *Config) *uint16 { return &c.Prometheus.Port }, 1),
		key.Checked("myelin.prometheus.address", func(c *Config) *string { return &c.Prometheus.Address },
			key.CheckAddress,
			key.Pattern("^[0-9a-fA-F.:]*$", "an IP address of the node, or nothing")),
		key.Port("healthPort", func(c *Config) *uint16 { return &c.HealthPort }, 0),
		key.Boolean("debug.enabled", func(c *Config) *bool { return &c.Debug }),
		key.Boolean("hostFirewall.enabled", func(c *Config) *bool { return &c.Policy.Host }),
		key.Boolean("policyAuditMode", func(c *Config) *bool { return &c.Policy.Audit }),
		key.Boolean("endpointLockdownOnMapOverflow", func(c *Config) *bool { return &c.Policy.Lockdown }),
		key.MapSize("bpf.policyMapMax", func(c *Config) *int { return &c.Policy.MapMax }),
		key.MapSize("myelin.policy.peersMax", func(c *Config) *int { return &c.Policy.PeersMax }),
		key.OneOf("myelin.policy.deniedFlows", func(c *Config) *string {
			return &c.Policy.DeniedFlows
		}, []string{"reset", "drop", "leave"}),
		key.Boolean("myelin.policy.report", func(c *Config) *bool { return &c.Myelin.ReportPolicies }),
		key.Checked("cluster.name", func(c *Config) *string { return &c.ClusterName }, checkClusterName,
			key.Pattern("^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", "1 to 32 lower case letters, digits and hyphens")),
		key.SomeOf("policyCIDRMatchMode", func(c *Config) *[]string { return &c.Policy.CIDRMatchMode }, "nodes"),
		key.OneOf("policyEnforcementMode", func(c *Config) *string {
			return &c.PolicyEnforcementMode
		}, []string{"default", "always", "never"}),
		key.Text("myelin.manifests", func(c *Config) *string {
			return &c.Myelin.Manifests
		}).With(key.NeedsCluster),
		key.ObjectName("myelin.nodeName", func(c *Config) *string { return &c.Myelin.NodeName }),
		key.Path("myelin.runDir", func(c *Config) *string { return &c.Myelin.RunDir }),
		key.Path("myelin.bpfRoot", func(c *Config) *string { return &c.Myelin.BPFRoot }),
		key.Path("myelin.cgroupRoot", func(c *Config) *string { return &c.Myelin.CgroupRoot }),
		key.Path("myelin.sysctlRoot", func(c *Config) *string { return &c.Myelin.SysctlRoot }),
		key.OneOf("myelin.flowTracking", func(c *Config) *string {
			return &c.Myelin.FlowTracking
		}, []string{"auto", "always"}),
		key.OneOf("myelin.logFormat", func(c *Config) *string { return &c.Myelin.LogFormat }, []string{"text", "json"}),
		key.Ratio("myelin.mapGrowthRatio", func(c *Config) *float64 { return &c.Myelin.MapGrowthRatio }),
		key.Integer("myelin.newFlowRate", func(c *Config) *int { return &c.Myelin.NewFlowRate }, 0, 1<<30),
		key.Ports("myelin.nat.portRange", func(c *Config) *key.PortRange { return &c.Myelin.NATPorts }),
	}
}
