package chart

import "maps"

// hubbleKeys are the keys below hubble that this chart acts on.
func hubbleKeys() map[string]schema {
	text, flag, count := schema{"type": "string"}, schema{"type": "boolean"}, schema{"type": "integer", "minimum": 0}
	objects, mapping := schema{"type": "array", "items": schema{"type": "object"}}, schema{"type": "object"}
	labels := schema{"type": "object", "additionalProperties": schema{"type": "string"}}
	words := schema{"type": "array", "items": schema{"type": "string", "minLength": 1}}
	port := schema{"type": "integer", "minimum": 1, "maximum": 65535}
	textOrNull := schema{"type": []any{"string", "null"}}
	all := map[string]schema{
		"hubble.annotations": labels, "hubble.peerService.servicePort": port, "hubble.peerService.targetPort": port,
		"hubble.peerService.clusterDomain": text,
		"hubble.tls.auto.enabled":          flag,
		"hubble.tls.auto.method":           {"enum": []any{"operator", "helm", "cronJob", "certmanager"}},
		// Longer than Go's durations last it must not be: in hours, 292 years.
		"hubble.tls.auto.certValidityDuration": {"type": "integer", "minimum": 1, "maximum": 36500},
		"hubble.tls.auto.certManagerIssuerRef": mapping,
		"hubble.tls.server.extraDnsNames":      words, "hubble.tls.server.extraIpAddresses": words,
		"hubble.relay.rollOutPods": flag, "hubble.ui.rollOutPods": flag,
		"hubble.relay.extraEnv": objects, "hubble.relay.extraVolumes": objects,
		"hubble.relay.extraVolumeMounts": objects,
		"hubble.relay.resources":         mapping, "hubble.relay.podSecurityContext": mapping,
		"hubble.relay.terminationGracePeriodSeconds": count, "hubble.relay.servicePort": port,
		"hubble.relay.listenHost": text, "hubble.relay.listenPort": {"anyOf": []any{port,
			schema{"type": "string", "pattern": "^[0-9]+$"}}},
		"hubble.relay.tls.server.enabled": flag, "hubble.relay.tls.server.mtls": flag,
		"hubble.relay.tls.server.extraDnsNames": words, "hubble.relay.tls.server.extraIpAddresses": words,
		"hubble.relay.tls.server.relayName": text,
		"hubble.relay.retryTimeout":         textOrNull, "hubble.relay.sortBufferDrainTimeout": textOrNull,
		"hubble.relay.sortBufferLenMax": {"anyOf": []any{schema{"type": "integer", "minimum": 1},
			schema{"type": "null"}}},
		"hubble.relay.logOptions.format": textOrNull, "hubble.relay.logOptions.level": textOrNull,
		"hubble.relay.prometheus.enabled": flag, "hubble.relay.prometheus.port": port,
		"hubble.ui.backend.resources": mapping, "hubble.ui.backend.extraEnv": objects, "hubble.ui.labels": labels,
		"hubble.ui.service.annotations": labels, "hubble.ui.service.labels": labels,
		"hubble.ui.ingress.enabled": flag, "hubble.ui.ingress.annotations": labels, "hubble.ui.ingress.labels": labels,
		"hubble.ui.ingress.className": text, "hubble.ui.ingress.hosts": words, "hubble.ui.ingress.tls": objects,
		"hubble.metrics.serviceAnnotations": labels, "hubble.metrics.dashboards.enabled": flag,
		"hubble.metrics.dashboards.label": text, "hubble.metrics.dashboards.labelValue": text,
		"hubble.metrics.dashboards.namespace": textOrNull, "hubble.metrics.dashboards.annotations": labels,
		"hubble.export.dynamic.config.configMapName":   {"type": "string", "minLength": 1},
		"hubble.export.dynamic.config.createConfigMap": flag, "hubble.export.dynamic.config.content": objects,
	}
	maps.Copy(all, hubbleDeployments())
	return all
}

// hubbleDeployments are the keys that relays and the web page have alike, and those of certificates.
func hubbleDeployments() map[string]schema {
	text, flag, count := schema{"type": "string"}, schema{"type": "boolean"}, schema{"type": "integer", "minimum": 0}
	objects, mapping := schema{"type": "array", "items": schema{"type": "object"}}, schema{"type": "object"}
	labels := schema{"type": "object", "additionalProperties": schema{"type": "string"}}
	all := map[string]schema{}
	for _, at := range []string{"hubble.relay.", "hubble.ui."} {
		all[at+"enabled"], all[at+"replicas"], all[at+"affinity"] = flag, count, mapping
		all[at+"topologySpreadConstraints"], all[at+"tolerations"] = objects, objects
		all[at+"nodeSelector"], all[at+"annotations"] = labels, labels
		all[at+"podAnnotations"], all[at+"podLabels"], all[at+"priorityClassName"] = labels, labels, text
		all[at+"podDisruptionBudget"], all[at+"securityContext"] = budget(), mapping
		all[at+"updateStrategy"] = strategy("RollingUpdate", "Recreate")
		all[at+"service.type"] = schema{"enum": []any{"ClusterIP", "NodePort", "LoadBalancer"}}
		all[at+"service.nodePort"] = schema{"type": "integer", "minimum": 0, "maximum": 65535}
	}
	for _, at := range []string{"hubble.tls.server.", "hubble.relay.tls.client.", "hubble.relay.tls.server.",
		"hubble.ui.tls.client."} {
		all[at+"existingSecret"] = text
		// Keys are not for values, which Helm stores with each release.
		for _, name := range []string{"cert", "key"} {
			all[at+name] = schema{"const": "", "description": "refused: name a Secret by existingSecret"}
		}
	}
	return all
}
