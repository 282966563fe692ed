package status

import (
	"maps"
	"slices"
	"strings"

	"myelin/bpf"
)

// acceleration is the line about flows of Services that XDP forwards.
func (f *Facts) acceleration() Feature {
	wanted := f.Config.LoadBalancer.Acceleration
	x := Feature{Name: "XDP", State: Off, Chosen: "off", Wanted: "loadBalancer.acceleration: " + wanted}
	if wanted == "disabled" || f.Settings.Services == 0 && f.Settings.Prefilter == 0 {
		x.Why = "what passes through this node goes by tc"
		if wanted != "disabled" {
			x.Why = "it is for packets of Services, which this agent doesn't translate"
		}
		return x
	}
	x.State = OK
	var chosen, notes []string
	for _, device := range slices.Sorted(maps.Keys(f.XDP)) {
		s := f.XDP[device]
		if s.Mode == bpf.XDPNone {
			chosen = append(chosen, "tc on "+device)
			x.Cost = "a packet that only passes through costs several times as much by tc"
			x.FallBack(s.Why)
			continue
		}
		chosen = append(chosen, string(s.Mode)+" on "+device)
		notes = append(notes, s.Note)
	}
	x.Why = strings.Join(slices.DeleteFunc(notes, func(s string) bool { return s == "" }), "; ")
	x.Chosen = strings.Join(chosen, ", ")
	if len(chosen) == 0 {
		x.Chosen = "no device"
		x.FallBack("there is no wire that XDP could be on")
	}
	return x
}
