package config

import (
	"strings"
	"testing"
)

func TestClusterPool(t *testing.T) {
	for text, want := range map[string]string{
		"ipam: {mode: cluster-pool}": "",
		"ipam: {mode: cluster-pool, operator: {clusterPoolIPv4PodCIDRList: [10.0.0.0/16, 10.2.0.0/16], " +
			"clusterPoolIPv4MaskSize: 26}}": "",
		"{ipv6.enabled: true, ipam: {mode: cluster-pool, operator: {clusterPoolIPv6PodCIDRList: fd00:1::/48, " +
			"clusterPoolIPv6MaskSize: 64}}}": "",
		"ipam: {mode: cluster-pool, operator: {clusterPoolIPv4PodCIDRList: []}}":            "must be set",
		"ipam: {mode: cluster-pool, operator: {clusterPoolIPv4PodCIDRList: [10.0.0.0/25]}}": "it must be 25 to 41",
		"ipam: {mode: cluster-pool, operator: " +
			"{clusterPoolIPv4PodCIDRList: [10.0.0.0/8], clusterPoolIPv4MaskSize: 28}}": "it must be 8 to 24",
		"ipam: {mode: cluster-pool, operator: " +
			"{clusterPoolIPv4PodCIDRList: [10.0.0.0/16, 10.0.128.0/17]}}": "10.0.128.0/17 overlaps 10.0.0.0/16",
		"ipam: {mode: cluster-pool, operator: " +
			"{clusterPoolIPv4PodCIDRList: [fd00::/112], clusterPoolIPv4MaskSize: 30}}": "is not of IPv4",
		"{myelin.manifests: a, ipam: {mode: cluster-pool}}": "needs an API server",
		"{defaultLBServiceIPAM: nodeipam}":                  "not yet: nodeipam",
	} {
		_, err := Parse([]byte(text), "f.yaml")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
