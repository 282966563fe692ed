package bpf

import "testing"

func TestSplitPin(t *testing.T) {
	t.Parallel()
	for pin, want := range map[string]struct {
		device string
		hook   Hook
	}{
		"/links/eth0-from_wire":               {"eth0", FromWire},
		"/links/my-bond-to_wire_l3":           {"my-bond", ToWireL3},
		"/links/myelin_dns-from_proxy_l3":     {"myelin_dns", FromProxyL3},
		"/links/" + PinName("eth0.7") + "-":   {"eth0_7", ""},
		"/links/my-bond-from_wire_xdp-native": {"my-bond", FromWireXDP},
		"/links/eth0-from_wire_xdp-generic":   {"eth0", FromWireXDP},
		"/links/other":                        {"", "other"},
	} {
		if device, hook := SplitPin(pin); device != want.device || hook != want.hook {
			t.Errorf("%s: %q, %q; want %q, %q", pin, device, hook, want.device, want.hook)
		}
	}
}
