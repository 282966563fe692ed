package config

import (
	"fmt"
	"slices"
	"strings"

	"myelin/config/key"
)

// feature is a switch that Cilium has and the agent does not act on. A value
// that leaves it off is accepted, so that whole Helm values files can be
// used; any other is refused, because a cluster whose administrator turns encryption
// on must not run without it.
type feature struct {
	key string
	off string // values that mean off or change nothing, separated by blanks
	why string // what it is, or why it is refused for good
	// details are keys that mean nothing while the switch is off, separated by
	// blanks. They are listed, not matched by a pattern, where a mistyped
	// switch would be dangerous.
	details string
}

// later checks a value whose key is not a setting.
func later(v value) error {
	for _, f := range features() {
		if f.key == v.key && !slices.Contains(strings.Fields(f.off), offText(v.value)) {
			return fmt.Errorf("%s: %s", key.Show(v.value), f.why)
		}
	}
	return nil
}

// offText is a value as features write it: lists and text may be empty.
func offText(v any) string {
	text := strings.Trim(key.Show(v), `"`)
	switch text {
	case "", "[]", "{}":
		return "empty"
	}
	return text
}

// knownKeys are all keys and subtrees that a file may have.
func knownKeys() []string {
	var keys []string
	for _, s := range settings() {
		keys = append(keys, s.Name)
	}
	for _, f := range features() {
		keys = append(keys, f.key)
		keys = append(keys, strings.Fields(f.details)...)
	}
	return append(keys, strings.Fields(chartKeys())...)
}

func features() []feature {
	return slices.Concat(refusedFeatures(), serviceFeatures(), securityFeatures(), otherFeatures())
}

func refusedFeatures() []feature {
	const noIPTables = "refused: no iptables rule is ever written; the datapath bypasses netfilter by itself"
	return []feature{
		{"installNoConntrackIptablesRules", "false", noIPTables, ""},
		{"iptablesRandomFully", "false", noIPTables, ""},
		{"enableXTSocketFallback", "true false", noIPTables, ""},
		// Always so here: both values do what they ask for.
		{"endpointRoutes.enabled", "true false", "", ""},
		{"pmtuDiscovery.enabled", "true false", "", ""},
		{"sctp.enabled", "true false", "", ""},
		{"l2NeighDiscovery.enabled", "true false", "", "l2NeighDiscovery.refreshPeriod"},
		{"identityAllocationMode", "crd", "refused: identities are local to a node, and need no store", ""},
		{"bpf.monitorFlags", "all", "not yet: only all", ""},
		{"daemon.enableSourceIPVerification", "true", "refused: the source of a pod's packets is always verified", ""},
	}
}

func serviceFeatures() []feature {
	const health = "not yet: the health of Services' proxy on a port of its own"
	return []feature{
		{"kubeProxyReplacementHealthzBindAddr", "empty", health, ""},
		{"nodePort.enableHealthCheckLoadBalancerIP", "false", "not yet: health checks are on the node's addresses", ""},
		// Acted on elsewhere, or always so here; see idles.
		{"nodePort.autoProtectPortRange", "true false", "", ""},
		{"enableInternalTrafficPolicy", "true false", "",
			"bpf.disableExternalIPMitigation enableNoServiceEndpointsRoutable waitForKubeProxy"},
		{"socketLB.tracing", "true false", "", ""},
		{"loadBalancer.l7.backend", "disabled", "not yet: L7", "loadBalancer.l7.algorithm loadBalancer.l7.ports"},
		{"loadBalancer.dsrL4Translate", "frontend",
			"not yet: the backend's address and port are written where the packet is sent on", ""},
		{"localRedirectPolicies.enabled", "false", "not yet: local redirect",
			"localRedirectPolicies.addressMatcherCIDRs"},
		{"localRedirectPolicy", "false", "not yet: local redirect", ""},
		{"l2announcements.enabled", "false", "not yet: announcing Services",
			"l2announcements.leaseDuration l2announcements.leaseRenewDeadline l2announcements.leaseRetryPeriod"},
		{"l2podAnnouncements.enabled", "false", "not yet: announcing pods",
			"l2podAnnouncements.interface l2podAnnouncements.interfacePattern"},
		{"bgpControlPlane.enabled", "false", "not yet: BGP", "bgpControlPlane.*"},
		{"nodeIPAM.enabled", "false", "not yet: addresses of nodes for load balancers", ""},
	}
}

func securityFeatures() []feature {
	const l7, strict = "not yet: L7 policies", "refused: use encryption.strictMode.egress.enabled"
	return []feature{
		{"encryption.strictMode.enabled", "false", strict,
			"encryption.strictMode.cidr encryption.strictMode.allowRemoteNodeIdentities encryption.ipsec.interface"},
		// Always so here: what pods send is encrypted, not VXLAN.
		{"encryption.ipsec.encryptedOverlay", "true false", "", ""},
		{"authentication.enabled", "false", "not yet: mutual authentication", "authentication.*"},
		{"policyDenyResponse", "none", "not yet: answers to what a policy denies",
			"bpf.policyStatsMapMax bpf.policyMapPressureMetricsThreshold bpf.authMapMax"},
		{"envoyConfig.enabled", "false", l7, "envoyConfig.*"},
		{"ingressController.enabled", "false", "not yet: Ingress", "ingressController.*"},
		{"gatewayAPI.enabled", "false", "not yet: Gateway API", "gatewayAPI.*"},
		{"bpf.tproxy", "false", l7, ""},
		{"tls.readSecretsOnlyFromSecretsNamespace", "true null", "refused: agents have no right to all Secrets of " +
			"the cluster; put those of policies into the namespace tls.secretsNamespace.name", ""},
		{"tls.secretsBackend", "local null", "refused: agents have no right to all Secrets of the cluster", ""},
		{"tls.secretSync.enabled", "false null", "not yet: copying Secrets; put those of policies into the namespace " +
			"tls.secretsNamespace.name", "tls.secretSync.*"},
		{"tls.caBundle.enabled", "false", "not yet: authorities for all of TLS", "tls.caBundle.*"},
		{"egressGateway.enabled", "false", "not yet: egress gateways",
			"egressGateway.reconciliationTriggerInterval egressGateway.maxPolicyEntries"},
		{"dnsProxy.preCache", "empty", "not yet: a cache of names from a file",
			"dnsProxy.enableTransparentMode dnsProxy.enableDnsCompression dnsProxy.maxDeferredConnectionDeletes " +
				"dnsProxy.preAllocateIdentities dnsProxy.proxyPort dnsProxy.proxyResponseMaxDelay " +
				"dnsProxy.socketLingerTimeout"},
	}
}

func otherFeatures() []feature {
	const later, clouds = "not yet", "not yet: addresses from a cloud"
	return []feature{
		{"hubble.metrics.dynamic.enabled", "false", "not yet: metrics that are configured while the agent runs",
			"hubble.metrics.dynamic.config.*"},
		{"hubble.metrics.tls.enabled", "false", "not yet: metrics of flows by TLS", "hubble.metrics.tls.server.*"},
		{"hubble.export.static.fieldAggregate", "empty", "not yet: flows are aggregated by the datapath only",
			"hubble.export.static.aggregationInterval"},
		{"hubble.redact.http.headers.allow", "empty", "headers are never recorded", ""},
		{"hubble.redact.http.headers.deny", "empty", "headers are never recorded", "hubble.redact.kafka.apiKey"},
		{"hubble.dropEventEmitter.enabled", "false", "not yet: drops as Kubernetes events",
			"hubble.dropEventEmitter.*"},
		{"hubble.networkPolicyCorrelation.enabled", "true", "flows always say which policies decided", ""},
		{"hubble.skipUnknownCGroupIDs", "true false empty null", "", ""},
		{"ipMasqAgent.enabled", "false", "not yet: ip-masq-agent", "ipMasqAgent.config.*"},
		{"enableMasqueradeRouteSource", "false", later, ""},
		{"tunnelSourcePortRange", "0-0", later, ""},
		{"bpf.ctAccounting", "false", later, ""},
		{"bpfClockProbe", "true false", "", ""},
		{"forceDeviceDetection", "false", later, ""},
		{"healthChecking", "false", "not yet: health checks between nodes",
			"healthCheckICMPFailureThreshold connectivityProbeFrequencyRatio"},
		{"endpointHealthChecking.enabled", "false", "not yet: health checks between nodes", ""},
		{"clustermesh.useAPIServer", "false", "not yet: several clusters", "clustermesh.*"},
		{"clustermesh.config.enabled", "false", "not yet: several clusters", ""},
		{"cluster.id", "0", "not yet: several clusters", ""},
		{"vtep.enabled", "false", "not yet: VTEP", "vtep.endpoint vtep.cidr vtep.mask vtep.mac"},
		{"cni.chainingMode", "none empty", "not yet: chaining of CNI plugins",
			"cni.chainingTarget cni.enableRouteMTUForCNIChaining"},
		{"cni.customConf", "false", later, "cni.configMap cni.configMapKey"},
		{"nodeSelectorLabels", "false", later, ""},
		{"k8s.requireIPv4PodCIDR", "true false", "", ""},
		{"k8s.requireIPv6PodCIDR", "true false", "", ""},
		{"ciliumEndpointSlice.enabled", "false", "not yet: sources other than manifests", "ciliumEndpointSlice.*"},
		{"etcd.enabled", "false", "refused: identities and addresses need no store", "etcd.*"},
		{"eni.enabled", "false", clouds, "eni.*"},
		{"azure.enabled", "false", clouds, "azure.*"},
		{"alibabacloud.enabled", "false", clouds, ""},
		{"aksbyocni.enabled", "false", clouds, ""},
		{"gke.enabled", "false", clouds, ""},
		{"multicast.enabled", "false", "not yet: multicast", ""},
	}
}

// chartKeys are what a Helm chart acts on and an agent can't: they are
// accepted, so that one file serves both.
func chartKeys() string {
	return `affinity agent agentNotReadyTaintKey annotateK8sNode annotations apiRateLimit
		bpf.autoMount.enabled bpf.root certgen.* cgroup.* cleanBpfState cleanState encryption.ipsec.secretName
		encryption.wireguard.userspaceFallback
		cni.confFileMountPath cni.hostConfDirMountPath cni.install cni.iptablesRemoveAWSRules cni.logFile
		cni.resources.* cni.uninstall commonLabels.* crdWaitTimeout daemon.runPath dashboards.*
		debug.verbose debug.metricsSamplingInterval dnsPolicy enableCriticalPriorityClass envoy.* extraArgs
		hubble.metrics.serviceAnnotations.* hubble.metrics.serviceMonitor.* hubble.metrics.dashboards.*
		hubble.export.dynamic.config.* hubble.annotations hubble.eventQueueSize hubble.peerService.* hubble.tls.auto.* hubble.tls.server.*
		hubble.relay.* hubble.ui.*
		extraConfig.* extraContainers extraEnv extraHostPathMounts extraInitContainers extraVolumeMounts
		extraVolumes identityChangeGracePeriod image.* imagePullSecrets initResources.*
		ipam.ciliumNodeUpdateRate ipam.operator.* ipam.multiPoolPreAllocation k8sClientRateLimit.*
		k8sClientExponentialBackoff.* livenessProbe.* logSystemLoad monitor.* name
		namespaceOverride nodeSelector.* nodeinit.* operator.* podAnnotations.* podLabels.*
		podSecurityContext.* pprof.* preflight.* priorityClassName prometheus.serviceMonitor.*
		prometheus.metrics prometheus.metricsService prometheus.controllerGroupMetrics rbac.*
		readinessProbe.* resourceQuotas.* resources.* rollOutCiliumPods scheduling.* secretsNamespaceLabels.*
		securityContext.* serviceAccounts.* sleepAfterInit startupProbe.* synchronizeK8sNodes
		terminationGracePeriodSeconds tls.ca.* tls.secretsNamespace.create tolerations updateStrategy.* upgradeCompatibility wellKnownIdentities.*`
}
