package bigtcp

import (
	"fmt"

	"github.com/cilium/statedb/reconciler"

	"myelin/agent/feature"
	"myelin/route"
)

// status is the lines of `myelin status`, with the names of `cilium-dbg status`.
func (f *Feature) status() []feature.Status {
	p := f.bigTCP.plan.Load()
	if p == nil {
		p = &plan{}
	}
	six := f.line("IPv6", f.Config.BigTCP.IPv6, f.Config.IPv6.Enabled, p, p.no6)
	four := f.line("IPv4", f.Config.BigTCP.IPv4, f.Config.IPv4.Enabled, p, p.no4)
	return []feature.Status{four, six}
}

func (f *Feature) line(family string, wanted, enabled bool, p *plan, no string) feature.Status {
	s := feature.Status{
		Name: family + " BIG TCP", State: feature.Off, Wanted: fmt.Sprintf("enable%sBIGTCP: %t", family, wanted),
		Chosen: "off", Why: "packets of TCP have at most 65,536 bytes",
	}
	switch {
	case !wanted:
		return s
	case !enabled:
		s.Why = "the family is disabled"
		return s
	case no != "":
		s.State = feature.OK
		s.FallBack(no)
		return s
	}
	if !p.on {
		s.State, s.Chosen, s.Why = feature.Fallback, "off", "devices are not read yet"
		return s
	}
	wires, pods, failed := f.devices()
	s.State, s.Chosen = feature.OK, fmt.Sprintf("%d bytes", p.size)
	s.Why = fmt.Sprintf("GSO and GRO sizes of %s and %s", feature.Plural(wires, "device"),
		feature.Plural(pods, "pod link"))
	if p.limit != "" {
		s.Why += fmt.Sprintf("; %s takes no more (tso_max_size)", p.limit)
	}
	feature.First(failed, len(failed), s.FallBack)
	return s
}

// devices counts those that are at their sizes, and has the errors of others.
func (f *Feature) devices() (wires, pods int, failed []string) {
	for d := range f.bigTCP.Devices.All(f.DB.ReadTxn()) {
		switch {
		case d.Want == route.Sizes{}:
		case d.Status.Kind == reconciler.StatusKindError:
			failed = append(failed, d.Status.GetError())
		case d.Role == rolePod:
			pods++
		default:
			wires++
		}
	}
	return wires, pods, failed
}
