package prefilter

import (
	"slices"
	"testing"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/config"
)

func TestStatus(t *testing.T) {
	xdp := map[string]bpf.XDPState{"eth0": {Mode: bpf.XDPNative}}
	mixed := map[string]bpf.XDPState{"eth0": {Mode: bpf.XDPNative}, "eth1": {Mode: bpf.XDPNone}}
	row := &denylistRow{Name: "bad", Prefixes: 2}
	for name, c := range map[string]struct {
		names  []string
		rows   []*denylistRow
		xdp    map[string]bpf.XDPState
		state  feature.State
		chosen string
	}{
		"off":      {nil, nil, nil, feature.Off, "off"},
		"not read": {[]string{"bad"}, nil, nil, feature.Broken, "0 CIDRs of 0 groups, by tc"},
		"tc":       {[]string{"bad"}, []*denylistRow{row}, nil, feature.OK, "2 CIDRs of 1 group, by tc"},
		"XDP":      {[]string{"bad"}, []*denylistRow{row}, xdp, feature.OK, "2 CIDRs of 1 group, by XDP"},
		"both": {[]string{"bad"}, []*denylistRow{row}, mixed, feature.OK,
			"2 CIDRs of 1 group, by tc, and XDP where a wire has it"},
		"a problem": {[]string{"bad"}, []*denylistRow{{Name: "bad", Problem: "none"}}, xdp, feature.Broken,
			"0 CIDRs of 1 group, by XDP"},
	} {
		if s := statusOf(c.names, c.rows, c.xdp); s.State != c.state || s.Chosen != c.chosen {
			t.Errorf("%s: %s %q, want %s %q", name, s.State, s.Chosen, c.state, c.chosen)
		}
	}
	bad := statusOf([]string{"bad"}, []*denylistRow{{Name: "bad", Problem: "none"}}, nil)
	if !slices.Equal(bad.Problems, []string{"bad: none"}) || bad.Wanted != "myelin.policy.prefilter: bad" {
		t.Errorf("got %+v", bad)
	}
}

// TestOff: without groups the feature loads nothing and its maps have one entry.
func TestOff(t *testing.T) {
	c := config.Default()
	f := Feature(&feature.Node{Config: c}, Params{})
	var s bpf.Settings
	f.Settings(&s)
	if err := f.Start(t.Context()); err != nil || s.Prefilter != 0 || f.XDP() || f.Entries()["denylist"] != 1 {
		t.Errorf("%v, settings %+v, entries %v", err, s.Prefilter, f.Entries())
	}
	c.Prefilter.Groups = []string{"bad"}
	f.Settings(&s)
	if s.Prefilter != 1 || !f.XDP() || f.Entries()["denylist_prefixes"] != maxEntries {
		t.Errorf("settings %+v, entries %v", s.Prefilter, f.Entries())
	}
}
