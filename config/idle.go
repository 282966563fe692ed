package config

import (
	"fmt"
	"slices"
	"strings"

	"myelin/config/key"
)

// idle is a key that is accepted and does nothing.
type idle struct {
	key   string
	value string // for which that is worth a warning
	why   string
}

// idles are values of what is always so here, whatever the key says, that ask for something else.
func idles() []idle {
	return []idle{
		{"nodePort.autoProtectPortRange", "true",
			"node ports are not reserved; keep net.ipv4.ip_local_port_range away from nodePort.range"},
		{"enableInternalTrafficPolicy", "false", "internalTrafficPolicy is always followed"},
		{"endpointRoutes.enabled", "false", "each pod has a route of its own"},
		{"pmtuDiscovery.enabled", "false", "what is too large is always answered with ICMP"},
		{"socketLB.tracing", "false", "sockets are reported as other events are: bpf.events.trace.enabled"},
		{"sctp.enabled", "false", "SCTP is always forwarded"},
		{"l2NeighDiscovery.enabled", "false", "next hops are always kept resolved"},
		{"enableXTSocketFallback", "true", "no iptables rule is ever written"},
		{"k8s.requireIPv4PodCIDR", "false", "the agent always waits for podCIDRs of a family that is on"},
		{"k8s.requireIPv6PodCIDR", "false", "the agent always waits for podCIDRs of a family that is on"},
	}
}

// warnIdle says that a key which is no setting does nothing.
func (c *Config) warnIdle(v value, file string) {
	for _, k := range idles() {
		if k.key == v.key && k.value == key.Show(v.value) {
			reason := fmt.Sprintf("%s has no effect: %s", key.Show(v.value), k.why)
			c.Warnings = append(c.Warnings, Problem{File: file, Key: v.key, Reason: reason})
		}
	}
	if !slices.ContainsFunc(features(), func(f feature) bool { return f.key == v.key }) {
		c.ignored = append(c.ignored, v.key)
	}
}

// leftByChart are keys that this repository's chart acts on, and leaves in the agent's file.
func leftByChart(key string) bool {
	return slices.Contains([]string{"bpf.autoMount.enabled", "prometheus.metricsService"}, key) ||
		strings.HasPrefix(key, "prometheus.serviceMonitor.") ||
		strings.HasPrefix(key, "hubble.metrics.service") || strings.HasPrefix(key, "hubble.metrics.dashboards.") ||
		strings.HasPrefix(key, "hubble.export.dynamic.config.")
}

// ignoredWarnings are of keys that the file may have, since Cilium has them, and that the agent never looks at.
// Those of one feature, and those for charts alone, are one warning.
func (c *Config) ignoredWarnings(add func(key, format string, args ...any)) {
	left := slices.DeleteFunc(slices.Clone(c.ignored), leftByChart)
	for _, f := range features() {
		var details []string
		for _, d := range strings.Fields(f.details) {
			details = append(details, slices.Collect(func(yield func(string) bool) {
				for _, key := range left {
					if key != f.key && matches(d, key) && !yield(key) {
						return
					}
				}
			})...)
		}
		if len(details) > 0 {
			add(f.key, "is off, so that these have no effect: %s", strings.Join(details, ", "))
			left = slices.DeleteFunc(left, func(key string) bool { return slices.Contains(details, key) })
		}
	}
	if len(left) > 0 {
		more := ""
		if len(left) > 1 {
			more = "; nor have " + strings.Join(left[1:], ", ")
		}
		add(left[0], "has no effect: the agent does not look at it%s", more)
	}
}

// unused is a setting that has no effect while off is true.
type unused struct {
	keys string // separated by blanks
	off  bool
	why  string
}

func (c *Config) unused() []unused {
	const notYet = "this version does not act on it"
	native := c.RoutingMode != "tunnel"
	maglev := c.Services() &&
		(c.LoadBalancer.Algorithm == "maglev" || c.LoadBalancer.AlgorithmAnnotation || c.LoadBalancer.Standalone)
	return append(c.unusedElsewhere(), []unused{
		{"bpf.vlanBypass nodePort.directRoutingDevice", true, notYet},
		{"bpf.preallocateMaps", c.Myelin.MapGrowthRatio <= 0,
			"myelin.mapGrowthRatio is 0, so that maps have their largest sizes in any case"},
		{"bpf.monitorAggregation bpf.monitorInterval", !c.Events.Trace, "bpf.events.trace.enabled is false"},
		{"bpf.natMax", true, "a translated flow is one record, counted by bpf.ctTcpMax and bpf.ctAnyMax"},
		{"myelin.mapGrowthRatio", c.isSet("bpf.ctTcpMax") || c.isSet("bpf.ctAnyMax"),
			"bpf.ctTcpMax or bpf.ctAnyMax is set, so that tables do not grow"},
		{"myelin.mapGrowthRatio", c.BPF.MapDynamicSizeRatio > 0 && c.Myelin.MapGrowthRatio > 0,
			"bpf.mapDynamicSizeRatio says what tables may grow to"},
		{"bpf.events.default.rateLimit bpf.events.default.burstLimit", !c.Events.Drop && !c.Events.Trace,
			"bpf.events.drop.enabled and bpf.events.trace.enabled are false"},
		{"tunnelProtocol tunnelPort", native, "routingMode is native"},
		{"directRoutingSkipUnreachable", !c.AutoDirectNodeRoutes, "autoDirectNodeRoutes is false"},
		{"enableIPv4Masquerade", !c.IPv4.Enabled, "ipv4.enabled is false"},
		{"enableIPv6Masquerade", !c.IPv6.Enabled, "ipv6.enabled is false"},
		{"loadBalancer.algorithm bpf.lbAlgorithmAnnotation bpf.lbModeAnnotation bpf.lbMapMax", !c.Services(),
			"socketLB.enabled and nodePort.enabled are false"},
		{"maglev.tableSize maglev.hashSeed", !maglev, "no Service is balanced by maglev"},
	}...)
}

// unusedElsewhere are those about what is not the datapath's. Features declare others with their keys.
func (c *Config) unusedElsewhere() []unused {
	return []unused{
		{"prometheus.port myelin.prometheus.address", !c.Prometheus.Enabled, "prometheus.enabled is false"},
		{"policyAuditMode policyCIDRMatchMode hostFirewall.enabled endpointLockdownOnMapOverflow " +
			"bpf.policyMapMax myelin.policy.peersMax myelin.policy.deniedFlows",
			c.PolicyEnforcementMode == "never", "policyEnforcementMode is never"},
		{"ipam.operator.clusterPoolIPv4PodCIDRList ipam.operator.clusterPoolIPv4MaskSize " +
			"ipam.operator.clusterPoolIPv6PodCIDRList ipam.operator.clusterPoolIPv6MaskSize",
			c.IPAMMode != "cluster-pool", "ipam.mode is " + c.IPAMMode},
		{"cni.confPath cni.binPath cni.exclusive ipam.mode", c.LoadBalancer.Standalone,
			"loadBalancer.standalone is true: the node has no pods"},
		{"defaultLBServiceIPAM myelin.policy.report", !c.Kubernetes(), "the cluster is not read from an API server"},
	}
}

// idleWarnings are of settings that the file sets to something else than their default, and that have no effect.
func (c *Config) idleWarnings(add func(key, format string, args ...any)) {
	base, known := Default(), map[string]setting{}
	for _, s := range settings() {
		known[s.Name] = s
	}
	for _, u := range c.unused() {
		for _, key := range strings.Fields(u.keys) {
			s := known[key]
			if u.off && c.isSet(key) && s.Get(c) != s.Get(base) {
				add(key, "has no effect: %s", u.why)
			}
		}
	}
	for _, s := range settings() {
		if s.Unused == nil || !c.isSet(s.Name) || s.Get(c) == s.Get(base) {
			continue
		}
		if why := s.Unused(c); why != "" {
			add(s.Name, "has no effect: %s", why)
		}
	}
	c.ignoredWarnings(add)
}

// CheckValue is what the agent says of the value of one key, as JSON has it, without looking at others; nil if it
// takes it.
func CheckValue(key string, data []byte) error {
	values, problems := flatten([]byte(fmt.Sprintf("{%q: %s}", key, data)), "values")
	for _, v := range values {
		for _, s := range settings() {
			if s.Name == v.key {
				return s.Set(Default(), v.value)
			}
		}
		return later(v)
	}
	for _, p := range problems {
		return fmt.Errorf("%s", p.Reason)
	}
	return nil
}
