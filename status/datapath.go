package status

import (
	"fmt"
	"slices"
	"strings"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/route"
)

func (f *Facts) attachMode() Feature {
	x := Feature{Name: "Attach Mode", State: OK, Chosen: "TCX", Wanted: onOff("bpf.enableTCX", f.Config.BPF.EnableTCX)}
	if f.Attach == bpf.TCX {
		x.Why = "links that are replaced as one step and that other programs cannot remove"
		return x
	}
	x.Chosen, x.Why = "Legacy TC", f.AttachWhy
	x.Cost = "another program can remove or precede the filters; they are put back within 5 minutes"
	if f.Config.BPF.EnableTCX {
		x.FallBack(f.AttachWhy)
	}
	return x
}

func (f *Facts) deviceMode() Feature {
	x := Feature{Name: "Device Mode", State: OK, Chosen: f.PodLinks,
		Wanted: "bpf.datapathMode: " + f.Config.BPF.DatapathMode}
	if f.PodLinksWhy != "" {
		x.FallBack(f.PodLinksWhy)
		x.Cost = "about 3 % of the request rate"
	}
	return x
}

// devices compares the hooks that are wanted with what the kernel has.
func (f *Facts) devices() Feature {
	x := Feature{Name: "Devices", State: OK, Wanted: "devices: found by routes and InternalIPs"}
	if len(f.Config.Devices) > 0 {
		x.Wanted = "devices: " + strings.Join(f.Config.Devices, " ")
	}
	var wires []string
	pods := 0
	for _, d := range f.Devices {
		switch d.Kind {
		case string(route.Wire), string(route.Tunnel):
			wires = append(wires, strings.TrimSpace(d.Name+" "+parens(d.Why)))
			if !d.Up {
				x.Break(d.Name + " is down")
			}
		case string(route.Pod):
			pods++
		}
		for _, hook := range d.Missing {
			x.Break(fmt.Sprintf("%s: %s is not attached", d.Name, hook))
		}
		for _, p := range d.Foreign {
			x.FallBack(fmt.Sprintf("%s: another program, %s", d.Name, p))
			x.Cost = "another program may see, change or take packets before the datapath or after it"
		}
	}
	for _, name := range f.Config.Devices {
		named := func(d Device) bool { return d.Name == name }
		if !strings.HasPrefix(name, "!") && !strings.HasSuffix(name, "+") && !slices.ContainsFunc(f.Devices, named) {
			x.Break(name + " is in devices, and the node has no such device")
		}
	}
	x.Chosen = fmt.Sprintf("%s; %s", strings.Join(wires, ", "), feature.Plural(pods, "pod link"))
	if len(wires) == 0 {
		x.Chosen = "no wire; " + feature.Plural(pods, "pod link")
		x.Break("no device leads to other nodes: none has a default route or an InternalIP of the Node, or " +
			"is in devices")
	}
	return x
}

func parens(s string) string {
	if s == "" {
		return ""
	}
	return "(" + s + ")"
}

func (f *Facts) flowTracking() Feature {
	x := Feature{Name: "Flow Tracking", State: OK, Wanted: "myelin.flowTracking: " + f.Config.Myelin.FlowTracking}
	if f.Settings.FlowAlways != 0 {
		x.Chosen = "every flow has an entry"
		x.Cost = "2 % of the request rate, 3 to 5 % of new connections"
		return x
	}
	var kinds []string
	if f.Settings.Masquerade4 != 0 || f.Settings.Masquerade6 != 0 {
		kinds = append(kinds, "masquerading")
	}
	if f.Settings.Policy != 0 {
		kinds = append(kinds, "pods with policies")
	}
	if f.Settings.HostPolicy != 0 {
		kinds = append(kinds, "the host firewall")
	}
	if f.Settings.Services != 0 {
		kinds = append(kinds, "Services (packet)")
	}
	if len(kinds) == 0 {
		x.Chosen, x.Why = "no flow has an entry", "nothing needs state; packets go by cached decisions"
		return x
	}
	x.Chosen = "only flows of " + strings.Join(kinds, ", ")
	x.Why = "nothing else needs state; other packets go by cached decisions"
	return x
}

// events is the line that `cilium-dbg status` calls NodeMonitor.
func (f *Facts) events() Feature {
	e := f.Config.Events
	x := Feature{Name: "NodeMonitor", State: Off, Chosen: "Disabled",
		Wanted: onOff("bpf.events.drop.enabled", e.Drop) + ", " + onOff("bpf.events.trace.enabled", e.Trace)}
	var kinds []string
	rate := f.Settings.TraceRate
	if f.Settings.EventRate != 0 {
		kinds, rate = append(kinds, "drops"), f.Settings.EventRate
	}
	if f.Settings.Monitor != 0 {
		kinds = append(kinds, "flows")
	}
	if len(kinds) == 0 {
		x.Why = "the datapath counts, and reports no events"
		return x
	}
	x.State = OK
	x.Chosen = fmt.Sprintf("%s, at most %d events/s and CPU", strings.Join(kinds, " and "), rate)
	for _, m := range f.Maps {
		if m.Name == "events" || m.Name == "traces" {
			x.Chosen += fmt.Sprintf(", %s of %s", bytes(m.Bytes), m.Name)
		}
	}
	if f.EventsLost > 0 {
		x.FallBack(fmt.Sprintf("%d events were lost since the maps were made", f.EventsLost))
		x.Cost = "gaps in what monitor shows; counters are exact"
	}
	return x
}

func (f *Facts) clock() Feature {
	return Feature{
		Name: "Clock Source for BPF", State: OK, Chosen: fmt.Sprintf("jiffies [%d Hz]", f.Settings.Hz),
		Why: "cheaper than ktime, and exact enough for time-outs",
	}
}

func (f *Facts) maps() Feature {
	x := Feature{Name: "BPF Maps", State: OK}
	total, adopted := uint64(0), 0
	growing, perCPU := 0, false
	fullest := &bpf.Usage{}
	for _, m := range f.Maps {
		total += m.Bytes
		if m.Adopted {
			adopted++
		} else if m.Note != "" && m.Note != "new" {
			x.FallBack(m.Name + " was not adopted: " + m.Note)
		}
		if m.Pressure() > fullest.Pressure() {
			fullest = m
		}
		perCPU = perCPU || m.PerCPU
		if m.Limit > m.Max {
			growing++
		}
		switch {
		case m.Pressure() < warnFull || m.Limit > m.Max: // it grows
		case m.Name == "flows" || m.Name == "nat_entries":
			x.FallBack(fmt.Sprintf("%s is %.0f %% full: the idlest flows are forgotten; raise bpf.ctTcpMax or "+
				"bpf.ctAnyMax", m.Name, 100*m.Pressure()))
		case strings.HasPrefix(m.Type, "LRU"): // a cache is full as a rule
		case m.Pressure() < 1:
			x.FallBack(fmt.Sprintf("%s is %.0f %% full%s", m.Name, 100*m.Pressure(), raise(m.Name)))
		default:
			x.Break(m.Name + " is full: new rows are refused" + raise(m.Name))
		}
	}
	x.Chosen = fmt.Sprintf("%s, %s locked, %d adopted", feature.Plural(len(f.Maps), "map"), bytes(total), adopted)
	if growing > 0 {
		x.Chosen += fmt.Sprintf(", %d may grow", growing)
	}
	if perCPU {
		x.Chosen += ", LRU lists by CPU"
	}
	if fullest.Pressure() > 0 {
		x.Chosen += fmt.Sprintf(", fullest %s %.1f %%", fullest.Name, 100*fullest.Pressure())
	}
	return x
}

// raise says which key makes a map larger, if one does.
func raise(name string) string {
	switch name {
	case "frontends", "backends", "backend_slots", "maglev_tables", "quic_servers":
		return "; raise bpf.lbMapMax"
	}
	return ""
}

// bytes is a size in powers of 1024.
func bytes(n uint64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
