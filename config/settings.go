package config

import (
	"net/netip"
	"slices"
	"time"
)

// Bounds of map sizes, in entries, as in Cilium.
const (
	minMap = 1 << 10
	maxMap = 1 << 24
)

// setting ties a key to its place in Config.
type setting struct {
	key string
	set func(*Config, any) error
	get func(*Config) string
	// schema is what of set JSON Schema can say: it takes whatever set takes.
	schema Schema
}

// settings are the keys that the agent acts on, in the order of the
// documentation. The list is the one place that knows them.
func settings() []setting {
	return slices.Concat(routingSettings(), bpfSettings(), serviceSettings(), gatewaySettings(), agentSettings(),
		l7Settings(), hubbleSettings(), hubbleMetricsSettings(), hubbleExportSettings(), operatorSettings())
}

func routingSettings() []setting {
	return []setting{
		oneOf("routingMode", func(c *Config) *string { return &c.RoutingMode }, []string{"native", "tunnel"}),
		oneOf("tunnelProtocol", func(c *Config) *string { return &c.TunnelProtocol }, []string{"vxlan"}, "geneve"),
		port("tunnelPort", func(c *Config) *uint16 { return &c.TunnelPort }, 1),
		oneOf("underlayProtocol", func(c *Config) *string { return &c.UnderlayProtocol }, []string{"ipv4", "ipv6"}),
		boolean("autoDirectNodeRoutes", func(c *Config) *bool { return &c.AutoDirectNodeRoutes }),
		boolean("directRoutingSkipUnreachable", func(c *Config) *bool { return &c.DirectRoutingSkipUnreachable }),
		boolean("ipv4.enabled", func(c *Config) *bool { return &c.IPv4.Enabled }),
		boolean("ipv6.enabled", func(c *Config) *bool { return &c.IPv6.Enabled }),
		cidr("ipv4NativeRoutingCIDR", func(c *Config) *netip.Prefix {
			return &c.IPv4.NativeRoutingCIDR
		}, "IPv4", netip.Addr.Is4),
		cidr("ipv6NativeRoutingCIDR", func(c *Config) *netip.Prefix {
			return &c.IPv6.NativeRoutingCIDR
		}, "IPv6", netip.Addr.Is6),
		boolean("enableIPv4Masquerade", func(c *Config) *bool { return &c.IPv4.Masquerade }),
		boolean("enableIPv6Masquerade", func(c *Config) *bool { return &c.IPv6.Masquerade }),
		devices("devices", func(c *Config) *[]string { return &c.Devices }),
		device("nodePort.directRoutingDevice", func(c *Config) *string { return &c.DirectRoutingDevice }),
		integer("MTU", func(c *Config) *int { return &c.MTU }, 0, 65535),
	}
}

func bpfSettings() []setting {
	return []setting{
		boolean("bpf.masquerade", func(c *Config) *bool { return &c.BPF.Masquerade }),
		boolean("bpf.hostLegacyRouting", func(c *Config) *bool { return &c.BPF.HostLegacyRouting }),
		oneOf("bpf.datapathMode", func(c *Config) *string {
			return &c.BPF.DatapathMode
		}, []string{"veth", "auto"}, "netkit", "netkit-l2"),
		boolean("bpf.enableTCX", func(c *Config) *bool { return &c.BPF.EnableTCX }),
		boolean("bpf.preallocateMaps", func(c *Config) *bool { return &c.BPF.PreallocateMaps }),
		ratio("bpf.mapDynamicSizeRatio", func(c *Config) *float64 { return &c.BPF.MapDynamicSizeRatio }),
		integer("bpf.ctTcpMax", func(c *Config) *int { return &c.BPF.CtTCPMax }, minMap, maxMap),
		integer("bpf.ctAnyMax", func(c *Config) *int { return &c.BPF.CtAnyMax }, minMap, maxMap),
		integer("bpf.natMax", func(c *Config) *int { return &c.BPF.NatMax }, minMap, maxMap),
		integer("bpf.neighMax", func(c *Config) *int { return &c.BPF.NeighMax }, minMap, maxMap),
		oneOf("bpf.monitorAggregation", func(c *Config) *string {
			return &c.BPF.MonitorAggregation
		}, []string{"none", "low", "medium", "maximum"}),
		duration("bpf.monitorInterval", func(c *Config) *time.Duration {
			return &c.BPF.MonitorInterval
		}, time.Second, time.Hour),
		vlans("bpf.vlanBypass", func(c *Config) *[]uint16 { return &c.BPF.VLANBypass }),
		boolean("bpf.events.drop.enabled", func(c *Config) *bool { return &c.BPF.Events.Drop }),
		boolean("bpf.events.trace.enabled", func(c *Config) *bool { return &c.BPF.Events.Trace }),
		boolean("bpf.events.policyVerdict.enabled", func(c *Config) *bool { return &c.BPF.Events.PolicyVerdict }),
		integer("bpf.events.default.rateLimit", func(c *Config) *int { return &c.BPF.Events.RateLimit }, 0, 1<<30),
		integer("bpf.events.default.burstLimit", func(c *Config) *int { return &c.BPF.Events.BurstLimit }, 0, 1<<30),
	}
}

func serviceSettings() []setting {
	return []setting{
		boolText("kubeProxyReplacement", func(c *Config) *bool { return &c.KubeProxyReplacement }),
		boolean("socketLB.enabled", func(c *Config) *bool { return &c.SocketLB.Enabled }),
		boolean("socketLB.hostNamespaceOnly", func(c *Config) *bool { return &c.SocketLB.HostNamespaceOnly }),
		boolean("socketLB.terminatePodConnections", func(c *Config) *bool {
			return &c.SocketLB.TerminatePodConnections
		}),
		boolean("nodePort.enabled", func(c *Config) *bool { return &c.NodePort.Enabled }),
		portPair("nodePort.range", func(c *Config) *PortRange { return &c.NodePort.Range }),
		cidrs("nodePort.addresses", func(c *Config) *[]netip.Prefix { return &c.NodePort.Addresses }),
		boolean("nodePort.bindProtection", func(c *Config) *bool { return &c.NodePort.BindProtection }),
		boolean("nodePort.enableHealthCheck", func(c *Config) *bool { return &c.NodePort.EnableHealthCheck }),
		boolean("hostPort.enabled", func(c *Config) *bool { return &c.HostPort }),
		boolean("externalIPs.enabled", func(c *Config) *bool { return &c.ExternalIPs }),
		oneOf("serviceNoBackendResponse", func(c *Config) *string {
			return &c.NoBackendResponse
		}, []string{"reject", "drop"}),
		oneOf("loadBalancer.mode", func(c *Config) *string {
			return &c.LoadBalancer.Mode
		}, []string{"snat", "dsr", "hybrid"}),
		oneOf("loadBalancer.dsrDispatch", func(c *Config) *string {
			return &c.LoadBalancer.DSRDispatch
		}, []string{"opt", "ipip", "geneve"}),
		oneOf("loadBalancer.acceleration", func(c *Config) *string {
			return &c.LoadBalancer.Acceleration
		}, []string{"disabled", "native", "best-effort", "testing-only"}),
		boolean("nat46x64Gateway.enabled", func(c *Config) *bool { return &c.NAT46x64Gateway }),
		boolean("bpf.lbModeAnnotation", func(c *Config) *bool { return &c.BPF.LBModeAnnotation }),
		boolean("myelin.quicConnectionIDs", func(c *Config) *bool { return &c.LoadBalancer.QUICConnectionIDs }),
		cidr("myelin.rssIPv4SrcCIDR", func(c *Config) *netip.Prefix {
			return &c.LoadBalancer.RSSIPv4
		}, "IPv4", netip.Addr.Is4),
		cidr("myelin.rssIPv6SrcCIDR", func(c *Config) *netip.Prefix {
			return &c.LoadBalancer.RSSIPv6
		}, "IPv6", netip.Addr.Is6),
		oneOf("loadBalancer.algorithm", func(c *Config) *string {
			return &c.LoadBalancer.Algorithm
		}, []string{"random", "maglev", "least-conn"}),
		tableSize("maglev.tableSize", func(c *Config) *int { return &c.Maglev.TableSize }),
		text("maglev.hashSeed", func(c *Config) *string { return &c.Maglev.HashSeed }),
		boolean("loadBalancer.serviceTopology", func(c *Config) *bool { return &c.LoadBalancer.ServiceTopology }),
		boolean("loadBalancer.standalone", func(c *Config) *bool { return &c.LoadBalancer.Standalone }),
		integer("bpf.lbMapMax", func(c *Config) *int { return &c.BPF.LBMapMax }, minMap, maxMap),
		boolean("bpf.lbExternalClusterIP", func(c *Config) *bool { return &c.BPF.LBExternalClusterIP }),
		boolean("bpf.lbSourceRangeAllTypes", func(c *Config) *bool { return &c.BPF.LBSourceRangeAllTypes }),
		boolean("bpf.lbAlgorithmAnnotation", func(c *Config) *bool { return &c.BPF.LBAlgorithmAnnotation }),
	}
}

func agentSettings() []setting {
	return []setting{
		path("cni.confPath", func(c *Config) *string { return &c.CNI.ConfPath }),
		path("cni.binPath", func(c *Config) *string { return &c.CNI.BinPath }),
		boolean("cni.exclusive", func(c *Config) *bool { return &c.CNI.Exclusive }),
		oneOf("ipam.mode", func(c *Config) *string { return &c.IPAMMode }, []string{"kubernetes", "cluster-pool"},
			"multi-pool", "crd", "eni", "azure", "alibabacloud", "delegated-plugin"),
		checked("kubeConfigPath", func(c *Config) *string { return &c.KubeConfigPath }, checkKubeConfigPath,
			pattern("^(/.*)?$", "an absolute path")),
		checked("k8sServiceHost", func(c *Config) *string { return &c.K8sServiceHost }, checkServiceHost,
			ServiceHost(false)),
		port("k8sServicePort", func(c *Config) *uint16 { return &c.K8sServicePort }, 0),
		boolean("prometheus.enabled", func(c *Config) *bool { return &c.Prometheus.Enabled }),
		port("prometheus.port", func(c *Config) *uint16 { return &c.Prometheus.Port }, 1),
		checked("myelin.prometheus.address", func(c *Config) *string { return &c.Prometheus.Address }, checkAddress,
			pattern("^[0-9a-fA-F.:]*$", "an IP address of the node, or nothing")),
		port("healthPort", func(c *Config) *uint16 { return &c.HealthPort }, 0),
		boolean("debug.enabled", func(c *Config) *bool { return &c.Debug }),
		boolean("hostFirewall.enabled", func(c *Config) *bool { return &c.Policy.Host }),
		boolean("policyAuditMode", func(c *Config) *bool { return &c.Policy.Audit }),
		boolean("endpointLockdownOnMapOverflow", func(c *Config) *bool { return &c.Policy.Lockdown }),
		integer("bpf.policyMapMax", func(c *Config) *int { return &c.Policy.MapMax }, minMap, maxMap),
		integer("myelin.policy.peersMax", func(c *Config) *int { return &c.Policy.PeersMax }, minMap, maxMap),
		oneOf("myelin.policy.deniedFlows", func(c *Config) *string {
			return &c.Policy.DeniedFlows
		}, []string{"reset", "drop", "leave"}),
		boolean("myelin.policy.report", func(c *Config) *bool { return &c.Myelin.ReportPolicies }),
		objectNames("myelin.policy.prefilter", func(c *Config) *[]string { return &c.Policy.Prefilter }),
		checked("cluster.name", func(c *Config) *string { return &c.ClusterName }, checkClusterName,
			pattern("^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$", "1 to 32 lower case letters, digits and hyphens")),
		someOf("policyCIDRMatchMode", func(c *Config) *[]string { return &c.Policy.CIDRMatchMode }, "nodes"),
		oneOf("policyEnforcementMode", func(c *Config) *string {
			return &c.PolicyEnforcementMode
		}, []string{"default", "always", "never"}),
		text("myelin.manifests", func(c *Config) *string { return &c.Myelin.Manifests }),
		nodeName("myelin.nodeName", func(c *Config) *string { return &c.Myelin.NodeName }),
		path("myelin.runDir", func(c *Config) *string { return &c.Myelin.RunDir }),
		path("myelin.bpfRoot", func(c *Config) *string { return &c.Myelin.BPFRoot }),
		path("myelin.cgroupRoot", func(c *Config) *string { return &c.Myelin.CgroupRoot }),
		path("myelin.sysctlRoot", func(c *Config) *string { return &c.Myelin.SysctlRoot }),
		oneOf("myelin.flowTracking", func(c *Config) *string {
			return &c.Myelin.FlowTracking
		}, []string{"auto", "always"}),
		oneOf("myelin.logFormat", func(c *Config) *string { return &c.Myelin.LogFormat }, []string{"text", "json"}),
		integer("myelin.newFlowRate", func(c *Config) *int { return &c.Myelin.NewFlowRate }, 0, 1<<30),
		portRange("myelin.nat.portRange", func(c *Config) *PortRange { return &c.Myelin.NATPorts }),
	}
}
