package chart

// wireguardKeys are the keys of WireGuard's DaemonSet.
func wireguardKeys() map[string]schema {
	return map[string]schema{
		"encryption.wireguard.userspaceFallback": {"type": "boolean"},
		"myelin.wireguard.resources":             {"type": "object"},
		"securityContext.capabilities.wireguard": {"type": "array",
			"items": schema{"type": "string", "minLength": 1}},
	}
}
