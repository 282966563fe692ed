package main

import (
	"maps"
	"slices"
)

// apply adds to a schema what a server is to check beyond types: rules of TYPE or TYPE.field,
// and those of one kind, KIND/TYPE.
func (m *maker) apply(s schema, name string) {
	for _, key := range []string{name, m.kind + "/" + name} {
		if rule, ok := rules()[key]; ok {
			m.used[key] = true
			merge(s, rule)
		}
	}
}

// merge adds to a schema; lists of both are joined.
func merge(s, more schema) {
	for k, v := range more {
		if list, ok := s[k].([]any); ok {
			s[k] = slices.Concat(list, v.([]any))
			continue
		}
		if inner, ok := v.(schema); ok {
			if old, ok := s[k].(schema); ok {
				merge(old, inner)
				continue
			}
			v = maps.Clone(inner)
		}
		s[k] = v
	}
}

// cel is a rule, and what is said where it doesn't hold.
func cel(rule, message string) any { return schema{"rule": rule, "message": message} }

func check(list ...any) schema { return schema{"x-kubernetes-validations": list} }

func enum(values ...any) schema { return schema{"enum": values} }

// exactlyOne of some fields.
func exactlyOne(fields ...string) schema {
	var list []any
	for _, f := range fields {
		list = append(list, schema{"required": []any{f}})
	}
	return schema{"oneOf": list}
}

// port is a number of 0..65535, or a name of RFC 6335.
const port = `^(0|[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]|` +
	`([a-zA-Z0-9]+-)*[0-9]*[a-zA-Z][a-zA-Z0-9]*(-[a-zA-Z0-9]+)*)$`

// rules are what policies are refused for that a server can find out: by forms of text where lists are as
// long as one likes, since a server bounds what expressions may cost, and by expressions elsewhere.
func rules() map[string]schema {
	entities := schema{"items": enum("all", "world", "world-ipv4", "world-ipv6", "cluster", "cluster-mesh", "host",
		"init", "ingress", "unmanaged", "remote-node",
		"health", "none", "kube-apiserver")}
	addresses := schema{"items": schema{"anyOf": []any{schema{"format": "cidr"}, schema{"format": "ipv4"},
		schema{"format": "ipv6"}}}}
	some := cel("(has(self.ingress) && size(self.ingress) > 0) || (has(self.ingressDeny) && size(self.ingressDeny) > "+
		"0) || "+
		"(has(self.egress) && size(self.egress) > 0) || (has(self.egressDeny) && size(self.egressDeny) > 0)",
		"must have a rule in one of ingress, ingressDeny, egress, egressDeny")
	either := check(cel("has(self.spec) || has(self.specs)", "one of spec and specs must be set"))
	// Not with an expression: there may be as many rules as one likes.
	filled := schema{"minItems": 1}
	ports := schema{"not": schema{"required": []any{"toPorts", "icmps"}, "properties": schema{"toPorts": filled,
		"icmps": filled}}}
	return map[string]schema{
		"CiliumNetworkPolicy": either, "CiliumClusterwideNetworkPolicy": either,
		"CiliumNetworkPolicy.specs": {"maxItems": 1000}, "CiliumClusterwideNetworkPolicy.specs": {"maxItems": 1000},
		"CiliumNetworkPolicy/Rule": check(some,
			cel("!has(self.nodeSelector)",
				"nodeSelector must not be set in a CiliumNetworkPolicy: CiliumClusterwideNetworkPolicy has it"),
			cel("has(self.endpointSelector)", "endpointSelector must be set")),
		"CiliumClusterwideNetworkPolicy/Rule": check(some,
			cel("has(self.endpointSelector) || has(self.nodeSelector)",
				"one of endpointSelector and nodeSelector must be set"),
			cel("!has(self.endpointSelector) || !has(self.nodeSelector)",
				"only one of endpointSelector and nodeSelector may be set")),
		"IngressRule": ports, "IngressDenyRule": ports, "EgressRule": ports, "EgressDenyRule": ports,
		"FromPeers.fromEntities": entities, "ToPeers.toEntities": entities,
		"FromPeers.fromCIDR": addresses, "ToPeers.toCIDR": addresses, "CIDRGroupSpec.externalCIDRs": addresses,
		"CIDRRule": exactlyOne("cidr", "cidrGroupRef", "cidrGroupSelector"), "CIDRRule.cidr": {"format": "cidr"},
		"CIDRRule.except":    {"items": schema{"format": "cidr"}},
		"Service":            exactlyOne("k8sService", "k8sServiceSelector"),
		"PortRule.ports":     {"maxItems": 40},
		"PortDenyRule.ports": {"maxItems": 40},
		"ICMPRule.fields":    {"maxItems": 40},
		"PortProtocol.port":  {"pattern": port, "maxLength": 15}, "PortProtocol.endPort": {"minimum": 0,
			"maximum": 65535},
		"PortProtocol.protocol":      enum("TCP", "UDP", "SCTP", "ANY", ""),
		"ICMPField.family":           enum("IPv4", "IPv6", ""),
		"Authentication.mode":        enum("disabled", "required", "test-always-fail"),
		"PoolSpec.allowFirstLastIPs": enum("Yes", "No"),
		"PoolSpec.blocks":            {"maxItems": 10000},
		"PoolBlock": check(
			cel("has(self.cidr) != has(self.start)", "exactly one of cidr and start must be set"),
			cel("!has(self.stop) || has(self.start)", "stop needs start"),
			cel("!has(self.cidr) || isCIDR(self.cidr)", "cidr is no CIDR such as 192.0.2.0/24 or 2001:db8::/64"),
			cel("!has(self.start) || isIP(self.start)", "start is no address"),
			cel("!has(self.stop) || isIP(self.stop)", "stop is no address")),
		"PoolBlock.cidr": {"maxLength": 49}, "PoolBlock.start": {"maxLength": 45}, "PoolBlock.stop": {"maxLength": 45},
		"NodeSpec":       {"x-kubernetes-preserve-unknown-fields": true},
		"NodeStatus":     {"x-kubernetes-preserve-unknown-fields": true},
		"NodeIPAM":       {"x-kubernetes-preserve-unknown-fields": true},
		"NodeIPAMStatus": {"x-kubernetes-preserve-unknown-fields": true},
	}
}
