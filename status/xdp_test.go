package status

import (
	"testing"

	"myelin/bpf"
)

func TestAcceleration(t *testing.T) {
	native := bpf.XDPState{Mode: bpf.XDPNative}
	for name, c := range map[string]struct {
		wanted   string
		services uint8
		xdp      map[string]bpf.XDPState
		state    State
		want     string
	}{
		"off": {"disabled", 1, nil, Off, "off: what passes through this node goes by tc"},
		"no Services": {"native", 0, nil, Off,
			"off: it is for packets of Services, which this agent doesn't translate"},
		"on": {"native", 1, map[string]bpf.XDPState{"eth1": native, "eth0": native}, OK,
			"native on eth0, native on eth1: "},
		"a veth": {"native", 1, map[string]bpf.XDPState{"eth0": {Mode: bpf.XDPNative, Note: "checksums"},
			"eth1": native}, OK, "native on eth0, native on eth1: checksums"},
		"partly": {"best-effort", 1, map[string]bpf.XDPState{"eth0": native, "eth1": {Why: "its driver has none"}},
			Fallback, "native on eth0, tc on eth1: its driver has none"},
		"no wire": {"native", 1, nil, Fallback, "no device: there is no wire that XDP could be on"},
	} {
		f := services(t)
		f.Config.LoadBalancer.Acceleration, f.Settings.Services, f.XDP = c.wanted, c.services, c.xdp
		x := f.acceleration()
		got := x.Chosen + ": " + x.Why
		for _, p := range x.Problems {
			got += p
		}
		if x.State != c.state || got != c.want {
			t.Errorf("%s: %v %q, want %v %q", name, x.State, got, c.state, c.want)
		}
	}
}
