package config

import (
	"slices"
	"strings"
	"testing"
)

// TestNoEffect: whatever is accepted and does nothing is said, each key by name, and nothing else is.
func TestNoEffect(t *testing.T) {
	for file, want := range map[string]string{
		"":                                   "",
		"tunnelPort: 8472":                   "", // the default, as whole values files have it
		"tunnelPort: 8473":                   "tunnelPort: has no effect: routingMode is native",
		"routingMode: tunnel\ntunnelPort: 1": "",
		"bpf.vlanBypass: [5]":                "bpf.vlanBypass: has no effect: this version does not act on it",
		"bpf.natMax: 100000": "bpf.natMax: has no effect: a translated flow is one record, counted " +
			"by bpf.ctTcpMax and bpf.ctAnyMax",
		"bpf.mapDynamicSizeRatio: 0.1":                                  "",
		"bpf: {preallocateMaps: true, distributedLRU: {enabled: true}}": "",
		"bpf.preallocateMaps: true\nmyelin.mapGrowthRatio: 0": "bpf.preallocateMaps: has no effect: " +
			"myelin.mapGrowthRatio is 0, so that maps have their largest sizes in any case",
		"bpf.mapDynamicSizeRatio: 0.1\nmyelin.mapGrowthRatio: 0.1": "myelin.mapGrowthRatio: has no effect: " +
			"bpf.mapDynamicSizeRatio says what tables may grow to",
		"myelin.mapGrowthRatio: 0.1": "",
		"bpf.ctAnyMax: 4096\nmyelin.mapGrowthRatio: 0.1": "myelin.mapGrowthRatio: has no effect: " +
			"bpf.ctTcpMax or bpf.ctAnyMax is set, so that tables do not grow",
		"bpf.events.policyVerdict.enabled: false":            "",
		"bpf.events.default: {rateLimit: 5, burstLimit: 10}": "",
		"bpf.monitorAggregation: none":                       "",
		"bpf: {monitorInterval: 2s, events: {trace: {enabled: false}}}": "bpf.monitorInterval: has no effect: " +
			"bpf.events.trace.enabled is false",
		"prometheus.port: 9000": "prometheus.port: has no effect: prometheus.enabled is false",
		"prometheus: {enabled: true, port: 9000}\nmyelin.prometheus.address: 192.0.2.1": "",
		"myelin.prometheus.address: 192.0.2.1": "myelin.prometheus.address: " +
			"has no effect: prometheus.enabled is false",
		"policyEnforcementMode: never\nhostFirewall.enabled: true": "hostFirewall.enabled: " +
			"has no effect: policyEnforcementMode is never",
		"ipam.operator.clusterPoolIPv4MaskSize: 25": "ipam.operator.clusterPoolIPv4MaskSize: has no effect: " +
			"ipam.mode is kubernetes",
		"endpointRoutes.enabled: true\nsctp.enabled: true": "",
		"socketLB: {enabled: true, tracing: true}":         "",
		"socketLB.tracing: false": "socketLB.tracing: false has no effect: sockets are reported as other events " +
			"are: bpf.events.trace.enabled",
		"sctp.enabled: false": "sctp.enabled: false has no effect: SCTP is always forwarded",
		"enableTunnelBIGTCP: true": "enableTunnelBIGTCP: has no effect: enableIPv4BIGTCP and " +
			"enableIPv6BIGTCP are false",
		"encryption: {enabled: false, type: ipsec, nodeEncryption: true}": "encryption.nodeEncryption: " +
			"has no effect: encryption.enabled is false",
		"encryption.enabled: false":         "",
		"bgpControlPlane: {enabled: false}": "",
		"hubble: {enabled: false, relay: {enabled: false}}": "hubble.relay.enabled: " +
			"has no effect: the agent does not look at it",
		"resources: {limits: {cpu: 1}}\nimage: {tag: x}": "image.tag: " +
			"has no effect: the agent does not look at it; nor have resources.limits",
		"bpf.autoMount.enabled: true\nprometheus.serviceMonitor.enabled: true": "", // left there by the chart
	} {
		c, err := Parse([]byte("ipv4NativeRoutingCIDR: 10.0.0.0/8\n"+file), "f")
		if err != nil {
			t.Fatalf("%q: %v", file, err)
		}
		if text := warningsOf(c); text != want {
			t.Errorf("%q: warnings\n%s\nwant\n%s", file, text, want)
		}
	}
}

func warningsOf(c *Config) string {
	var list []string
	for _, w := range c.Warnings {
		list = append(list, w.Key+": "+w.Reason)
	}
	return strings.Join(list, "\n")
}

// TestUnusedKeys: a key that is no setting would never be warned of.
func TestUnusedKeys(t *testing.T) {
	known := map[string]bool{}
	for _, s := range settings() {
		known[s.Name] = true
	}
	for _, u := range Default().unused() {
		for _, key := range strings.Fields(u.keys) {
			if !known[key] {
				t.Errorf("%s is no setting", key)
			}
		}
	}
	for _, k := range idles() {
		if !slices.ContainsFunc(features(), func(f feature) bool {
			return f.key == k.key && slices.Contains(strings.Fields(f.off), k.value)
		}) {
			t.Errorf("%s: %s is not accepted", k.key, k.value)
		}
	}
}

func TestServiceHost(t *testing.T) {
	for host, want := range map[string]string{
		"":                                   "",
		"192.0.2.1":                          "",
		"2001:db8::1":                        "",
		"fe80::1%eth0":                       "",
		"api.example.org":                    "",
		"api.example.org.":                   "",
		"0A1B.gr7.eu-west-1.EKS.example.org": "",
		"https://192.0.2.1:6443":             "is a URL",
		"http://api":                         "is a URL",
		"192.0.2.1:6443":                     "has a port",
		"api.example.org:6443":               "has a port",
		"[2001:db8::1]":                      "has brackets",
		"auto":                               "for the Helm chart",
		"api server":                         "a host name or an address",
		"api/":                               "a host name or an address",
	} {
		_, err := Parse([]byte("k8sServiceHost: \""+host+"\""), "f")
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", host, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), "k8sServiceHost: ") ||
			!strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, want %q", host, err, want)
		}
	}
}

func TestPrometheusAddress(t *testing.T) {
	for address, ok := range map[string]bool{"": true, "192.0.2.1": true, "::": true, "fe80::1%eth0": false,
		"all": false, "192.0.2.1:9962": false} {
		if _, err := Parse([]byte("prometheus.enabled: true\nmyelin.prometheus.address: \""+address+"\""),
			"f"); (err == nil) != ok {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestCheckValue(t *testing.T) {
	for _, tc := range []struct{ key, value, want string }{
		{"routingMode", `"native"`, ""},
		{"routingMode", `"tunel"`, `"tunel" is not native or tunnel`},
		{"ipam.mode", `"eni"`, "not yet: eni; use kubernetes or cluster-pool"},
		{"bpf.ctTcpMax", `12`, "12 is not in 1024..16777216"},
		{"egressGateway.enabled", `true`, "true: not yet: egress gateways"},
		{"egressGateway.enabled", `false`, ""},
		{"routeMode", `"native"`, "unknown key: did you mean routingMode?"},
	} {
		err := CheckValue(tc.key, []byte(tc.value))
		if got := errText(err); got != tc.want {
			t.Errorf("%s=%s: %q, want %q", tc.key, tc.value, got, tc.want)
		}
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
