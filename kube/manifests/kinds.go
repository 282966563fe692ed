package manifests

import (
	"path/filepath"
	"slices"
	"strings"
)

// statusDir holds what the kubelet would report: Pods whose status counts.
const statusDir = "status"

func isStatus(rel string) bool {
	return strings.HasPrefix(rel, statusDir+string(filepath.Separator))
}

// hasNamespace reports whether objects of a kind that has a table are in a
// namespace.
func hasNamespace(kind string) bool {
	return slices.Contains([]string{
		"v1/Pod", "v1/Service", "v1/Secret", "discovery.k8s.io/v1/EndpointSlice", "networking.k8s.io/v1/NetworkPolicy",
		"cilium.io/v2/CiliumNetworkPolicy",
	}, kind)
}

func isList(kind string) bool {
	of, ok := strings.CutSuffix(kind, "List")
	return ok && (of == "v1/" || decoders()[of] != nil)
}

// isKnown reports whether Kubernetes or Cilium has the kind. Such objects may
// lie in the directory; what acts on them comes later.
func isKnown(apiVersion, kind string) bool {
	kinds, ok := knownKinds()[apiVersion]
	return ok && slices.Contains(strings.Fields(kinds), kind)
}

func knownKinds() map[string]string {
	return map[string]string{
		"v1": "Endpoints ConfigMap ServiceAccount Event LimitRange " +
			"ResourceQuota PersistentVolume PersistentVolumeClaim ReplicationController PodTemplate Binding " +
			"ComponentStatus",
		"apps/v1":                      "Deployment DaemonSet StatefulSet ReplicaSet ControllerRevision",
		"batch/v1":                     "Job CronJob",
		"autoscaling/v1":               "HorizontalPodAutoscaler",
		"autoscaling/v2":               "HorizontalPodAutoscaler",
		"policy/v1":                    "PodDisruptionBudget",
		"events.k8s.io/v1":             "Event",
		"coordination.k8s.io/v1":       "Lease",
		"scheduling.k8s.io/v1":         "PriorityClass",
		"node.k8s.io/v1":               "RuntimeClass",
		"storage.k8s.io/v1":            "StorageClass CSIDriver CSINode VolumeAttachment CSIStorageCapacity",
		"rbac.authorization.k8s.io/v1": "Role RoleBinding ClusterRole ClusterRoleBinding",
		"apiextensions.k8s.io/v1":      "CustomResourceDefinition",
		"apiregistration.k8s.io/v1":    "APIService",
		"admissionregistration.k8s.io/v1": "MutatingWebhookConfiguration ValidatingWebhookConfiguration " +
			"ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding",
		"networking.k8s.io/v1":               "Ingress IngressClass IPAddress ServiceCIDR",
		"policy.networking.k8s.io/v1alpha1":  "AdminNetworkPolicy BaselineAdminNetworkPolicy",
		"gateway.networking.k8s.io/v1":       "Gateway GatewayClass HTTPRoute GRPCRoute TLSRoute BackendTLSPolicy",
		"gateway.networking.k8s.io/v1beta1":  "Gateway GatewayClass HTTPRoute ReferenceGrant",
		"gateway.networking.k8s.io/v1alpha2": "TCPRoute UDPRoute TLSRoute",
		"cilium.io/v2": "CiliumEndpoint CiliumIdentity CiliumNode CiliumNodeConfig " +
			"CiliumEgressGatewayPolicy CiliumLocalRedirectPolicy CiliumEnvoyConfig CiliumClusterwideEnvoyConfig " +
			"CiliumLoadBalancerIPPool CiliumPodIPPool CiliumEndpointSlice CiliumBGPClusterConfig CiliumBGPPeerConfig " +
			"CiliumBGPAdvertisement CiliumBGPNodeConfig CiliumBGPNodeConfigOverride",
		"cilium.io/v2alpha1": "CiliumLoadBalancerIPPool CiliumL2AnnouncementPolicy CiliumPodIPPool " +
			"CiliumEndpointSlice CiliumGatewayClassConfig CiliumBGPPeeringPolicy CiliumBGPClusterConfig " +
			"CiliumBGPPeerConfig CiliumBGPAdvertisement CiliumBGPNodeConfig CiliumBGPNodeConfigOverride",
		"monitoring.coreos.com/v1":        "ServiceMonitor PodMonitor PrometheusRule",
		"multicluster.x-k8s.io/v1alpha1":  "ServiceExport ServiceImport",
		"kustomize.config.k8s.io/v1beta1": "Kustomization",
		"flowcontrol.apiserver.k8s.io/v1": "FlowSchema PriorityLevelConfiguration",
		"resource.k8s.io/v1":              "ResourceClaim ResourceClaimTemplate DeviceClass ResourceSlice",
		"authentication.k8s.io/v1":        "TokenReview",
		"certificates.k8s.io/v1":          "CertificateSigningRequest",
		"snapshot.storage.k8s.io/v1":      "VolumeSnapshot VolumeSnapshotClass VolumeSnapshotContent",
	}
}
