package config

import "testing"

func TestBigTCPRefused(t *testing.T) {
	refuse(t, map[string]refused{
		"in a tunnel": {"enableIPv6BIGTCP: true\nroutingMode: tunnel",
			[]string{"f.yaml: enableIPv6BIGTCP: with routingMode tunnel, enableTunnelBIGTCP must be true, and the " +
				"kernel's tunnel devices must take such packets"}},
		"with legacy routing": {"enableIPv4BIGTCP: true\nbpf: {hostLegacyRouting: true}",
			[]string{"f.yaml: enableIPv4BIGTCP: needs routing by BPF: bpf.hostLegacyRouting is true"}},
		"with IPIP": {"enableIPv4BIGTCP: true\nnodePort.enabled: true\nloadBalancer: {mode: dsr, dsrDispatch: ipip}",
			[]string{"f.yaml: enableIPv4BIGTCP: loadBalancer.dsrDispatch ipip encapsulates packets, whose length has " +
				"16 bits: set it to opt"}},
	})
	for _, text := range []string{
		"enableIPv6BIGTCP: true\nroutingMode: tunnel\nenableTunnelBIGTCP: true",
		"enableIPv4BIGTCP: true\nloadBalancer.dsrDispatch: ipip", // has no effect
	} {
		if _, err := Parse([]byte(text), "f.yaml"); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
