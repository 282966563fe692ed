package cluster

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// netAdmin reports whether a container of the Pod may administer the pod's
// network namespace: privileged, or with a capability that includes it.
func netAdmin(spec *corev1.PodSpec) bool {
	var contexts []*corev1.SecurityContext
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		contexts = append(contexts, c.SecurityContext)
	}
	for _, c := range spec.EphemeralContainers {
		contexts = append(contexts, c.SecurityContext)
	}
	return slices.ContainsFunc(contexts, contextNetAdmin)
}

func contextNetAdmin(c *corev1.SecurityContext) bool {
	if c == nil {
		return false
	}
	if c.Privileged != nil && *c.Privileged {
		return true
	}
	return c.Capabilities != nil && slices.ContainsFunc(c.Capabilities.Add, func(added corev1.Capability) bool {
		name := strings.TrimPrefix(strings.ToUpper(string(added)), "CAP_")
		return name == "NET_ADMIN" || name == "SYS_ADMIN" || name == "ALL"
	})
}
