package bigtcp

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cilium/statedb/reconciler"

	"myelin/endpoint"
	"myelin/route"
)

const (
	// ordinary is the size of devices without BIG TCP, which is the largest that the length in an IP header allows
	// (GSO_LEGACY_MAX_SIZE).
	ordinary = 65536
	// largest is the size with BIG TCP, as in Cilium. More brings little: what fills such packets are few connections.
	largest = 196608
)

// input is what the sizes of devices are derived from.
type input struct {
	ipv4, ipv6 bool // wanted
	// together is true for kernels that compare packets of IPv4, too, with the GSO size of IPv6.
	together bool
	devices  []*route.Device
	pods     []*endpoint.Endpoint
	// kept are names of devices whose sizes an agent has changed.
	kept map[string]bool
}

// plan is what is to be.
type plan struct {
	// size is that of families with BIG TCP in bytes, at most ordinary if it is not possible.
	size int
	// limit is the name of the wire that allows no more, empty if none limits it.
	limit string
	// no4 and no6 say why a family that is wanted does not have BIG TCP, empty if it has, or is not wanted.
	no4, no6 string
	on       bool // at least one family has BIG TCP
	devices  []*Device
}

// derive is a pure function.
func derive(in input) plan {
	wires := wiresOf(in.devices)
	p := plan{size: largest}
	var has4, has6 bool
	for _, w := range wires {
		has6 = has6 || w.device.TSOMax > 0
		has4 = has4 || w.device.Sizes.GSO4 > 0
		if w.device.TSOMax < p.size {
			p.size, p.limit = w.device.TSOMax, w.device.Name
		}
	}
	small := p.size <= ordinary
	why := func(wanted, has bool, since string) string {
		switch {
		case !wanted:
			return ""
		case len(wires) == 0:
			return "no device leads to other nodes"
		case !has:
			return "needs kernel " + since
		case small:
			return fmt.Sprintf("device %s takes at most %d bytes (tso_max_size)", p.limit, p.size)
		}
		return ""
	}
	p.no4, p.no6 = why(in.ipv4, has4, "6.3"), why(in.ipv6, has6, "5.19")
	on4, on6 := in.ipv4 && p.no4 == "", in.ipv6 && p.no6 == ""
	var want route.Sizes
	if on6 {
		want.GSO6, want.GRO6 = p.size, p.size
	}
	if on4 {
		want.GSO4, want.GRO4 = p.size, p.size
		if in.together {
			want.GSO6 = p.size
		}
	}
	if p.on = on4 || on6; p.on {
		p.add(in, wires, want)
	} else {
		p.restore(in, wires)
	}
	slices.SortFunc(p.devices, func(a, b *Device) int { return cmp.Compare(a.Name, b.Name) })
	return p
}

// wire is a device that packets to other nodes pass.
type wire struct {
	device *route.Device
	role   Role
}

// wiresOf are the wires, the tunnel device, and what is below them. WireGuard is none: it cuts all packets itself.
func wiresOf(devices []*route.Device) []wire {
	byIndex := map[int]*route.Device{}
	for _, d := range devices {
		byIndex[d.Index] = d
	}
	found := map[int]wire{}
	var add func(d *route.Device, role Role)
	add = func(d *route.Device, role Role) {
		if old, ok := found[d.Index]; ok && old.role != roleLower {
			return
		}
		found[d.Index] = wire{d, role}
		if d.VLAN != nil && byIndex[d.VLAN.Below] != nil {
			add(byIndex[d.VLAN.Below], roleLower)
		}
		for _, port := range devices {
			if d.Type == "bond" && port.Master == d.Index {
				add(port, roleLower)
			}
		}
	}
	for _, d := range devices {
		switch d.Kind {
		case route.Wire:
			if d.Type != "wireguard" {
				add(d, roleWire)
			}
		case route.Tunnel:
			add(d, roleTunnel)
		}
	}
	list := make([]wire, 0, len(found))
	for _, w := range found {
		list = append(list, w)
	}
	slices.SortFunc(list, func(a, b wire) int { return cmp.Compare(a.device.Index, b.device.Index) })
	return list
}

// add has all devices get the sizes.
func (p *plan) add(in input, wires []wire, want route.Sizes) {
	named := map[string]bool{}
	for _, w := range wires {
		named[w.device.Name] = true
		p.devices = append(p.devices, row(w.device.Name, w.device.Index, w.role, want))
	}
	for _, d := range in.devices {
		if in.kept[d.Name] && !named[d.Name] { // no wire any more
			p.devices = append(p.devices, row(d.Name, d.Index, roleLower, route.Sizes{}))
		}
	}
	for _, e := range in.pods {
		if e.LinkIndex != 0 && !e.Deleting() {
			p.devices = append(p.devices, pod(e, want))
		}
	}
}

// restore has devices get their sizes back, if they have others.
func (p *plan) restore(in input, wires []wire) {
	byIndex := map[int]*route.Device{}
	for _, d := range in.devices {
		byIndex[d.Index] = d
		if in.kept[d.Name] {
			role := roleLower
			if i := slices.IndexFunc(wires, func(w wire) bool { return w.device == d }); i >= 0 {
				role = wires[i].role
			}
			p.devices = append(p.devices, row(d.Name, d.Index, role, route.Sizes{}))
		}
	}
	for _, e := range in.pods {
		if d := byIndex[e.LinkIndex]; d != nil && !e.Deleting() && d.Sizes != lowered(d.Sizes) {
			p.devices = append(p.devices, pod(e, route.Sizes{}))
		}
	}
}

// lowered are sizes without BIG TCP.
func lowered(s route.Sizes) route.Sizes {
	return route.Sizes{GSO6: min(s.GSO6, ordinary), GRO6: min(s.GRO6, ordinary), GSO4: min(s.GSO4, ordinary),
		GRO4: min(s.GRO4, ordinary)}
}

func row(name string, index int, role Role, want route.Sizes) *Device {
	return &Device{Name: name, Index: index, Role: role, Want: want, Status: reconciler.StatusPending()}
}

func pod(e *endpoint.Endpoint, want route.Sizes) *Device {
	d := row(e.LinkName, e.LinkIndex, rolePod, want)
	d.Pod, d.NetNS = e.PodName(), e.NetNS
	return d
}
