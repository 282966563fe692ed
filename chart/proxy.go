package chart

// proxyKeys are the keys below envoy that this chart acts on.
func proxyKeys() map[string]schema {
	flag, count := schema{"type": "boolean"}, schema{"type": "integer", "minimum": 0}
	objects, mapping := schema{"type": "array", "items": schema{"type": "object"}}, schema{"type": "object"}
	labels := schema{"type": "object", "additionalProperties": schema{"type": "string"}}
	words := schema{"type": "array", "items": schema{"type": "string", "minLength": 1}}
	all := map[string]schema{
		"envoy.enabled": flag, "envoy.resources": mapping, "envoy.nodeSelector": labels, "envoy.tolerations": objects,
		"envoy.affinity": mapping, "envoy.priorityClassName": {"type": []any{"string", "null"}},
		"envoy.annotations": labels, "envoy.podAnnotations": labels, "envoy.podLabels": labels,
		"envoy.extraArgs": words, "envoy.extraEnv": objects, "envoy.terminationGracePeriodSeconds": count,
		"envoy.updateStrategy":             strategy("RollingUpdate", "OnDelete"),
		"envoy.securityContext.privileged": flag, "envoy.securityContext.capabilities.envoy": words,
	}
	for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
		all["envoy."+probe+".periodSeconds"], all["envoy."+probe+".failureThreshold"] = count, count
	}
	return all
}
