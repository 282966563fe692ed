package config

import (
	"net/netip"
	"slices"
	"testing"
)

func TestRefusedNodePorts(t *testing.T) {
	refuse(t, map[string]refused{
		"an address": {"nodePort: {enabled: true, addresses: [192.0.2.1]}",
			[]string{`f.yaml: nodePort.addresses: "192.0.2.1" is not a CIDR such as 10.0.0.0/8 or fd00::/48`}},
		"half a network": {"nodePort: {enabled: true, addresses: [fd00::/48, 192.0.2.1/24]}",
			[]string{`f.yaml: nodePort.addresses: 192.0.2.1/24 has bits set after the prefix: did you mean ` +
				`192.0.2.0/24?`}},
		"a mapped address": {"nodePort: {enabled: true, addresses: [\"::ffff:0:0/96\"]}",
			[]string{`f.yaml: nodePort.addresses: "::ffff:0:0/96" is not a CIDR such as 10.0.0.0/8 or fd00::/48`}},
		"no list": {"nodePort: {enabled: true, addresses: 5}",
			[]string{`f.yaml: nodePort.addresses: 5 is not a list`}},
		"an unknown response": {"serviceNoBackendResponse: silence",
			[]string{`f.yaml: serviceNoBackendResponse: "silence" is not reject or drop`}},
	})
}

// What chooses nothing is said to have no effect.
func TestNodePorts(t *testing.T) {
	for file, want := range map[string]struct {
		addresses []netip.Prefix
		response  string
		warned    []string
	}{
		"kubeProxyReplacement: true":                         {nil, "reject", nil},
		"kubeProxyReplacement: true\nnodePort.addresses: []": {nil, "reject", nil},
		"socketLB.enabled: true\nnodePort.addresses: [192.0.2.0/24]": {
			[]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, "reject", nil},
		"nodePort.addresses: [192.0.2.0/24, fd00::/64]": {
			[]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("fd00::/64")}, "reject",
			[]string{"nodePort.addresses"}},
		"kubeProxyReplacement: true\nserviceNoBackendResponse: drop": {nil, "drop", nil},
		"socketLB.enabled: true\nserviceNoBackendResponse: drop": {nil, "drop",
			[]string{"serviceNoBackendResponse"}},
	} {
		c, err := Parse([]byte("ipv4NativeRoutingCIDR: 10.0.0.0/8\n"+file), "f")
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		var keys []string
		for _, w := range c.Warnings {
			keys = append(keys, w.Key)
		}
		if !slices.Equal(c.NodePort.Addresses, want.addresses) || c.NoBackendResponse != want.response ||
			!slices.Equal(keys, want.warned) {
			t.Errorf("%s: got %v, %s, warnings %v; want %+v", file, c.NodePort.Addresses, c.NoBackendResponse,
				keys, want)
		}
	}
}
